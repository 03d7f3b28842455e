"""The interface of a model for all other packages: one method, `complete(request) -> completion`."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from runner.game.prompts.chat import ChatMessage


class SampleKey(NamedTuple):
    """Identifies the answer that a request asks for. No two requests of a run have the same key."""

    datapoint: str
    repeat: int
    round: int
    agent: str
    attempt: int
    vote: int = 0
    """Index of the vote, if a verdict is the result of several votes."""

    def fields(self) -> list[Any]:
        """Return the key as a list for records. The first vote is left out, as in versions that had no votes."""
        return list(self if self.vote else self[:-1])


def session_id_of(sample: SampleKey) -> str:
    """Return the session id of an agent in a game, for routers. It is a hash that reveals neither name."""
    identity = f"{sample.datapoint}\0{sample.repeat}\0{sample.agent}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(identity, digest_size=16, person=b"nip-run session").hexdigest()


@dataclass(frozen=True, slots=True)
class ResponseHint:
    """The form that the protocol expects of an answer. Only `dummy` reads it: a real model has its prompt."""

    headers: tuple[str, ...] = ()
    accept: str | None = None
    reject: str | None = None
    must_decide: bool = False
    confidence: str | None = None
    """The text before the number, if a decision must state its confidence."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call: the messages for a model group, and the sample that needs the answer."""

    group: str
    messages: Sequence[ChatMessage]
    sample: SampleKey
    seed: int = 0
    hint: ResponseHint = ResponseHint()
    siblings: tuple[SampleKey, ...] = ()
    """Samples of other repeats that will send an identical request, so that one call can ask for all their answers."""
    n: int = 1
    """Number of answers to ask for; more than 1 if one call serves several samples."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a completion."""

    text: str | None
    finish_reason: str | None
    refusal: str | None = None
    reasoning: str | None = None
    """The model's reasoning, if the server returns it."""


TOKEN_CLASSES = (
    "prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens",
    "audio_input_tokens", "audio_output_tokens",
)  # fmt: skip
"""Token counts of a usage, by the names that records, tables and manifests use."""

LATER_CLASSES = TOKEN_CLASSES[3:]
"""Token counts that earlier versions did not record."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a call, as the server counted them. Later counts are parts of the prompt or of the answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    """True if a count is estimated from the text, because the server's count is missing or impossible."""
    cache_write_tokens: int = 0
    """Prompt tokens that the server wrote to its cache. Some providers bill them above the input price."""
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0
    service_tier: str | None = None
    """The processing tier that the server reported."""


@dataclass(frozen=True, slots=True)
class Body:
    """A server's complete answer as JSON in one line. Its values equal those received, except as `altered` states."""

    json: bytes
    is_deep: bool = False
    """True if it is nested more deeply than some JSON readers allow."""
    choice: int | None = None
    """Index of this sample's choice, if the others belong to other samples."""
    is_shared: bool = False
    """True if its tokens are counted with another sample's answer."""
    has_model: bool = True
    """True if it names the model that answered."""
    has_usage: bool = True
    """True if the usage in it is the call's: False if it is missing or was corrected."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of a call: answers, the model that the server names, tokens, and the server's complete answer."""

    choices: tuple[Choice, ...]
    model: str
    usage: Usage = Usage()
    latency_ms: float = 0.0
    from_cache: bool = False
    """True if it was paid for elsewhere: by another run, or in a call that another sample made."""
    other_fields: dict[str, Any] = field(default_factory=dict)
    """Other fields of the answer, in records of a version that did not store the complete answer."""
    altered: tuple[str, ...] = ()
    """Names of the changes made on arrival. `bytes`: bytes that are not text (now U+FFFD) or not JSON, or a number too
    large to be read (now null). `secret`: a removed secret. `choices`: removed choices beyond the requested ones."""
    body: Body | None = None
    """The server's complete answer; None if there was no server, or an earlier version did not store it."""
    origin: str | None = None
    """Number of the journal (or id of the run) that this answer was copied from; None if this run called the model."""


Complete = Callable[[Request], Awaitable[Completion]]
"""Calls a model. Raises a `CallError` or a `ProviderRefusal`."""


class Provider(Protocol):
    """A model that answers requests until it is closed."""

    @property
    def complete(self) -> Complete: ...

    async def close(self) -> None: ...


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text as one per four bytes, for servers that report none and for prices before a run."""
    return byte_length(text) // 4 + 1


def byte_length(text: str) -> int:
    """Return the length of a text in UTF-8, without encoding it if it is ASCII."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def estimated_prompt_tokens(messages: Sequence[ChatMessage]) -> int:
    return sum(estimated_tokens(message["content"]) + 4 for message in messages)
