"""The exceptions of nip-run, and the exit code of each.

This module imports little, so that every command can import it before the command is parsed.

An exception without an exit code in this tree has the code of its base class:

    NipRunError                     exit 1
    ├── UsageError                  exit 2: the command line cannot be understood
    │   ├── UnknownValueError           the data do not determine the value of a metric
    │   └── QueryError                  a SQL query is wrong
    ├── SpecError                   exit 2: carries every problem of every file at once
    ├── RunError                    the run failed; paid answers are stored
    │   ├── TemplateFailedError         a prompt template fails when it is rendered
    │   ├── RunDirectoryError           the run directory is in use, or belongs to another spec
    │   ├── DamagedRunError             a file of a finished run is missing or was changed
    │   ├── JournalError                the journal is damaged, or cannot be written
    │   ├── FolderGoneError             the run directory was deleted, moved or replaced during the run
    │   ├── LeaderboardError            the leaderboard is locked, or cannot be read
    │   ├── NewerFormatError            a file was written by a newer version of nip-run
    │   ├── MergeError                  the parts of a run cannot be merged; carries every problem at once
    │   ├── ServerUnreachable           a server did not answer call after call
    │   ├── TooManyUnusable             more answers are unusable than rollouts.max_unusable allows
    │   ├── ReleaseError                a release is damaged, or its content does not match its name
    │   │   ├── NotFoundError               the registry has no such release, account, upload, ...
    │   │   └── TakenError                  the name and version belong to another release
    │   └── Waiting                     a training run waits until the user has trained a model by hand
    ├── BudgetExhausted             exit 3
    ├── Interrupted                 exit 130
    ├── Stopped                     raised instead of sending a request after the run was asked to stop
    ├── ProviderRefusal             exit 4: key, billing, unknown model, refused parameter
    ├── CallError                   one call to a model failed; classified where it happened
    │   ├── TransientError              rate limits, time-outs, resets, 5xx
    │   │   └── CheckerError                the function that labels answers failed
    │   ├── SeveralRefusedError         the server returns only one answer per call
    │   ├── ContextExceededError        the prompt is longer than the model's context
    │   ├── RefusedError                a policy refused the prompt
    │   └── MalformedError              the server rejects this request as malformed, but accepts others
    ├── GenerationError             the model answered, but the answer is unusable
    │   ├── ContentFilterError
    │   ├── ContentIsNoneError
    │   ├── UnknownFinishReasonError
    │   └── InvalidResponseError
    │       ├── InvalidDecisionError
    │       │   └── InvalidConfidenceError
    │       ├── NotAllActiveChannelsInResponseError
    │       ├── ScratchpadError
    │       ├── StatementError
    │       └── WordLimitError
    └── AgentNotActiveInChannelError
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from runner.base.exit_codes import ExitCode

ANSWERS_ARE_SAVED = "All answers so far are saved in the run's journal and are not paid for again"
"""A sentence of messages about an interrupted or failed run, before or after the advice on how to resume it."""

if TYPE_CHECKING:
    from runner.base.problems import Problem


class NipRunError(Exception):
    """Base class of every error that nip-run reports."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    printed_lines: frozenset[str] = frozenset()
    """Lines of this error that were already printed, and are not printed again."""

    def lines(self) -> list[str]:
        """Return the lines for the user: the message, then the notes added on the way up."""
        return [str(self), *getattr(self, "__notes__", ())]

    def with_notes(self, notes: Iterable[str]) -> Self:
        """Add notes to this error and return it."""
        for note in notes:
            self.add_note(note)
        return self


class UsageError(NipRunError):
    """The command line cannot be understood."""

    exit_code = ExitCode.USAGE


class UnknownValueError(UsageError):
    """The data do not determine the value of a metric, such as a rate of rare events in a few games."""


