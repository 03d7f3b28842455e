"""The exceptions of nip-run, the exit code of each, and the problems that a document can have.

The tree; an exception without an exit code has that of the one above it:

    NipRunError                     exit 1
    ├── UsageError                  exit 2: the command line cannot be understood
    │   └── QuestionError               a question in SQL is wrong
    ├── SpecError                   exit 2: carries every problem of every file at once
    ├── RunError                    the run failed; what was paid for is kept
    │   ├── TemplateFailedError         a prompt template fails when it is rendered
    │   ├── RunDirectoryError           the run directory is in use, or is another spec's
    │   ├── DamagedRunError             a file of a finished run is missing, or was changed
    │   ├── JournalError                the journal is damaged, or cannot be written
    │   ├── FolderGoneError             the run directory was deleted, moved or replaced while the run went on
    │   ├── LeaderboardError            the leaderboard is locked, or cannot be read
    │   ├── NewerFormatError            a file was written by a newer nip-run
    │   ├── MergeError                  the parts of a run cannot be made one: carries all that is wrong at once
    │   ├── ServerUnreachable           a server did not answer call after call
    │   ├── TooManyUnusable             more answers cannot be used than rollouts.max_unusable allows
    │   ├── ReleaseError                what a registry holds is damaged, or is not what it says
    │   │   ├── NotPublished                it has no such release
    │   │   └── TakenError                  the name and version are another release's, for ever
    │   └── Waiting                     a training run goes on when somebody has trained a model by hand
    ├── BudgetExhausted             exit 3
    ├── Interrupted                 exit 130
    ├── ProviderRefusal             exit 4: key, billing, unknown model, refused parameter
    ├── CallError                   one call to a model failed; classified where it happened
    │   ├── TransientError              rate limits, time-outs, resets, 5xx
    │   ├── SeveralRefusedError         the server gives no more than one answer to a call
    │   ├── ContextExceededError        the prompt is longer than the model's context
    │   ├── RefusedError                a policy refused the prompt
    │   └── MalformedError              the server refuses this request as malformed, and takes others
    ├── GenerationError             an answer came that cannot be used
    │   ├── ContentFilterError
    │   ├── ContentIsNoneError
    │   ├── UnknownFinishReasonError
    │   └── InvalidResponseError
    │       ├── InvalidDecisionError
    │       │   └── InvalidConfidenceError
    │       └── NotAllActiveChannelsInResponseError
    └── AgentNotActiveInChannelError
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from runner.base.exit_codes import ExitCode


class NipRunError(Exception):
    """Anything that nip-run itself reports."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    told: frozenset[str] = frozenset()
    """Those of its lines that a person has been told already."""

    def lines(self) -> list[str]:
        """What the user is told: the message, then the notes that were added on the way up."""
        return [str(self), *getattr(self, "__notes__", ())]

    def with_notes(self, notes: Iterable[str]) -> Self:
        """The same error, with more lines to tell."""
        for note in notes:
            self.add_note(note)
        return self


class UsageError(NipRunError):
    """The command line cannot be understood."""

    exit_code = ExitCode.USAGE


class QuestionError(UsageError):
    """A question in SQL is wrong: what, and where in it and what to do, as far as that is known.

    Lines and columns count from 1.
    """

    def __init__(
        self, message: str, what: str, *, line: int | None = None, column: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.what, self.line, self.column, self.hint = what, line, column, hint


@dataclass(frozen=True, order=True)
class Place:
    """Where in a document something stands; lines and columns count from 1."""

    file: str
    line: int = 1
    column: int = 1
    is_own: bool = field(default=True, compare=False)
    """Whether the file is the spec's own, or was named by the user: of another, nothing that stands in it is told."""
    source: str | None = field(default=None, compare=False, repr=False)
    """The line as it stands in the file, where a message may quote it."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOT_SHOWN = (
    "what stands there is not shown, because the file is outside the folder tree of the spec (its git checkout, or the "
    "current folder where that holds it, else its own folder), or extends one that is"
)


_WHAT = re.compile(r"""(?s:(?<!\w)'(?:[^'\\]|\\.)*'|(?<!\w)"(?:[^"\\]|\\.)*"|`[^`]*`|(?!;\ ).)*""", re.VERBOSE)
"""A message up to the first `; ` that is not in quotes."""


