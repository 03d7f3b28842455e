"""The `models` section of a spec: one model group, which agents share and which is fine-tuned as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from runner.documents.dataclass_schema import option
from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.chat_format import ChatFormat
from runner.models.interface import Request, Usage
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS, ProviderName, ProviderTraits

MOST_TOP_LOGPROBS = 20
"""The most of the likeliest tokens that the wire format has at each position."""

NOT_PUBLISHED = "???"
"""A `base_url` that was left out of what was published: whoever plays it says where its model is served."""

MOST_SERVERS = 256
"""The most addresses of one model group."""

_ADDRESS: Mapping[str, Any] = {
    "pattern": r"^(https?://[^@\s]+|\?\?\?)$",
    "patternErrorMessage": "http:// or https:// with a host belongs here, without user or password, or ??? for an "
    "address that is still to be given",
}

CACHE_WRITE_FACTOR = 1.25
"""A token written to the cache costs this many times an input token, where the spec does not say."""

SystemRole = Literal["system", "developer", "user"]


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars for a million tokens of each class. It holds for every service tier and every length of prompt."""

    input: float = option("Prompt tokens.", example=0.15, minimum=0)
    output: float = option("Answer tokens, reasoning included.", example=0.6, minimum=0)
    cached_input: float | None = option(
        "Prompt tokens that the server had cached; null: as `input`.", default=None, example=0.075, minimum=0
    )

    cache_write: float | None = option(
        "Prompt tokens that the server wrote to its cache; null: 1.25 times `input`, as OpenAI bills them.",
        default=None,
        example=0.1875,
        minimum=0,
    )
    reasoning: float | None = option("Reasoning tokens; null: as `output`.", default=None, example=0.6, minimum=0)
    audio_input: float | None = option(
        "Prompt tokens of audio that were not cached; null: as `input`.", default=None, example=32.0, minimum=0
    )
    audio_output: float | None = option(
        "Answer tokens of audio; null: as `output`.", default=None, example=64.0, minimum=0
    )

    @property
    def rates(self) -> dict[str, float]:
        """The rate of every class by its key: four of the prompt, then three of the answer."""
        return {
            "input": self.input,
            "cached_input": _either(self.cached_input, self.input),
            "cache_write": _either(self.cache_write, self.input * CACHE_WRITE_FACTOR),
            "audio_input": _either(self.audio_input, self.input),
            "output": self.output,
            "reasoning": _either(self.reasoning, self.output),
            "audio_output": _either(self.audio_output, self.output),
        }

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """US dollars of one call of text. `prompt_tokens` includes the cached ones."""
        return self.cost_of(Usage(prompt_tokens, completion_tokens, cached_tokens))

    def cost_of(self, used: Usage) -> float:
        """US dollars of one call. A prompt token of two classes counts as cached before written before audio."""
        prompt, answer = used.prompt_tokens, used.completion_tokens
        cached = min(used.cached_tokens, prompt)
        usd = cached * _either(self.cached_input, self.input)
        if used.cache_write_tokens or used.audio_input_tokens:
            written = min(used.cache_write_tokens, prompt - cached)
            audio = min(used.audio_input_tokens, prompt - cached - written)
            usd += written * _either(self.cache_write, self.input * CACHE_WRITE_FACTOR)
            usd += audio * _either(self.audio_input, self.input)
            cached += written + audio
        usd += (prompt - cached) * self.input
        if used.reasoning_tokens or used.audio_output_tokens:
            audio = min(used.audio_output_tokens, answer)
            reasoning = min(used.reasoning_tokens, answer - audio)
            usd += audio * _either(self.audio_output, self.output) + reasoning * _either(self.reasoning, self.output)
            answer -= audio + reasoning
        return (usd + answer * self.output) / 1e6

    def most(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The most that so many tokens can cost, whichever of the priced classes they turn out to be of."""
        rates = list(self.rates.values())
        return (prompt_tokens * max(rates[:4]) + completion_tokens * max(rates[4:])) / 1e6


def requested_answers(request: Request, settings: ModelSettings) -> int:
    """Return how many answers a call asks for."""
    n = settings.sampling().get("n")
    return max(request.n, n if isinstance(n, int) else 1)


def _either(price: float | None, fallback: float) -> float:
    return fallback if price is None else price


@dataclass(frozen=True, kw_only=True)
class FineTuneStep:
    """One fine-tuning that a model has gone through."""

    model: str = option("The model that came out.", example="qwen3-4b-nip-1")
    from_model: str = option("The model that went in.", example="Qwen/Qwen3-4B")
    run_id: str = option("The training run.", example="nip-ei-0123456789")
    iteration: int = option("Its iteration, from 0.", example=0, minimum=0)
    method: Literal["sft", "dpo"] = option("Supervised, or by preferences.", example="sft")
    dataset_sha256: str = option("SHA-256 of the dataset file.", example="e3b0c442")
    job: str | None = option("The job's id at the trainer.", default=None, example="ftjob-abc")
    weights_sha256: str | None = option(
        "Of weights on the machine that trained: the hash of their files, by which they are known again.",
        default=None,
        example="9f86d081",
    )
    release: str | None = option(
        "The published run or model that it was taken from.", default=None, example="run/acme/nip-ei-0123456789@1"
    )
    release_sha256: str | None = option("SHA-256 of that release's manifest.", default=None, example="4e07408562")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A model group. Only the sampling parameters that are set are sent."""

    provider: ProviderName = option(
        "`openai`: any server that speaks its wire format. `anthropic`: Anthropic's Messages API (needs "
        "`nip-run[anthropic]`). `dummy`: no network, well-formed answers from the "
        "rollout's seed. `replay`: the answers of an earlier run.",
        default=DEFAULT_PROVIDER,
    )
    model: str | None = option(
        "The model's name, as the server knows it. `openai` and `anthropic` need one.",
        default=None,
        example="gpt-6-luna",
        minLength=1,
    )
    from_run: str | None = option(
        "Take the model of another run, in the place of `model`: RUN@i3 is what iteration 3 plays with, i0 the "
        "untrained one; RUN@last, or RUN alone, the one it came to. RUN is an id, the start of one, or a folder. Saved "
        "with the run is what this comes to: `model`, `base_model`, `lineage`, and where it is served, unless that is "
        "said here.",
        default=None,
        example="ei-nip-0123456789@i3",
        minLength=1,
    )
    from_group: str | None = option(
        "With `from_run`: the model group there; null: the one of the same name.", default=None, example="verifier"
    )
    base_model: str | None = option(
        "The model it was fine-tuned from, for the tables; null: itself.",
        default=None,
        example="Qwen/Qwen3-4B",
    )
    lineage: tuple[FineTuneStep, ...] = option(
        "Fine-tuning lineage, oldest first; written by training runs.",
        default=(),
        example=[
            {
                "model": "qwen3-4b-nip-1",
                "from_model": "Qwen/Qwen3-4B",
                "run_id": "nip-ei-0123456789",
                "iteration": 0,
                "method": "sft",
                "dataset_sha256": "e3b0c442",
            }
        ],
    )
    base_url: str | tuple[str, ...] | None = option(
        "The server; null: the provider's own. A list: servers of the same model, among which the games are shared "
        "out, each agent of a game at one of them. `???`, in what was published: to be given by whoever plays it.",
        default=None,
        example="http://127.0.0.1:8000/v1",
        type=["string", "array", "null"],
        **_ADDRESS,
        items={"type": "string", **_ADDRESS},
        minItems=1,
        maxItems=MOST_SERVERS,
    )
    api_key_env: str | None = option(
        "The environment variable that holds the key. null: OPENAI_API_KEY or ANTHROPIC_API_KEY for the provider's own "
        "server, and no key for any other server, so that a `base_url` never gets the provider's key.",
        default=None,
        example="MY_SERVER_KEY",
        pattern="^[A-Za-z_][A-Za-z0-9_]*$",
    )
    headers: Mapping[str, str] | None = option(
        "Headers sent with each call, besides the key's: names, and for each `$NAME`, the environment variable that "
        "holds its value, which is taken for a secret as a key is.",
        default=None,
        example={"X-Team": "$TEAM_ID"},
        additionalProperties={
            "type": "string",
            "writeOnly": True,
            "pattern": r"^\x24[A-Za-z_][A-Za-z0-9_]*$",
            "patternErrorMessage": "a header's value never stands in a spec: write $NAME, the environment variable "
            "that holds it",
        },
    )
    session_id: bool | None = option(
        "Send `X-Session-ID`, by which a router knows the calls of one agent in one game: a hash, without a word of "
        "either. null: where `base_url` is a list.",
        default=None,
        example=True,
    )
    chat_format: ChatFormat | None = option(
        "The form of its chats. `openai`: senders in `name`, system messages wherever they stand. `alternating`: what "
        "open models' chat templates take: senders in the text, turns of one role in a row as one message, the first "
        "turn the user's. null: `openai` at OpenAI's own address, `alternating` at any other server.",
        default=None,
        example="alternating",
    )
    system_role: SystemRole = option(
        "The role of instructions; OpenAI's reasoning models want `developer`. `user`: they begin the first turn "
        "of an `alternating` chat, which is what such a chat does unless a role is given, since some chat "
        "templates refuse or drop a system message.",
        default="system",
    )
    send_name: bool = option("Send each message's `name`; some servers refuse it.", default=True)
    temperature: float | None = option("Sampling temperature.", default=None, example=1.0, minimum=0)
    top_p: float | None = option("Nucleus sampling.", default=None, example=0.95, minimum=0, maximum=1)
    max_completion_tokens: int | None = option(
        "The limit of an answer, reasoning included, for OpenAI.", default=None, example=400, minimum=1
    )
    max_tokens: int | None = option(
        "The limit of an answer, for servers that lack the newer name.", default=None, example=400, minimum=1
    )
    n: int | None = option(
        "Answers asked for in one call; the first valid one is used.", default=None, example=1, minimum=1, maximum=128
    )
    seed: int | None = option("The server's sampling seed (deprecated by OpenAI; no promise).", default=None, example=0)
    stop: tuple[str, ...] | None = option(
        "Texts that end an answer, at most 4.", default=None, example=["</answer>"], maxItems=4
    )
    reasoning_effort: str | None = option(
        "For reasoning models: low, medium, high and others.", default=None, example="low"
    )
    logprobs: bool | None = option(
        "Ask for the log-probability of each token of an answer; kept with it, and for verdicts in `completions`.",
        default=None,
        example=True,
    )
    top_logprobs: int | None = option(
        "With `logprobs`: how many of the likeliest tokens at each position.",
        default=None,
        example=5,
        minimum=0,
        maximum=MOST_TOP_LOGPROBS,
    )
    extra_body: Mapping[str, Any] | None = option(
        "Other fields of the request's body; those with a key of their own are refused here.",
        default=None,
        example={"chat_template_kwargs": {"enable_thinking": False}},
    )
    requests_per_minute: int | None = option(
        "The server's limit; null: as its headers say.", default=None, example=500, minimum=1
    )
    tokens_per_minute: int | None = option(
        "The server's limit, prompts and answers together; null: as its headers say.",
        default=None,
        example=200_000,
        minimum=1,
    )
    share_prompts: bool | None = option(
        "Ask for all samples of one request in one call (`n`), so that the prompt is paid once. A server that "
        "refuses `n` is asked one by one. null: only for the answers to one step of a tree.",
        default=None,
        example=True,
    )
    batch: bool = option("Ask through the provider's Batch API: half the price, up to 24 hours a step.", default=False)
    batch_wait: float = option(
        "For `batch`: send what has gathered after this many seconds without a new call.", default=5.0, minimum=0
    )
    batch_poll: float = option("For `batch`: seconds between polls.", default=30.0, exclusiveMinimum=0)
    timeout: float = option("Time-out of a call, in seconds.", default=600.0, exclusiveMinimum=0)
    run: str | None = option("For `replay`: the run's folder.", default=None, example="../results/runs/my-run")
    answer_words: int | None = option(
        "For `dummy`: about how many words its answers have, to try a run at its size before a model is asked; null: a "
        "sentence.",
        default=None,
        example=150,
        minimum=1,
        maximum=1_000_000,
    )
    price: Price | None = option(
        "The model's price, that of batches with `batch: true`; null: from the price list that comes with nip-run.",
        default=None,
        example={"input": 0.15, "output": 0.6},
    )

    @property
    def name(self) -> str:
        """The model's name in tables."""
        return self.model or self.provider

    @property
    def resolved_chat_format(self) -> ChatFormat:
        """The form of its chats. A loaded spec says it always; settings that were made otherwise may leave it out."""
        return self.chat_format or "openai"

    @property
    def key_variable(self) -> str | None:
        """The environment variable of its key, if it sends one; a provider's own key is for its own server only."""
        if not self.traits.remote:
            return None
        return self.api_key_env or (self.traits.key_variable if self.base_url is None else None)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables whose values its servers get: its key's and its headers'."""
        if not self.traits.remote:
            return ()
        named = (*(() if self.key_variable is None else (self.key_variable,)), *self.header_variables.values())
        return tuple(dict.fromkeys(named))

    @property
    def header_variables(self) -> dict[str, str]:
        """For each header of its own the environment variable that holds the value."""
        return {name: value.removeprefix("$") for name, value in (self.headers or {}).items()}

    @property
    def addresses(self) -> tuple[str | None, ...]:
        """The addresses that it is asked at, in the spec's order; None is OpenAI's."""
        return self.base_url if isinstance(self.base_url, tuple) else (self.base_url,)

    @property
    def address(self) -> str | None:
        """Its address, of several the first."""
        return self.addresses[0]

    @property
    def server_url(self) -> str:
        """The URL of its server, or of its first one: the spec's, or else the provider's own."""
        return self.address or self.traits.base_url

    @property
    def server_urls(self) -> list[str]:
        """The URLs of all its servers."""
        return [address or self.traits.base_url for address in self.addresses]

    def server_label(self, group: str) -> str:
        """Return the server and the name of this model group, for messages."""
        return f"{self.server_url} ({group})"

    @property
    def is_unserved(self) -> bool:
        """Whether an address of it was left out of what was published, and is to be given."""
        return NOT_PUBLISHED in self.addresses

    @property
    def each_server(self) -> tuple[ModelSettings, ...]:
        """The same group at each of its servers alone."""
        if not isinstance(self.base_url, tuple):
            return (self,)
        return tuple(replace(self, base_url=address, session_id=self.sends_session_id) for address in self.base_url)

    @property
    def sends_session_id(self) -> bool:
        """Whether its calls say of which game and agent they are."""
        return len(self.addresses) > 1 if self.session_id is None else self.session_id

    @property
    def traits(self) -> ProviderTraits:
        """What its provider can do."""
        return PROVIDERS[self.provider]

    @property
    def batched(self) -> bool:
        """Whether its calls go out by batch."""
        return self.traits.takes_batches and self.batch

    @property
    def called_live(self) -> bool:
        """Whether its calls go out one by one over a network."""
        return self.traits.remote and not self.batch

    def shares(self, *, trees: bool) -> bool:
        """Whether the answers to one request are asked for in one call; `trees`: they are branches of a tree."""
        if self.share_prompts is None:
            return trees and self.traits.gives_many and not self.batch and "n" not in self.sampling()
        return self.share_prompts

    @property
    def limit_key(self) -> str:
        """The key that limits its answers: the one that is set, or the one to set."""
        return "max_completion_tokens" if self.max_tokens is None else "max_tokens"

    def cut_before_a_word(self, group: str) -> str:
        """What to say of an answer that was cut before its first word, and to do."""
        do = "set" if getattr(self, self.limit_key) is None else "raise"
        return (
            "the token limit was reached before the first word of an answer, or went into reasoning; "
            f"{do} models.{group}.{self.limit_key}"
        )

    def sent_messages(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Return messages with the role for instructions that this group sends, and without names if it sends none."""
        if self.send_name and self.system_role == "system":
            return messages
        return [self._sent_message(message) for message in messages]

    def _sent_message(self, message: ChatMessage) -> ChatMessage:
        role = self.system_role if message["role"] == "system" else message["role"]
        if self.send_name and "name" in message:
            return {"role": role, "name": message["name"], "content": message["content"]}
        return {"role": role, "content": message["content"]}

    def sampling(self) -> dict[str, Any]:
        """The parameters that go on the wire, besides the model and the messages."""
        names = (
            "temperature", "top_p", "max_completion_tokens", "max_tokens", "n", "seed", "stop", "reasoning_effort",
            "logprobs", "top_logprobs",
        )  # fmt: skip
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if "stop" in chosen:
            chosen["stop"] = list(chosen["stop"])
        return {**chosen, **(self.extra_body or {})}
