"""The events of a run's calls. The layers around the providers report them to the progress display, costs and notes."""

from __future__ import annotations

from runner.base.errors import CallError
from runner.models.interface import Completion, Request, SampleKey


class CallEvents:
    """Receives the events of calls. Every method does nothing unless a subclass overrides it."""

    def before_call(self, request: Request) -> None:
        """Called before each attempt of a call. A subclass may raise an error to prevent the attempt."""

    async def on_failure(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        """Called after a failed attempt. `wait` has the seconds before the next one; negative if it was the last."""

    def on_server_status(self, server: str, problem: str | None) -> None:
        """Called when a server stops answering, with the reason, and with None when it answers again."""

    def on_server_difference(self, group: str, server: str, refused_calls: int, error_text: str) -> None:
        """Called when other servers of a group have answered calls that this server refused with `error_text`."""

    def on_recorded(self, request: Request, completion: Completion) -> None:
        """Called when a new answer is on disk. `request.n` is the number of answers that the call requested."""

    def on_settled(self, sample: SampleKey) -> None:
        """Called when a call has ended with an answer or an error, and its record is on disk."""

    def on_refused(self, sample: SampleKey) -> None:
        """Called when the provider refuses a call so that the run stops. The call has no record."""

    def on_fewer_answers(self, request: Request) -> None:
        """Called when a call returns fewer answers than it requested."""

    def on_answer(self, request: Request, completion: Completion) -> None:
        """Called when a game gets its answer, from any source."""


NO_EVENTS = CallEvents()
"""A receiver that ignores all events."""