def split_message(message: str) -> tuple[str, str | None]:
    """What is wrong, and the next step where the message says one."""
    found = _WHAT.match(message)
    end = found.end() if found else len(message)
    return message[:end], message[end:].removeprefix("; ") or None


PlaceOf = Callable[[str], Place]
"""A dotted key into the place that set it."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, with which key, and what to do about it.

    `message` is what is wrong, then `; ` and the next step where there is one. `kind` says what is wrong without a
    word of what stands there. It is all that is told of a problem in a file which is not the spec's own: a hostile spec
    may name any file, and its text must not come out with the message.
    """

    place: Place
    key: str
    message: str
    kind: str = field(default="it cannot be used", compare=False)

    def as_told(self) -> Problem:
        """The problem as a user may see it."""
        if self.place.is_own:
            return self
        return replace(self, place=replace(self.place, source=None), key="", message=f"{self.kind}; {NOT_SHOWN}")

    @property
    def what(self) -> str:
        """What is wrong, without the next step."""
        return split_message(self.message)[0]

    @property
    def hint(self) -> str | None:
        """What to do next."""
        return split_message(self.message)[1]

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.message}" if self.key else f"{self.place}: {self.message}"


class SpecError(NipRunError):
    """Everything that is wrong with a spec and the files it names."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(
            sorted({problem.as_told() for problem in problems}, key=lambda p: (p.place, p.key, p.message))
        )
        super().__init__("\n".join(map(str, self.problems)))

    def lines(self) -> list[str]:
        return [*map(str, self.problems), *super().lines()[1:]]

    def __reduce__(self) -> tuple[type[SpecError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class RunError(NipRunError):
    """The run failed; everything that was paid for is kept."""


class TemplateFailedError(RunError):
    """A prompt template fails when it is rendered. `line` counts from 1; None where the failure has no line."""

    template = ""
    reason = ""
    line: int | None = None

    @classmethod
    def of_template(cls, template: str, reason: str, line: int | None) -> Self:
        error = cls(f"template {template!r} {reason}")
        error.template, error.reason, error.line = template, reason, line
        return error


class RunDirectoryError(RunError):
    """The run directory is in use by another process, or belongs to another spec."""


class DamagedRunError(RunError):
    """A file of a finished run is missing, or is not the one that the run wrote."""


class JournalError(RunError):
    """The journal is damaged or cannot be written."""


class FolderGoneError(RunError):
    """The run directory was deleted, moved or replaced while the run went on; `now` is where its file is, if known."""

    def __init__(self, message: str, now: Path | None = None) -> None:
        super().__init__(message)
        self.now = now


class LeaderboardError(RunError):
    """The leaderboard file is locked or cannot be read."""


class NewerFormatError(RunError):
    """A file was written by a newer nip-run, in a format that this one does not know."""


class MergeError(RunError):
    """The parts of a run cannot be made one; `problems` are all that is wrong with them."""

    def __init__(self, run_id: str, problems: Sequence[str]) -> None:
        self.run_id, self.problems = run_id, tuple(problems)
        super().__init__(run_id, self.problems)

    def __str__(self) -> str:
        many = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return f"run {self.run_id} cannot be merged: {many}; nothing was changed"

    def lines(self) -> list[str]:
        """The problems below the message, one a line."""
        first, *notes = super().lines()
        return [first, *self.problems, *notes]


class ServerUnreachable(RunError):
    """A server that is asked for completions is down."""


class TooManyUnusable(RunError):
    """More answers cannot be used than `rollouts.max_unusable` allows; the same command resumes."""


class ReleaseError(RunError):
    """What a registry holds, or what was got from one, is damaged, or is not what it says."""


class NotPublished(ReleaseError):
    """A registry has no such release."""


class TakenError(ReleaseError):
    """A name and version that another release has, for ever."""

    added: tuple[str, ...] = ()
    """What was added before that was found, by the folders of a registry."""


class Waiting(RunError):
    """A training run goes on when somebody has trained models by hand: those of `groups`."""

    def __init__(self, message: str, groups: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.groups = tuple(groups)


class BudgetExhausted(NipRunError):
    """The budget does not allow another call.

    `key` is the key of the spec that sets its limit, and `used` what of that was spent (`7 of 7 completions`).
    """

    exit_code = ExitCode.BUDGET

    def __init__(self, message: str = "", *, key: str | None = None, used: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.used = used


class Interrupted(NipRunError):
    """A signal stopped the run; what was paid for is kept."""

    exit_code = ExitCode.INTERRUPTED


class ProviderRefusal(NipRunError):
    """The provider refuses to serve us: key, billing, unknown model, refused parameter.

    `of_one_call` is what the failure is if other requests of the model group are taken; None: none will be. `changes`
    are the keys of the spec to change before the same is tried again, each with its new value where one is advised.
    `no_such_model` says that the provider knows no model of this name, or no longer.
    """

    exit_code = ExitCode.REFUSED

    def __init__(
        self,
        message: str = "",
        *,
        of_one_call: CallError | None = None,
        changes: Mapping[str, str | None] = MappingProxyType({}),
        no_such_model: bool = False,
    ) -> None:
        super().__init__(message)
        self.of_one_call = of_one_call
        self.changes = changes
        self.no_such_model = no_such_model


class CallError(NipRunError):
    """One call to a model failed. `retry_after` is what the server asked for, in seconds.

    `usage` is what the failed answer counts (a `runner.models.interface.Usage`), which may be billed all the same.
    """

    usage: Any = None

    def __init__(self, message: str, *, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status


class TransientError(CallError):
    """A rate limit, a time-out, a lost connection or a failure of the server.

    `attempts` is how many there should be in all, where that is known to be fewer than a policy allows; `unreachable`
    says that no connection was made.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        status: int | None = None,
        attempts: int | None = None,
        unreachable: bool = False,
    ) -> None:
        super().__init__(message, retry_after=retry_after, status=status)
        self.attempts = attempts
        self.unreachable = unreachable


