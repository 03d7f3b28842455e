"""The `models` section of a spec: model groups. Agents that share a group are fine-tuned as one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from runner.documents.dataclass_schema import LARGEST_NUMBER, option
from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.chat_format import ChatFormat
from runner.models.interface import Request, Usage
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS, ProviderName, ProviderTraits

MAX_TOP_LOGPROBS = 20
"""Maximum value of `top_logprobs` in the API."""

NOT_PUBLISHED = "???"
"""The value of `base_url` in published specs. The user who runs such a spec sets the address of their own server."""

MAX_SERVERS = 256
"""Maximum number of addresses of one model group."""

_ADDRESS: Mapping[str, Any] = {
    "pattern": r"^(https?://[^@\s]+|\?\?\?)$",
    "patternErrorMessage": "http:// or https:// with a host, without user or password, or ??? for an address to enter "
    "later",
}

CACHE_WRITE_FACTOR = 1.25
"""Price of a token written to the cache, as a multiple of the input price, if the spec does not set this price."""

SystemRole = Literal["system", "developer", "user"]


@dataclass(frozen=True, kw_only=True)
class Price:
    """Prices in US dollars per million tokens. They hold for every service tier and every length of prompt."""

    input: float = option("Price of prompt tokens.", example=0.15, minimum=0, maximum=LARGEST_NUMBER)
    output: float = option(
        "Price of answer tokens, reasoning included.", example=0.6, minimum=0, maximum=LARGEST_NUMBER
    )
    cached_input: float | None = option(
        "Price of prompt tokens that the server read from its cache; null: the price `input`.",
        default=None,
        example=0.075,
        minimum=0,
        maximum=LARGEST_NUMBER,
    )

    cache_write: float | None = option(
        "Price of prompt tokens that the server wrote to its cache; null: 1.25 times `input`, as at OpenAI.",
        default=None,
        example=0.1875,
        minimum=0,
        maximum=LARGEST_NUMBER,
    )
    reasoning: float | None = option(
        "Price of reasoning tokens; null: the price `output`.",
        default=None,
        example=0.6,
        minimum=0,
        maximum=LARGEST_NUMBER,
    )
    audio_input: float | None = option(
        "Price of audio tokens of the prompt that were not cached; null: the price `input`.",
        default=None,
        example=32.0,
        minimum=0,
        maximum=LARGEST_NUMBER,
    )
    audio_output: float | None = option(
        "Price of audio tokens of the answer; null: the price `output`.",
        default=None,
        example=64.0,
        minimum=0,
        maximum=LARGEST_NUMBER,
    )

    @cached_property
    def rates(self) -> dict[str, float]:
        """The price of each class of tokens: the first four classes are of the prompt, the others of the answer."""
        return {
            "input": self.input,
            "cached_input": _rate(self.cached_input, self.input),
            "cache_write": _rate(self.cache_write, self.input * CACHE_WRITE_FACTOR),
            "audio_input": _rate(self.audio_input, self.input),
            "output": self.output,
            "reasoning": _rate(self.reasoning, self.output),
            "audio_output": _rate(self.audio_output, self.output),
        }

    def cost_of(self, usage: Usage) -> float:
        """Return the cost of one call, in US dollars.

        A prompt token that belongs to several classes has the price of the first: cached, written to the cache, audio.
        """
        prompt_tokens, answer_tokens = usage.prompt_tokens, usage.completion_tokens
        cached = min(usage.cached_tokens, prompt_tokens)
        usd = cached * _rate(self.cached_input, self.input)
        if usage.cache_write_tokens or usage.audio_input_tokens:
            written = min(usage.cache_write_tokens, prompt_tokens - cached)
            audio = min(usage.audio_input_tokens, prompt_tokens - cached - written)
            usd += written * _rate(self.cache_write, self.input * CACHE_WRITE_FACTOR)
            usd += audio * _rate(self.audio_input, self.input)
            cached += written + audio
        usd += (prompt_tokens - cached) * self.input
        if usage.reasoning_tokens or usage.audio_output_tokens:
            audio = min(usage.audio_output_tokens, answer_tokens)
            reasoning = min(usage.reasoning_tokens, answer_tokens - audio)
            usd += audio * _rate(self.audio_output, self.output) + reasoning * _rate(self.reasoning, self.output)
            answer_tokens -= audio + reasoning
        return (usd + answer_tokens * self.output) / 1e6

    def max_cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the maximum cost in US dollars, if all tokens belong to the most expensive class."""
        rates = list(self.rates.values())
        return (prompt_tokens * max(rates[:4]) + completion_tokens * max(rates[4:])) / 1e6


