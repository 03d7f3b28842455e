"""The interface of models for all other packages: one function, `complete(request) -> completion`.

All providers and layers share these types of requests, completions and token counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from runner.base.value_class import value_class

if TYPE_CHECKING:
    from runner.game.prompts.chat import ChatMessage


FUNCTION_SUFFIXES = (".checker", ".function")
"""Ends of the agent's name in samples that functions answer: labels of answers, and selections of candidates."""


class SampleKey(NamedTuple):
    """Identifies a sample: a request of a run and the answer to it, by game, round, agent and attempt.

    A game is identified by its datapoint and its repeat. An attempt is another request after an unusable answer.
    """

    datapoint: str
    repeat: int
    round: int
    agent: str
    attempt: int
    vote: int = 0
    """Index of the vote, if a verdict needs several votes, or of the candidate, if an answer is chosen from several."""

    def fields(self) -> list[Any]:
        """Return the key as a list for records. Vote 0 is left out, because earlier versions had no votes."""
        return list(self if self.vote else self[:-1])

    @property
    def calls_function(self) -> bool:
        """Whether a Python function of the user answers, not a model."""
        return self.agent.endswith(FUNCTION_SUFFIXES)


def session_id_of(sample: SampleKey) -> str:
    """Return the session id of an agent in a game, for routers. It is a hash, so it reveals no names."""
    identity = f"{sample.datapoint}\0{sample.repeat}\0{sample.agent}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(identity, digest_size=16, person=b"nip-run session").hexdigest()


@value_class(frozen=True, slots=True)
class ResponseHint:
    """The format of the expected answer, for `dummy`. Other models learn it from the prompt."""

    headers: tuple[str, ...] = ()
    """The text that starts the message to each channel, if the agent speaks in several channels."""
    accept: str | None = None
    """The text of an accepting verdict, if the agent may decide."""
    reject: str | None = None
    """The text of a rejecting verdict, if the agent may decide."""
    must_decide: bool = False
    confidence: str | None = None
    """The text before the confidence, if a verdict must state one."""
    scratchpad: str | None = None
    """The text that ends the private notes, if the agent has any."""
    number: tuple[str, int] | None = None
    """The text before a number that the answer must state, and the highest number."""
    source: str | None = None
    """The text to quote, if the protocol checks quotes and the agent may see the text."""
    answer_order: tuple[int, ...] | None = None
    """The indices of the listed answers in the order of the game, if the agent may choose one of them."""
    answer_marker: str = ""
    """The text before the letter of the chosen answer, or before the numbers of all answers."""
    form: str = "answer"
    """The kind of text after the marker; see the spec key `verdict.form`."""
    states: tuple[str, int] | None = None
    """The statement that the message must have (`answer`, `claims` or `estimates`), and the number of sub-claims."""


@value_class(frozen=True)
class Request:
    """A call to a model group: the messages, and the sample that needs the answer."""

    group: str
    messages: Sequence[ChatMessage]
    sample: SampleKey
    seed: int = 0
    hint: ResponseHint = ResponseHint()
    siblings: tuple[SampleKey, ...] = ()
    """The samples of other repeats or candidates with an identical request. One call can request all answers."""
    n: int = 1
    """Number of answers to request; more than 1 if one call is for several samples."""
    schema: Mapping[str, Any] | None = None
    """The JSON schema that the server must enforce for the answer, if any."""

    @cached_property
    def prompt_bytes(self) -> int:
        """The length of all messages in UTF-8."""
        return sum([byte_length(message["content"]) for message in self.messages])


@value_class(frozen=True, slots=True)
class Choice:
    """One answer of a completion."""

    text: str | None
    finish_reason: str | None
    refusal: str | None = None
    reasoning: str | None = None
    """The model's reasoning, if the server returns it."""


@value_class(frozen=True, slots=True)
class Usage:
    """The tokens of a call, as the server counted them.

    The prompt tokens and the completion (answer) tokens include all other counts.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    """Whether a count is estimated from the text, because the server's count is missing or impossible."""
    cache_write_tokens: int = 0
    """Prompt tokens that the server wrote to its cache. Some providers bill them above the input price."""
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0
    service_tier: str | None = None
    """The processing tier: as the server reported it or, if it reported none, as the request named it."""


@value_class(frozen=True, slots=True)
class Body:
    """A server's complete answer as JSON in one line. `Completion.altered` lists all changes to it."""

    json: bytes
    is_deep: bool = False
    """Whether the JSON is nested more deeply than some readers allow."""
    choice: int | None = None
    """Index of the sample's own choice, if the other choices belong to other samples."""
    is_shared: bool = False
    """Whether the tokens are counted with another sample's answer."""
    has_model: bool = True
    """Whether the answer names the model."""
    has_usage: bool = True
    """Whether the usage in the answer is complete and correct, so that the record needs no usage of its own."""


@value_class(frozen=True, slots=True)
class Completion:
    """The result of a call: the choices, the model's name, the usage, and the server's complete answer."""

    choices: tuple[Choice, ...]
    model: str
    usage: Usage = Usage()
    latency_ms: float = 0.0
    from_cache: bool = False
    """Whether this answer costs nothing, because another run or the call of another sample has paid for it."""
    other_fields: dict[str, Any] = field(default_factory=dict)
    """Other fields of the answer. Records of earlier versions have these instead of the complete answer."""
    altered: tuple[str, ...] = ()
    """The kinds of changes that were made to the answer on arrival.

    `bytes`: bytes that are not UTF-8 were replaced by U+FFFD, invalid JSON was repaired, or a number that is too large
    was replaced by null. `secret`: a secret was removed. `choices`: more choices than requested were removed.
    """
    body: Body | None = None
    """The server's complete answer; None if there was no server, or if an earlier version did not store it."""
    origin: str | None = None
    """The number or the run id of the journal that had this answer first; None for a call of this run."""


Complete = Callable[[Request], Awaitable[Completion]]
"""Calls a model. Raises a `CallError` or a `ProviderRefusal`."""


class Provider(Protocol):
    """A model that answers requests until it is closed."""

    @property
    def complete(self) -> Complete: ...

    async def close(self) -> None: ...


def estimate_tokens(text: str) -> int:
    """Return an estimate of a text's tokens: one per four bytes."""
    return byte_length(text) // 4 + 1


def byte_length(text: str) -> int:
    """Return the length of a text in UTF-8, which for ASCII needs no encoding."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def estimate_prompt_tokens(messages: Sequence[ChatMessage]) -> int:
    return sum(estimate_tokens(message["content"]) + 4 for message in messages)
