"""Stopping a run by batch: it sends nothing new, and a rerun continues it without repeated lines."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import BudgetExhausted, Stopped
from runner.base.storage.log_lines import JOURNAL
from runner.game.prompts.chat import ChatMessage
from runner.models.interface import Completion, Request, SampleKey
from runner.models.journal_records import BatchRecord
from runner.models.providers.openai_batch import BatchModel
from runner.models.settings import ModelSettings
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import has_open, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import derived_files, only_run, run_spec
from tests.support.servers.batch_client import BatchProvider, run_batch_provider
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

MODEL: dict[str, Any] = {"batch": True, "batch_wait": 0.05, "batch_poll": 0.05, "timeout": 2 * HANG_SECONDS}


def stop_while_gathering(folder: Path, provider: BatchProvider, size: int) -> int:
    """Play the first step, resume, send SIGINT while the second step's calls gather, and return the exit code."""
    path = spec_file(folder, provider.base_url, size=size, models={"m": MODEL})
    with pytest.raises(BudgetExhausted):
        run_spec(path, folder / "results", f"budget.completions={size}")
    process = start_nip_run("spec.yaml", "models.m.batch_wait=3600", cwd=folder)
    wait_until(lambda: has_open(process.pid, JOURNAL) or process.poll() is not None)
    time.sleep(0.3)  # calls gather for an hour; a signal before that leaves no batch either
    process.send_signal(signal.SIGINT)
    return wait_for_exit(process)[0]


def test_ctrl_c_while_calls_gather_sends_no_batch_and_the_rerun_continues(tmp_path: Path) -> None:
    size = 6
    (tmp_path / "live").mkdir()
    with run_batch_provider() as provider:
        live = run_spec(spec_file(tmp_path / "live", provider.base_url, size=size), tmp_path / "live" / "results")
        assert stop_while_gathering(tmp_path, provider, size) == 130
        stats = provider.stats()
        assert (stats["batches"], stats["files"], stats["lines"]) == (1, 1, size)
        result = run_spec(spec_file(tmp_path, provider.base_url, size=size, models={"m": MODEL}), tmp_path / "results")
        assert provider.stats()["lines_twice"] == 0
    assert only_run(tmp_path / "results") == result.folder.path
    assert derived_files(result.folder.path) == derived_files(live.folder.path)


def complete_all(
    provider: BatchProvider, before_sending: Callable[[], None], earlier: list[BatchRecord]
) -> tuple[list[Completion | BaseException], list[BatchRecord]]:
    """Send three concurrent requests through one model; return the outcomes and the records noted."""
    settings = ModelSettings(model="tiny", base_url=provider.base_url, **MODEL)
    notes: list[BatchRecord] = []

    async def note(record: BatchRecord) -> None:
        notes.append(record)

    async def run_calls() -> list[Completion | BaseException]:
        model = BatchModel(settings, "m", note, earlier, before_sending=before_sending)
        chat: Sequence[ChatMessage] = ({"role": "user", "content": "x"},)
        requests = [Request("m", chat, SampleKey(f"p{i}", 0, 0, "prover", 0)) for i in range(3)]
        try:
            outcomes = asyncio.gather(*(model.complete(request) for request in requests), return_exceptions=True)
            return await asyncio.wait_for(outcomes, HANG_SECONDS)
        finally:
            await model.close()

    return asyncio.run(run_calls()), notes


def test_stop_during_the_upload_creates_no_batch(tmp_path: Path) -> None:
    with run_batch_provider() as provider:

        def stop_after_upload() -> None:
            if provider.stats()["files"]:
                raise Stopped

        outcomes, notes = complete_all(provider, stop_after_upload, [])
        stats = provider.stats()
        assert (stats["files"], stats["batches"]) == (1, 0)
        assert {type(error) for error in outcomes} == {Stopped}
        assert [note.batch for note in notes] == [None]
        # The next process does not find the intended batch and creates it.
        outcomes, _ = complete_all(provider, lambda: None, notes)
        assert all(isinstance(completion, Completion) for completion in outcomes)
        assert provider.stats()["batches"] == 1