def requested_answers(request: Request, settings: ModelSettings) -> int:
    """Return the number of answers that a call requests."""
    n = (settings.extra_body or {}).get("n", settings.n)
    return max(request.n, n if isinstance(n, int) else 1)


def _rate(rate: float | None, fallback: float) -> float:
    return fallback if rate is None else rate


@dataclass(frozen=True, kw_only=True)
class FineTuneStep:
    """One fine-tuning step in the history of a model."""

    model: str = option("The model that came out.", example="qwen3-4b-nip-1")
    from_model: str = option("The model that went in.", example="Qwen/Qwen3-4B")
    run_id: str = option("The training run.", example="nip-ei-0123456789")
    iteration: int = option("Its iteration, from 0.", example=0, minimum=0)
    method: Literal["sft", "dpo"] = option("Supervised, or by preferences.", example="sft")
    dataset_sha256: str = option("SHA-256 of the dataset file.", example="e3b0c442")
    job: str | None = option("The job's id at the trainer.", default=None, example="ftjob-abc")
    weights_sha256: str | None = option(
        "SHA-256 of the files of local weights, which identifies them.", default=None, example="9f86d081"
    )
    release: str | None = option(
        "The published run or model that provided it.", default=None, example="run/acme/nip-ei-0123456789@1"
    )
    release_sha256: str | None = option("SHA-256 of that release's manifest.", default=None, example="4e07408562")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A model group. Sampling parameters that are not set are not sent."""

    provider: ProviderName = option(
        "Where answers come from. `openai`: OpenAI or any server with the same API. `anthropic`: Anthropic's Messages "
        "API (needs `nip-run[anthropic]`). `human`: people answer on a page of this machine. `dummy`: random answers "
        "in the right format, without a network. `replay`: the answers of an earlier run.",
        default=DEFAULT_PROVIDER,
    )
    model: str | None = option(
        "The model's name at the server. Required for `openai` and `anthropic`.",
        default=None,
        example="gpt-6-luna",
        minLength=1,
    )
    from_run: str | None = option(
        "Instead of `model`: use a model of the training run RUN. RUN@i3 is the model that iteration 3 plays with, "
        "RUN@i0 the untrained model, and RUN@last or RUN the final model. RUN is a run's id, the start of its id, or "
        "its folder. nip-run takes `model`, `base_model`, `lineage` and, if it is not set here, `base_url` from that "
        "run.",
        default=None,
        example="ei-nip-0123456789@i3",
        minLength=1,
    )
    from_group: str | None = option(
        "With `from_run`: the model group in that run; null: the model group of the same name.",
        default=None,
        example="verifier",
    )
    base_model: str | None = option(
        "The model before any fine-tuning, for the tables; null: the model itself.",
        default=None,
        example="Qwen/Qwen3-4B",
    )
    lineage: tuple[FineTuneStep, ...] = option(
        "The fine-tuning jobs that led to the model, oldest first. Training runs set this key.",
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
        "The server's address; null: the provider's own server. A list: several servers with the same model, which "
        "share the games; each agent of a game stays at one server. `???` in a published spec: you must set the "
        "address.",
        default=None,
        example="http://127.0.0.1:8000/v1",
        type=["string", "array", "null"],
        **_ADDRESS,
        items={"type": "string", **_ADDRESS},
        minItems=1,
        maxItems=MAX_SERVERS,
    )
    api_key_env: str | None = option(
        "The environment variable with the API key. null: OPENAI_API_KEY or ANTHROPIC_API_KEY for the provider's own "
        "server, and no API key for any other server.",
        default=None,
        example="MY_SERVER_KEY",
        pattern="^[A-Za-z_][A-Za-z0-9_]*$",
        writeOnly=True,
        patternErrorMessage="a spec must not contain a key: write the name of the environment variable that holds it",
    )
    headers: Mapping[str, str] | None = option(
        "Additional headers of each call. A value is `$NAME`, where NAME is the environment variable with the "
        "header's value. nip-run treats the value as a secret.",
        default=None,
        example={"X-Team": "$TEAM_ID"},
        additionalProperties={
            "type": "string",
            "writeOnly": True,
            "pattern": r"^\x24[A-Za-z_][A-Za-z0-9_]*$",
            "patternErrorMessage": "a spec must not contain a header's value: write $NAME, the environment variable "
            "that holds it",
        },
    )
    session_id: bool | None = option(
        "Send the header `X-Session-ID`, a hash of the game and the agent, so that a router can send these calls to "
        "one server. null: send it if `base_url` is a list.",
        default=None,
        example=True,
    )
    chat_format: ChatFormat | None = option(
        "The format of chats. `openai`: the field `name` has the sender of a message, and system messages may be "
        "anywhere. `alternating`, for the chat templates of open models: the text begins with the sender, user and "
        "assistant messages alternate, and the first is the user's. null: `openai` at OpenAI's own address, otherwise "
        "`alternating`.",
        default=None,
        example="alternating",
    )
    system_role: SystemRole = option(
        "The role of instructions. OpenAI's reasoning models expect `developer`. `user`: the first user message "
        "begins with the instructions; this is the default of `alternating` chats, because some chat templates refuse "
        "or drop system messages.",
        default="system",
    )
    send_name: bool = option("Send the field `name` of messages, which some servers refuse.", default=True)
    temperature: float | None = option("The sampling temperature.", default=None, example=1.0, minimum=0)
    top_p: float | None = option(
        "The probability mass for nucleus sampling.", default=None, example=0.95, minimum=0, maximum=1
    )
    max_completion_tokens: int | None = option(
        "Maximum number of tokens of an answer, reasoning included.", default=None, example=400, minimum=1
    )
    max_tokens: int | None = option(
        "The same for servers that do not know `max_completion_tokens`.", default=None, example=400, minimum=1
    )
    n: int | None = option(
        "Number of answers to request in one call. nip-run uses the first valid answer.",
        default=None,
        example=1,
        minimum=1,
        maximum=128,
    )
    seed: int | None = option(
        "The sampling seed that the server gets. OpenAI has deprecated it, and servers may ignore it.",
        default=None,
        example=0,
    )
    stop: tuple[str, ...] | None = option(
        "Texts that end an answer, at most 4.", default=None, example=["</answer>"], maxItems=4
    )
    reasoning_effort: str | None = option(
        "For reasoning models: how much to reason, such as `low`, `medium` or `high`.", default=None, example="low"
    )
    logprobs: bool | None = option(
        "Request the log-probability of each token of an answer. nip-run stores them in the journal; for verdicts, "
        "also in the table `completions`.",
        default=None,
        example=True,
    )
    top_logprobs: int | None = option(
        "With `logprobs`: the number of most likely tokens to request for each position.",
        default=None,
        example=5,
        minimum=0,
        maximum=MAX_TOP_LOGPROBS,
    )
    extra_body: Mapping[str, Any] | None = option(
        "Other fields of the request's body. Fields that have a spec key of their own are an error.",
        default=None,
        example={"chat_template_kwargs": {"enable_thinking": False}},
    )
    constrain_decisions: bool | None = option(
        "Have the server constrain each answer of a verifier that may decide to a JSON schema, so that its decision "
        "can only be one of the verdicts. The other agents get the answer as text.",
        default=None,
        example=True,
    )
    max_reasoning_length: int | None = option(
        "With `constrain_decisions`: the maximum number of characters before a decision, for servers that support "
        "`maxLength` in JSON schemas, such as llama.cpp (at most 1999). Without it, a small model may write until the "
        "token limit and never decide.",
        default=None,
        example=400,
        minimum=1,
    )
    service_tier: str | None = option(
        "The processing tier to request, such as `flex` or `priority`. Calls cost the price of the tier that the "
        "server reports, or of the requested tier if it reports none.",
        default=None,
        example="flex",
        minLength=1,
    )
    prompt_cache_key: str | None = option(
        "For OpenAI's API: a text that routes requests with a common start to the same cache of prompts.",
        default=None,
        example="debates",
        minLength=1,
    )
    requests_per_minute: int | None = option(
        "Maximum number of requests per minute; null: the limit that the server's headers state.",
        default=None,
        example=500,
        minimum=1,
    )
    tokens_per_minute: int | None = option(
        "Maximum number of prompt and answer tokens per minute; null: the limit that the server's headers state.",
        default=None,
        example=200_000,
        minimum=1,
    )
    share_prompts: bool | None = option(
        "Request all answers to the same prompt in one call (parameter `n`), so that you pay for the prompt once. If "
        "a server refuses `n`, nip-run requests the answers one by one. null: only for the answers to one step of a "
        "tree.",
        default=None,
        example=True,
    )
    batch: bool = option(
        "Use the provider's Batch API, which costs half as much and takes up to 24 hours per round.", default=False
    )
    batch_wait: float = option(
        "For `batch`: send the collected calls if there was no new call for this number of seconds.",
        default=5.0,
        minimum=0,
    )
    batch_poll: float = option(
        "For `batch`: seconds between two checks of whether a batch is done.", default=30.0, exclusiveMinimum=0
    )
    timeout: float = option("Maximum duration of a call, in seconds.", default=600.0, exclusiveMinimum=0)
    run: str | None = option("For `replay`: the run's folder.", default=None, example="../results/runs/my-run")
    answer_words: int | None = option(
        "For `dummy`: approximate number of words of each answer; null: a sentence.",
        default=None,
        example=150,
        minimum=1,
        maximum=1_000_000,
    )
    price: Price | None = option(
        "The model's price or, with `batch: true`, the price of batches, in US dollars per million tokens. null: the "
        "price in nip-run's price list.",
        default=None,
        example={"input": 0.15, "output": 0.6},
    )

    @property
    def name(self) -> str:
        """The model's name in tables."""
        return self.model or self.provider

    @property
    def resolved_chat_format(self) -> ChatFormat:
        """The chat format. Loaded specs always set it, but settings built in Python may not."""
        return self.chat_format or "openai"

    @property
    def key_variable(self) -> str | None:
        """The environment variable of the group's API key, if any. A provider's key is sent only to its own server."""
        if not self.traits.remote:
            return None
        return self.api_key_env or (self.traits.key_variable if self.base_url is None else None)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables whose values the group's servers receive, in the API key and in headers."""
        if not self.traits.remote:
            return ()
        variables = (*(() if self.key_variable is None else (self.key_variable,)), *self.header_variables.values())
        return tuple(dict.fromkeys(variables))

    @property
    def header_variables(self) -> dict[str, str]:
        """The environment variable of each header in `headers`."""
        return {name: value.removeprefix("$") for name, value in (self.headers or {}).items()}

    @property
    def addresses(self) -> tuple[str | None, ...]:
        """The addresses of the group's servers, in the spec's order. None stands for the provider's own server."""
        return self.base_url if isinstance(self.base_url, tuple) else (self.base_url,)

    @property
    def address(self) -> str | None:
        """The address of the group's first server."""
        return self.addresses[0]

    @property
    def server_url(self) -> str:
        """The URL of the group's first server, which may be the provider's own."""
        return self.address or self.traits.base_url

    @property
    def server_urls(self) -> list[str]:
        """The URLs of all servers of the group."""
        return [address or self.traits.base_url for address in self.addresses]

    def server_label(self, group: str) -> str:
        """Return the server's URL and the name of this model group, for messages."""
        return f"{self.server_url} ({group})"

    @property
    def lacks_address(self) -> bool:
        """Whether an address was removed for publication, so that the user must set it."""
        return NOT_PUBLISHED in self.addresses

    @property
    def settings_per_server(self) -> tuple[ModelSettings, ...]:
        """A copy of these settings for each server of the group, with only this server's address."""
        if not isinstance(self.base_url, tuple):
            return (self,)
        return tuple(replace(self, base_url=address, session_id=self.sends_session_id) for address in self.base_url)

    @property
    def sends_session_id(self) -> bool:
        """Whether calls send a session id."""
        return len(self.addresses) > 1 if self.session_id is None else self.session_id

    @property
    def traits(self) -> ProviderTraits:
        """The capabilities of the group's provider."""
        return PROVIDERS[self.provider]

    @property
    def has_costs(self) -> bool:
        """Whether calls count in a budget: they cost money, or the spec sets a price for generated answers."""
        return self.traits.metered or (self.traits.generates_locally and self.price is not None)

    @property
    def is_batched(self) -> bool:
        """Whether calls are sent in batches."""
        return self.traits.takes_batches and self.batch

    @property
    def sends_requests(self) -> bool:
        """Whether each call is a separate request to a server: not answered in this process, not sent in a batch."""
        return self.traits.remote and not self.batch

    def shares_prompts(self, *, trees: bool) -> bool:
        """Return whether one call requests the answers to all equal prompts, which `trees` has at each step."""
        if self.share_prompts is None:
            return trees and self.traits.gives_many and not self.batch and "n" not in self.request_parameters
        return self.share_prompts

    @property
    def length_limit_key(self) -> str:
        """The key that limits the length of answers: the key that is set, or else the key to set."""
        return "max_completion_tokens" if self.max_tokens is None else "max_tokens"

    def limit_advice(self, group: str) -> str:
        """Return the advice about an answer that was truncated before its first word."""
        verb = "set" if getattr(self, self.length_limit_key) is None else "raise"
        return (
            "the model reached the token limit before the answer began, probably because of reasoning tokens; "
            f"{verb} models.{group}.{self.length_limit_key}"
        )

    def sent_messages(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Return the messages as this group sends them: with its instructions role and, if required, without names."""
        if self.send_name and self.system_role == "system":
            return messages
        return [self._sent_message(message) for message in messages]

    def _sent_message(self, message: ChatMessage) -> ChatMessage:
        role = self.system_role if message["role"] == "system" else message["role"]
        if self.send_name and "name" in message:
            return {"role": role, "name": message["name"], "content": message["content"]}
        return {"role": role, "content": message["content"]}

    @property
    def requested_tier(self) -> str | None:
        """The service tier that requests name, if any."""
        tier = self.service_tier or (self.extra_body or {}).get("service_tier")
        return tier if isinstance(tier, str) else None

    @cached_property
    def delivery_parameters(self) -> Mapping[str, str]:
        """The parameters of a request that affect the price and speed of an answer, but not its content."""
        parameters = {"service_tier": self.service_tier, "prompt_cache_key": self.prompt_cache_key}
        return {name: value for name, value in parameters.items() if value is not None}

    @cached_property
    def request_parameters(self) -> Mapping[str, object]:
        """The parameters of a request that affect its answer, other than the model and the messages."""
        names = (
            "temperature", "top_p", "max_completion_tokens", "max_tokens", "n", "seed", "stop", "reasoning_effort",
            "logprobs", "top_logprobs",
        )  # fmt: skip
        parameters = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if "stop" in parameters:
            parameters["stop"] = list(parameters["stop"])
        return {**parameters, **(self.extra_body or {})}
