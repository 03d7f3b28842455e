"""The events of a run's calls. The layers around the providers report them to the progress display, costs and notes."""

from __future__ import annotations

from runner.base.errors import CallError
from runner.models.interface import Completion, Request, SampleKey


class CallEvents:
    """Receives events. Every method does nothing unless a subclass overrides it."""

    def sending(self, request: Request) -> None:
        """A call is about to be sent. A subclass may raise an error to prevent the call."""

    async def failed(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        """An attempt failed. `wait` is the delay in seconds before the next attempt; negative if this was the last."""

    def server_status_changed(self, server: str, problem: str | None) -> None:
        """A server stopped answering for the reason `problem` or, if `problem` is None, answers again."""

    def server_differs(self, group: str, server: str, refused_calls: int, error_text: str) -> None:
        """Other servers of a group answered `refused_calls` calls that this server refused with `error_text`."""

    def recorded(self, request: Request, completion: Completion) -> None:
        """A new answer is on disk. `request.n` is the number of answers that the call requested."""

    def settled(self, sample: SampleKey) -> None:
        """A call has ended with an answer or an error, and its record is on disk."""

    def refused(self, sample: SampleKey) -> None:
        """The provider refused a call, which stops the run. The call has no record."""

    def returned_fewer_answers(self, request: Request) -> None:
        """A call returned fewer answers than it requested."""

    def answered(self, request: Request, completion: Completion) -> None:
        """A game received its answer, from any source."""


NO_EVENTS = CallEvents()
"""A receiver that ignores all events."""
