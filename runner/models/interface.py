"""What a model is to the rest: one method, `complete(request) -> completion`."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from runner.game.prompts.chat import ChatMessage


class SampleKey(NamedTuple):
    """Which answer of which game a request is for; no two requests of a run share one."""

    datapoint: str
    repeat: int
    round: int
    agent: str
    attempt: int
    vote: int = 0
    """Which vote on one verdict, where several are asked for."""

    def fields(self) -> list[Any]:
        """What it is written as: as before there were votes, where it is the first."""
        return list(self if self.vote else self[:-1])


def session_of(sample: SampleKey) -> str:
    """What a router knows the calls of one agent in one game by: a hash, in which no name of either can be read."""
    said = f"{sample.datapoint}\0{sample.repeat}\0{sample.agent}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(said, digest_size=16, person=b"nip-run session").hexdigest()


@dataclass(frozen=True, slots=True)
class ResponseHint:
    """What the protocol expects of an answer. Only `dummy` reads it: a real model has its prompt."""

    headers: tuple[str, ...] = ()
    accept: str | None = None
    reject: str | None = None
    must_decide: bool = False
    confidence: str | None = None
    """What stands before the number, where a decision is to say how sure it is."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call: the messages for a model group, and the sample they are for."""

    group: str
    messages: Sequence[ChatMessage]
    sample: SampleKey
    seed: int = 0
    wanted: ResponseHint = ResponseHint()
    siblings: tuple[SampleKey, ...] = ()
    """Other samples that will ask exactly this: their answers may be asked for in the same call. They are of other
    repeats, and the same otherwise."""
    n: int = 1
    """How many answers are asked for, where more than one sample's are."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a completion."""

    text: str | None
    finish_reason: str | None
    refusal: str | None = None
    reasoning: str | None = None
    """What the model said to itself, where the server shows it."""


TOKEN_CLASSES = (
    "prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens",
    "audio_input_tokens", "audio_output_tokens",
)  # fmt: skip
"""The counts of a usage, as records, tables and manifests name them."""

LATER_CLASSES = TOKEN_CLASSES[3:]
"""The classes that earlier versions did not record."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a call, as the server counted them. Each further class is a part of the prompt or of the answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    """Whether a count is estimated from the text, because the server gave none, or one that cannot be true."""
    cache_write_tokens: int = 0
    """Prompt tokens that the server wrote to its cache, which some providers bill above the input price."""
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0
    service_tier: str | None = None
    """The processing tier that the server says it used."""


@dataclass(frozen=True, slots=True)
class Body:
    """A server's answer, whole: valid JSON in one line, equal in value to what came but for what `altered` tells."""

    json: bytes
    is_deep: bool = False
    """Whether it is nested deeper than every reader of JSON goes."""
    choice: int | None = None
    """Which of its choices is this sample's, where others are those of other samples."""
    is_shared: bool = False
    """Whether its tokens are counted with another sample's answer."""
    has_model: bool = True
    """Whether it says which model gave it."""
    has_usage: bool = True
    """Whether the usage in it is the call's: False if it is missing, or was corrected."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back: answers, the model that the server says gave them, tokens, and the server's answer as a whole."""

    choices: tuple[Choice, ...]
    model: str
    usage: Usage = Usage()
    latency_ms: float = 0.0
    from_cache: bool = False
    """Whether it was paid for elsewhere: by another run, or as another sample's part of one call."""
    other: dict[str, Any] = field(default_factory=dict)
    """Other fields of an answer of which an earlier version did not keep the whole."""
    altered: tuple[str, ...] = ()
    """What was changed in it on arrival: `bytes` that are no text (now U+FFFD) or no JSON, or a number too large to be
    read (now null); a `secret` that was removed; more `choices` than were requested, which were removed."""
    body: Body | None = None
    """None where no server gave it, or an earlier version did not keep it."""
    origin: str | None = None
    """Number of the journal (or id of the run) that this answer was copied from; None: this run asked for it itself."""


Complete = Callable[[Request], Awaitable[Completion]]
"""Asks a model. Raises a `CallError` or a `ProviderRefusal`."""


class Provider(Protocol):
    """Answers requests until it is closed."""

    @property
    def complete(self) -> Complete: ...

    async def close(self) -> None: ...


def estimated_tokens(text: str) -> int:
    """A rough count, for servers that report none and for prices before a run: four bytes a token."""
    return byte_length(text) // 4 + 1


def byte_length(text: str) -> int:
    """The length of a text in UTF-8; of most texts it is known without encoding them."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def estimated_prompt_tokens(messages: Sequence[ChatMessage]) -> int:
    return sum(estimated_tokens(message["content"]) + 4 for message in messages)
