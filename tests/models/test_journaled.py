"""Journaled calls: a recorded answer is reused for the same request, and never for another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.async_runner import run_sync
from runner.base.errors import JournalError
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import JOURNAL, read_journal
from runner.game.prompts.chat import ChatMessage
from runner.models.interface import Choice, Completion, Request, SampleKey
from runner.models.journal_index import JournalIndex
from runner.models.journal_records import CallRecord, IndexedRecord, RequestRecord, messages_hash
from runner.models.layers.journal import JournaledCompleter

SAMPLE = SampleKey("p", 0, 0, "verifier", 0)
REQUEST = Request("m", ({"role": "user", "content": "is it right?"},), SAMPLE)
ANSWER = Completion((Choice("yes", "stop"),), "tiny")


def complete_with_journal(folder: Path, recorded: RequestRecord) -> Completion:
    """Complete `REQUEST` with a journal that holds an answer to the request `recorded`."""

    async def fail_if_called(_: Request) -> Completion:
        raise AssertionError("the model was asked")

    async def complete() -> Completion:
        record = CallRecord(SAMPLE, recorded, ANSWER)
        journal = Journal(folder / JOURNAL)
        index = JournalIndex(lambda _: record.to_json(), [IndexedRecord(0, 0, record)])
        try:
            return await JournaledCompleter(fail_if_called, journal, index, {"m": "parameters"}).complete(REQUEST)
        finally:
            await journal.close()

    return run_sync(complete)


def test_recorded_answer_is_returned_without_a_call(tmp_path: Path) -> None:
    recorded = complete_with_journal(tmp_path, RequestRecord("parameters", messages_hash(REQUEST.messages)))
    assert recorded.choices == ANSWER.choices


@pytest.mark.parametrize(
    "recorded",
    [RequestRecord("others", messages_hash(REQUEST.messages)), RequestRecord("parameters", messages_hash(()))],
)
def test_recorded_answer_to_another_request_is_rejected(tmp_path: Path, recorded: RequestRecord) -> None:
    with pytest.raises(JournalError, match="but to another request"):
        complete_with_journal(tmp_path, recorded)


@pytest.mark.parametrize("version", [1, 2])
def test_journals_of_format_2_hash_the_sent_messages(tmp_path: Path, version: int) -> None:
    sent: tuple[ChatMessage, ...] = ({"role": "developer", "content": "is it right?"},)

    async def model(_: Request) -> Completion:
        return ANSWER

    async def complete() -> None:
        journal = Journal(tmp_path / JOURNAL, first={"kind": "begun", "format": version})
        await journal.append({"kind": "note"})
        index = JournalIndex(journal.record, ())
        completer = JournaledCompleter(model, journal, index, {"m": "parameters"}, sent_messages=lambda _: sent)
        try:
            await completer.complete(REQUEST)
        finally:
            await journal.close()

    run_sync(complete)
    (recorded_hash,) = [
        record["asked"][1] for _, record in read_journal(tmp_path / JOURNAL) if record["kind"] == "call"
    ]
    assert recorded_hash == messages_hash(REQUEST.messages if version == 1 else sent)