class QueryError(UsageError):
    """A SQL query is wrong. `what` names the fault; `line`, `column` and `hint` are its position and the next step.

    Lines and columns count from 1.
    """

    def __init__(
        self, message: str, what: str, *, line: int | None = None, column: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.what, self.line, self.column, self.hint = what, line, column, hint


class SpecError(NipRunError):
    """A spec, or a file that it names, has errors. `problems` has all of them, sorted by place."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(
            sorted({problem.for_user() for problem in problems}, key=lambda p: (p.place, p.key, p.message))
        )
        super().__init__("\n".join(map(str, self.problems)))

    def lines(self) -> list[str]:
        return [*map(str, self.problems), *super().lines()[1:]]

    def __reduce__(self) -> tuple[type[SpecError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class RunError(NipRunError):
    """The run failed. Every answer that was paid for is stored."""


class TemplateFailedError(RunError):
    """A prompt template fails when it is rendered. `line` counts from 1, None if the failure has no line."""

    template = ""
    reason = ""
    line: int | None = None

    @classmethod
    def from_template(cls, template: str, reason: str, line: int | None) -> Self:
        """Build the error for a template that failed for `reason`."""
        error = cls(f"template {template!r} {reason}")
        error.template, error.reason, error.line = template, reason, line
        return error


class RunDirectoryError(RunError):
    """The run directory is in use by another process, or belongs to another spec."""


class DamagedRunError(RunError):
    """A file of a finished run is missing, or differs from the file that the run wrote."""


class JournalError(RunError):
    """The journal is damaged or cannot be written."""


class FolderGoneError(RunError):
    """The run directory was deleted, moved or replaced during the run. `now` is the journal's new path, if known."""

    def __init__(self, message: str, now: Path | None = None) -> None:
        super().__init__(message)
        self.now = now


class LeaderboardError(RunError):
    """The leaderboard file is locked or cannot be read."""


class NewerFormatError(RunError):
    """A newer version of nip-run wrote the file in a format that this version does not know."""


class MergeError(RunError):
    """The parts of a run cannot be merged. `problems` lists every reason."""

    def __init__(self, run_id: str, problems: Sequence[str]) -> None:
        self.run_id, self.problems = run_id, tuple(problems)
        super().__init__(run_id, self.problems)

    def __str__(self) -> str:
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return f"run {self.run_id} cannot be merged: {count}; nothing was changed"

    def lines(self) -> list[str]:
        """Return the message, then the problems, one per line, then the notes."""
        first, *notes = super().lines()
        return [first, *self.problems, *notes]


class ServerUnreachable(RunError):
    """A model server is down, or answers no call of a model."""


class TooManyUnusable(RunError):
    """More answers are unusable than `rollouts.max_unusable` allows. The same command resumes the run."""


class ReleaseError(RunError):
    """A release in a registry, or a downloaded one, is damaged, or its content does not match its name."""


class NotFoundError(ReleaseError):
    """A registry has no such release, file, account, organization, upload or competition."""


class TakenError(ReleaseError):
    """A name is already taken: an account, a competition, or the name and version of another release."""

    added: tuple[str, ...] = ()
    """The files that a registry folder had already added when the conflict was detected."""


class Waiting(RunError):
    """A training run waits until the user has trained the models of `groups` by hand."""

    def __init__(self, message: str, groups: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.groups = tuple(groups)


class BudgetExhausted(NipRunError):
    """The budget does not allow another call.

    `key` is the spec key of the limit, and `used` is the part that was spent, such as `7 of 7 completions`.
    """

    exit_code = ExitCode.BUDGET

    def __init__(self, message: str = "", *, key: str | None = None, used: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.used = used


class Interrupted(NipRunError):
    """A signal stopped the run. Every answer that was paid for is saved."""

    exit_code = ExitCode.INTERRUPTED


class Stopped(NipRunError):
    """Raised instead of sending a request, after the run was asked to stop."""


class ProviderRefusal(NipRunError):
    """The provider refuses to serve the user: key, billing, unknown model, refused parameter.

    `of_one_call` is the error of this call if the provider still accepts other requests of the model group, and None
    if it refuses all of them. `changes` has the spec keys that must change before a retry, each with the advised value
    or None. `no_such_model` is true if the provider does not know the model's name, or no longer does.
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
    """One call to a model failed. `retry_after` is the delay that the server asked for, in seconds.

    `usage` is the token usage of the failed answer (a `runner.models.interface.Usage`), which may still be billed.
    """

    usage: Any = None

    def __init__(self, message: str, *, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status


class TransientError(CallError):
    """A rate limit, a time-out, a lost connection or a failure of the server.

    `attempts` is the total number of attempts, if this failure allows fewer than the retry policy; `unreachable` is
    true if no connection was established.
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


class CheckerError(TransientError):
    """The function that labels answers failed, so that the game has no label. Resuming the run calls it again."""


class SeveralRefusedError(CallError):
    """The server returns only one answer per call; the caller can request the answers one by one."""


class ContextExceededError(CallError):
    """The prompt is longer than the model's context."""


class RefusedError(CallError):
    """A policy of the provider refused the prompt."""


class MalformedError(CallError):
    """The server rejects this request as malformed, but accepts other requests of its model group."""


class GenerationError(NipRunError):
    """The model answered, but the answer is unusable. `num_retries` counts the calls made."""

    def __init__(self, message: str = "", *, num_retries: int | None = None) -> None:
        super().__init__(message)
        self.num_retries = num_retries

    def after(self, num_retries: int) -> Self:
        """Return the same failure as the last of `num_retries` calls."""
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
    """The answer announces a decision, but has none that can be read."""


class InvalidConfidenceError(InvalidDecisionError):
    """The answer has a decision, but does not state a confidence as one readable number."""


class NotAllActiveChannelsInResponseError(InvalidResponseError):
    """The answer lacks a message for a channel where the agent must speak."""


class ScratchpadError(InvalidResponseError):
    """An answer does not separate the agent's private notes from its message."""


class StatementError(InvalidResponseError):
    """A message does not state an answer, sub-claims or probabilities in the form that the protocol requires."""


class WordLimitError(InvalidResponseError):
    """An answer has more visible words than the protocol allows."""


class AgentNotActiveInChannelError(NipRunError, ValueError):
    """The caller requested an agent's message in a channel where the agent is not active."""


@contextmanager
def os_errors_as(error_class: Callable[[str], Exception], subject: str, advice: str = "") -> Iterator[None]:
    """Raise an OSError of this block as an error with the message "SUBJECT: REASON", followed by the advice."""
    try:
        yield
    except OSError as error:
        raise error_class(f"{subject}: {error.strerror or error}{advice}") from error


@contextmanager
def errors_as(
    error_class: Callable[[str], Exception], subject: str, *caught: type[Exception], advice: str = ""
) -> Iterator[None]:
    """Raise `caught` exceptions of this block as an error with the message "SUBJECT: MESSAGE", then the advice."""
    try:
        yield
    except caught as error:
        raise error_class(f"{subject}: {error}{advice}") from error