class SeveralRefusedError(CallError):
    """The server gives no more than one answer to a call; it may be asked for one."""


class ContextExceededError(CallError):
    """The prompt is longer than the model's context."""


class RefusedError(CallError):
    """A policy of the provider refused the prompt."""


class MalformedError(CallError):
    """The server refuses this request as malformed, and takes others of its model group."""


class GenerationError(NipRunError):
    """The model answered, and the answer cannot be used. `num_retries` counts the calls made."""

    def __init__(self, message: str = "", *, num_retries: int | None = None) -> None:
        super().__init__(message)
        self.num_retries = num_retries

    def after(self, num_retries: int) -> Self:
        """The same failure, as the last of this many calls."""
        return type(self)(str(self), num_retries=num_retries)


class ContentFilterError(GenerationError):
    """The provider's content filter cut the answer."""


class ContentIsNoneError(GenerationError):
    """The answer has no content."""


class UnknownFinishReasonError(GenerationError):
    """The answer ended for a reason that is neither `stop` nor `length`."""


class InvalidResponseError(GenerationError):
    """The answer does not follow the wire format of the protocol."""


class InvalidDecisionError(InvalidResponseError):
    """The answer announces a decision, and is neither an accept nor a reject."""


class InvalidConfidenceError(InvalidDecisionError):
    """The answer decides, and does not say how sure it is, or not in one readable number."""


class NotAllActiveChannelsInResponseError(InvalidResponseError):
    """The answer lacks a message for a channel in which the agent must speak."""


class AgentNotActiveInChannelError(NipRunError, ValueError):
    """An agent was asked to speak, or to have spoken, where it does not."""
