"""Answers from the journal of an earlier run, for the provider `replay` and for runs that replay another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runner.base.errors import RunError
from runner.base.storage.journal import JOURNAL
from runner.game.prompts.chat import ChatMessage
from runner.models.interface import Completion, Provider, Request
from runner.models.journal_index import open_index
from runner.models.journal_records import EndedRecord, messages_hash

_NEEDS = "a replay needs the same prompts in the same chat format (chat_format, system_role, send_name)"


class ReplayModel:
    """Answers each sample as the replayed run was answered, and refuses what that run was not asked."""

    def __init__(
        self,
        run: Path,
        identity: str | None = None,
        *,
        sent: Callable[[Request], Sequence[ChatMessage]] = lambda request: request.messages,
    ) -> None:
        """`identity` is the run's, where it is known; the journal must be that run's.

        `sent` is a request's messages as a server would get them.
        """
        self._run = run
        path = run / JOURNAL
        if not path.is_file():
            raise RunError(f"{run} holds no {JOURNAL} to replay")
        self._reader, self._recorded = open_index(path, identity)
        self.failures = self._recorded.failures
        self._sent = sent

    async def complete(self, request: Request) -> Completion:
        """Answer from the journal.

        Raises:
            RunError: the replayed run has no answer for this sample, or gave it to another prompt.
        """
        sample = request.sample
        record = self._recorded.get(sample)
        where = f"{sample.agent} in round {sample.round} on {sample.datapoint} (repeat {sample.repeat})"
        if record is None:
            raise RunError(f"{self._run} has no answer number {sample.attempt} of {where} to replay")
        chat = self._sent(request) if self._reader.is_bound else request.messages
        if record.asked.messages != messages_hash(chat):
            raise RunError(f"{self._run} asked {where} with other messages; {_NEEDS}")
        if isinstance(record, EndedRecord):
            raise record.as_error()
        origin = record.completion.origin or self._reader.number or self._run.name
        return replace(record.completion, from_cache=True, origin=origin)

    async def close(self) -> None:
        self._reader.close()


class ReplayThenLive:
    """Replays the rounds before `until_round`, and asks a live model from there on."""

    def __init__(self, replayed: ReplayModel, live: Provider, until_round: int) -> None:
        self._replayed, self._live, self._until = replayed, live, until_round

    async def complete(self, request: Request) -> Completion:
        if request.sample.round < self._until:
            return await self._replayed.complete(request)
        return await self._live.complete(request)

    async def close(self) -> None:
        await self._replayed.close()
        await self._live.close()
