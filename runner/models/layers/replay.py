"""Answers from the journal of an earlier run, for the provider `replay` and for replays of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runner.base.errors import RunError
from runner.base.storage.log_lines import JOURNAL
from runner.game.prompts.chat import ChatMessage
from runner.models.interface import Completion, Provider, Request
from runner.models.journal_index import open_index
from runner.models.journal_records import EndedRecord, FailureRecord, messages_hash
from runner.models.usage_totals import UsageTotals

_ADVICE = (
    "a replay needs the same prompts in the same chat format (chat_format, system_role, send_name), and the same JSON "
    "schemas (constrain_decisions, max_reasoning_length)"
)


class ReplayModel:
    """Answers each sample with the replayed run's answer."""

    def __init__(
        self,
        run: Path,
        identity: str | None = None,
        *,
        sent_messages: Callable[[Request], Sequence[ChatMessage]] = lambda request: request.messages,
    ) -> None:
        """Open the journal of the run in the folder `run`, which must have the identity `identity` if given.

        `sent_messages` returns a request's messages as a server would receive them.

        Raises:
            RunError: the run has no journal.
        """
        self._run = run
        path = run / JOURNAL
        if not path.is_file():
            raise RunError(
                f"cannot replay {run}: there is no {JOURNAL} in this folder; restore the file or name another run"
            )
        self._reader, self._index = open_index(path, identity)
        self._sent_messages = sent_messages

    def failures(self, datapoint: str, repeat: int) -> Sequence[FailureRecord]:
        """Return the records of a rollout's failed attempts. Their charge is zero, because another run paid."""
        return [replace(record, charged=UsageTotals()) for record in self._index.failures(datapoint, repeat)]

    async def complete(self, request: Request) -> Completion:
        """Return the replayed run's answer to a request, or raise the error that ended its game.

        Raises:
            RunError: the replayed run has no answer for this sample, or its prompt was different.
        """
        sample = request.sample
        record = self._index.get(sample)
        turn = f"{sample.agent} in round {sample.round} on {sample.datapoint} (repeat {sample.repeat})"
        if record is None:
            raise RunError(
                f"cannot replay {self._run}: this run has no answer number {sample.attempt + 1} of {turn}; play only "
                "games of this run (dataset.limit, rollouts.per_datapoint), resume it, or replay another run"
            )
        # Journals before format 2 have a hash of the messages before their conversion for the server.
        messages = self._sent_messages(request) if self._reader.is_bound_to_run else request.messages
        if record.request.messages != messages_hash(messages, request.schema):
            raise RunError(f"cannot replay {self._run}: this run sent other messages to {turn}; {_ADVICE}")
        if isinstance(record, EndedRecord):
            raise record.as_error()
        origin = record.completion.origin or self._reader.journal_id or self._run.name
        return replace(record.completion, from_cache=True, origin=origin)

    async def close(self) -> None:
        self._reader.close()


class ReplayThenLive:
    """Replays the rounds before `until_round`, and calls live models in all later rounds."""

    def __init__(self, replayed: ReplayModel, live: Provider, until_round: int) -> None:
        self._replayed, self._live, self._until = replayed, live, until_round

    async def complete(self, request: Request) -> Completion:
        if request.sample.round < self._until:
            return await self._replayed.complete(request)
        return await self._live.complete(request)

    async def close(self) -> None:
        await self._replayed.close()
        await self._live.close()
