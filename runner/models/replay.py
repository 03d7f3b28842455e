"""The provider that answers from the journal of an earlier run."""

from __future__ import annotations

from pathlib import Path

from runner.errors import RunError
from runner.journal import read_journal
from runner.models.base import Completion, Request
from runner.models.recorded import Recorded, from_record, messages_hash


class ReplayModel:
    """Answers each sample as the replayed run was answered, and refuses what that run was not asked."""

    def __init__(self, run: Path) -> None:
        self._run = run
        path = run / "journal.jsonl"
        if not path.is_file():
            raise RunError(f"{run} holds no journal.jsonl to replay")
        self._file = path.open("rb")
        self._recorded = Recorded(self._read, read_journal(path))

    def _read(self, offset: int) -> bytes:
        self._file.seek(offset)
        return self._file.readline()

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
        if record["asked"][1] != messages_hash(request.messages):
            raise RunError(f"{self._run} asked {where} with other messages; a replay needs the same prompts")
        return from_record(record)

    async def close(self) -> None:
        self._file.close()
