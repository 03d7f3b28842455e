"""What becomes of the calls of a run, told by the layers around the providers."""

from __future__ import annotations

from runner.base.errors import CallError
from runner.models.interface import Completion, Request, SampleKey


class CallEvents:
    """Each event does nothing, unless a subclass says what."""

    def sending(self, request: Request) -> None:
        """A call is about to go out. Raises where none may any more."""

    async def failed(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        """An attempt failed; a negative wait before the next says that there is none."""

    def server_down(self, server: str, message: str | None) -> None:
        """A server does not answer any more, as the message says; with None it does again."""

    def unlike(self, group: str, server: str, calls: int, said: str) -> None:
        """Other servers of a group took so many more calls, to the last of which this one had said so."""

    def recorded(self, request: Request, completion: Completion) -> None:
        """An answer is on disk; `n` of the request says how many were asked for together."""

    def settled(self, sample: SampleKey) -> None:
        """A call has come to an end, and its record is on disk."""

    def refused(self, sample: SampleKey) -> None:
        """The provider refused a call and so stopped the run; there is no record of it."""

    def gave_fewer(self, request: Request) -> None:
        """A call for the answers of several samples got fewer."""

    def answered(self, request: Request, completion: Completion) -> None:
        """A game gets its answer, from wherever it came."""


NO_EVENTS = CallEvents()
"""For calls without an account."""
