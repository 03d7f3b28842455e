"""What the journal holds is asked for by nobody, and is given to nobody who asks for something else."""

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


def asked_again(folder: Path, recorded: RequestRecord) -> Completion:
    """The answer to `REQUEST` where the journal holds one to what `recorded` says."""

    async def nobody(_: Request) -> Completion:
        raise AssertionError("the model was asked")

    async def ask() -> Completion:
        record = CallRecord(SAMPLE, recorded, ANSWER)
        journal = Journal(folder / JOURNAL)
        index = JournalIndex(lambda _: record.to_json(), [IndexedRecord(0, 0, record)])
        try:
            return await JournaledCompleter(nobody, journal, index, {"m": "parameters"}).complete(REQUEST)
        finally:
            await journal.close()

    return run_sync(ask)


def test_a_recorded_answer_is_given_without_a_call(tmp_path: Path) -> None:
    recorded = asked_again(tmp_path, RequestRecord("parameters", messages_hash(REQUEST.messages)))
    assert recorded.choices == ANSWER.choices


@pytest.mark.parametrize(
    "recorded",
    [RequestRecord("others", messages_hash(REQUEST.messages)), RequestRecord("parameters", messages_hash(()))],
)
def test_an_answer_to_another_request_is_never_given(tmp_path: Path, recorded: RequestRecord) -> None:
    with pytest.raises(JournalError, match="but to another request"):
        asked_again(tmp_path, recorded)


@pytest.mark.parametrize("version", [1, 2])
def test_the_hash_is_of_the_messages_that_are_sent_in_journals_that_were_begun_so(tmp_path: Path, version: int) -> None:
    sent: tuple[ChatMessage, ...] = ({"role": "developer", "content": "is it right?"},)

    async def model(_: Request) -> Completion:
        return ANSWER

    async def ask() -> None:
        journal = Journal(tmp_path / JOURNAL, first={"kind": "begun", "format": version})
        await journal.append({"kind": "note"})
        index = JournalIndex(journal.record, ())
        through = JournaledCompleter(model, journal, index, {"m": "parameters"}, sent_messages=lambda _: sent)
        try:
            await through.complete(REQUEST)
        finally:
            await journal.close()

    run_sync(ask)
    (hashed,) = [record["asked"][1] for _, record in read_journal(tmp_path / JOURNAL) if record["kind"] == "call"]
    assert hashed == messages_hash(REQUEST.messages if version == 1 else sent)
