"""Servers that fail in many ways: the run completes with the outcomes of a run without faults."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import ProviderRefusal
from runner.models.layers.limits import START_DIVISOR
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import interrupt, start_nip_run, start_nip_run_silently, wait_for_exit, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

FAULTS = dict.fromkeys(
    ("rate_limit", "rate_limit_seconds", "server_error", "drop", "half_body", "malformed", "empty_choices",
     "null_content", "hang"), 0.05,
)  # fmt: skip
FATAL = ("insufficient_quota", "unauthorized", "unknown_model", "unsupported_parameter")


@pytest.fixture(scope="module")
def calm_and_stormy_runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Play a run on a calm server and on one that fails half of the time; return run folders and server statistics."""
    runs = {}
    for name, options in (("calm", {}), ("stormy", {"faults": FAULTS, "latency": [0.0, 0.02]})):
        folder = tmp_path_factory.mktemp(name)
        with run_chat_server(**options) as server:
            path = spec_file(
                folder, server.base_url, size=24, models={"m": {"timeout": 3.0}}, rollouts={"concurrency": 16},
                retry={"invalid_response": {"attempts": 5}},
            )  # fmt: skip
            result = run_spec(path, folder / "results")
            runs[name] = (result.folder.path, server.stats())
    return runs


@pytest.mark.full
def test_a_run_under_every_fault_gets_the_answers_of_a_run_without_faults(calm_and_stormy_runs: Any) -> None:
    (calm, _), (storm, stats) = calm_and_stormy_runs["calm"], calm_and_stormy_runs["stormy"]
    assert set(FAULTS) <= set(stats["kinds"])
    assert read_rollouts_and_messages(storm) == read_rollouts_and_messages(calm)
    assert json.loads((storm / "manifest.json").read_text())["status"] == "done"


def read_rollouts_and_messages(run: Path) -> Any:
    return table(run, "rollouts"), table(run, "messages")


@pytest.mark.gate
def test_no_transport_failure_counts_as_a_verdict(calm_and_stormy_runs: Any) -> None:
    metrics = json.loads((calm_and_stormy_runs["stormy"][0] / "metrics.json").read_text())
    assert metrics["outcomes"]["transport_failed"] == 0
    assert metrics["outcomes"]["decided"] == 24
    by_name = {
        name: {m["metric"]: m for m in json.loads((run / "metrics.json").read_text())["metrics"] if m["agent"] is None}
        for name, (run, _) in calm_and_stormy_runs.items()
    }
    assert by_name["stormy"]["accuracy"] == by_name["calm"]["accuracy"]


@pytest.mark.gate
def test_every_failed_attempt_is_a_row_and_a_record(calm_and_stormy_runs: Any) -> None:
    run, stats = calm_and_stormy_runs["stormy"]
    kinds = Counter(stats["kinds"])
    transport = kinds.total() - kinds["answer"] - kinds["null_content"]
    rows = table(run, "completions")
    assert sum(row["error"] is not None for row in rows) == transport
    assert len(rows) == stats["requests"]
    assert sum(record["kind"] == "failure" for record in journal_records(run)) == transport


@pytest.mark.gate
def test_no_sample_is_in_the_journal_twice(calm_and_stormy_runs: Any) -> None:
    for run, _ in calm_and_stormy_runs.values():
        samples = Counter(tuple(r["sample"]) for r in journal_records(run) if r["kind"] == "call")
        assert set(samples.values()) == {1}


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "concurrency"),
    [
        (FATAL[0], 1),
        (FATAL[1], 16),
        *(pytest.param(kind, 16, marks=pytest.mark.full) for kind in (FATAL[0], *FATAL[2:])),
    ],
)
def test_a_fatal_answer_to_the_first_call_ends_the_run_at_once(tmp_path: Path, kind: str, concurrency: int) -> None:
    with run_chat_server(kind=kind, latency=0.05) as server:
        spec_file(tmp_path, server.base_url, size=60, rollouts={"concurrency": concurrency})
        process = start_nip_run("spec.yaml", "-q", cwd=tmp_path)
        wait_until(lambda: server.requests > 0 or process.poll() is not None)
        code, _, stderr = wait_for_exit(process)
        assert server.requests <= concurrency
    assert code == 4, stderr
    assert "Traceback" not in stderr


@pytest.mark.full
def test_a_fatal_answer_ends_the_run_while_other_calls_hang(tmp_path: Path) -> None:
    with (
        run_chat_server(kind="unauthorized", after=5, latency=0.02) as server,
        run_chat_server(kind="hang", hang=3600.0) as slow,
    ):
        spec_file(
            tmp_path, server.base_url, size=20, rollouts={"concurrency": 8},
            models={"slow": {"provider": "openai", "model": "tiny", "base_url": slow.base_url, "timeout": 3600.0}},
            agents={"prover": {"model": "slow"}},
        )  # fmt: skip
        code = _wait_for_exit_after_answer(server, "unauthorized", tmp_path)
    assert code == 4


@pytest.mark.full
def test_a_fatal_answer_ends_the_run_while_another_speaker_hangs(tmp_path: Path) -> None:
    with (
        run_chat_server(kind="unauthorized", latency=0.02) as server,
        run_chat_server(kind="hang", hang=3600.0) as slow,
        run_chat_server(decide=0.0) as good,
    ):
        spec_file(
            tmp_path, server.base_url, size=1, protocol={"use": "debate", "max_message_rounds": 4},
            prompts="prompts/code_validation/debate",
            models={
                "slow": {"provider": "openai", "model": "tiny", "base_url": slow.base_url, "timeout": 3600.0},
                "good": {"provider": "openai", "model": "tiny", "base_url": good.base_url},
            },
            agents={
                "prover": None, "prover0": {"model": "m"}, "prover1": {"model": "slow"}, "verifier": {"model": "good"},
            },
        )  # fmt: skip
        code = _wait_for_exit_after_answer(server, "unauthorized", tmp_path)
    assert code == 4


def _wait_for_exit_after_answer(server: LoopbackServer, kind: str, folder: Path) -> int:
    process = start_nip_run_silently("spec.yaml", "-q", cwd=folder)
    try:
        wait_until(lambda: server.stats()["kinds"].get(kind, 0) > 0)
        return process.wait(HANG_SECONDS)
    finally:
        process.kill()
        process.wait()


@pytest.mark.full  # the tests of misbehaving servers cover similar answers
@pytest.mark.parametrize(
    "reply",
    [
        [], 3, "text", {}, {"choices": None}, {"choices": "x"}, {"choices": [None]}, {"choices": [{}]},
        {"choices": [{"message": None, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": 3}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "x"}, "finish_reason": {"a": 1}}]},
        {"choices": [{"message": {"content": "x"}, "finish_reason": 7}]},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": "none"},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": "many"}},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": 5, "completion_tokens": "few"}},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": "a"}}},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": -5, "completion_tokens": 1e300}},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "model": 3, "usage": None},
        {"choices": [{"message": {"content": "x", "refusal": 5}, "finish_reason": "stop"}]},
        {"error": "overloaded"}, {"error": {"code": "x"}}, {"error": [1]},
    ],
)  # fmt: skip
def test_no_malformed_answer_crashes_a_run(tmp_path: Path, reply: Any) -> None:
    """Any JSON with status 200 gives every rollout an outcome, or ends the run with a refusal."""
    with run_chat_server(reply=reply) as server:
        path = spec_file(
            tmp_path, server.base_url, size=2,
            retry={"transient": {"attempts": 2}, "invalid_response": {"attempts": 2, "then": "abort_rollout"}},
        )  # fmt: skip
        if not isinstance(reply, dict) or reply == {}:
            with pytest.raises(ProviderRefusal, match="is not a model API: it answers with"):
                run_spec(path, tmp_path / "results")
            return
        result = run_spec(path, tmp_path / "results")
    assert sum(result.metrics["outcomes"].values()) == 2
    assert result.metrics["outcomes"]["decided"] == 0


def test_a_slowly_sent_answer_is_given_up_at_the_timeout(tmp_path: Path) -> None:
    """The timeout is for the whole call, not for each byte."""
    with run_slow_server() as base_url:
        path = spec_file(
            tmp_path, base_url, size=1, models={"m": {"timeout": 0.5}}, retry={"transient": {"attempts": 1}},
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
    assert result.metrics["outcomes"]["transport_failed"] == 1


def run_slow_server() -> Any:
    """Run a server that sends one byte of a long answer every 50 ms."""
    import contextlib
    import socket
    import threading

    @contextlib.contextmanager
    def server() -> Any:
        listener = socket.create_server(("127.0.0.1", 0))
        is_stopping = threading.Event()

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(1 << 16)
                    head = b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
                    connection.sendall(head)
                    while not is_stopping.wait(0.05):
                        connection.sendall(b" ")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            is_stopping.set()
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(HANG_SECONDS)

    return server()


@pytest.mark.full
def test_no_call_starts_after_the_first_ctrl_c(tmp_path: Path) -> None:
    """Games that wait for a slot have sent no request; only answers that the server holds may arrive."""
    with run_chat_server(held_after=0) as server:
        spec_file(tmp_path, server.base_url, size=60)
        process = start_nip_run("spec.yaml", "rollouts.concurrency=48", cwd=tmp_path)
        wait_until(lambda: server.stats()["open"] == 48 // START_DIVISOR or process.poll() is not None)
        interrupt(process)
        request_count = server.requests
        server.change(held_after=None)
        assert wait_for_exit(process)[0] == 130
        assert server.requests == request_count


@pytest.mark.gate
def test_a_run_killed_at_ten_moments_ends_like_an_undisturbed_run(tmp_path: Path) -> None:
    """A short form of test_run_killed.py."""
    import random

    rng = random.Random(11)
    with run_chat_server(latency=[0.0, 0.1]) as server:
        path = spec_file(tmp_path, server.base_url, size=50, rollouts={"concurrency": 8, "per_datapoint": 2})
        undisturbed_run = run_spec(path, tmp_path / "whole", "rollouts.concurrency=64")
        needed = server.requests
        kills = 0
        for _ in range(10):
            process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
            try:
                process.wait(rng.uniform(0.5, 1.1))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
            process.wait()
        resumed = run_spec(path, tmp_path / "results")
        requests = server.requests - needed
    assert kills > 3
    assert needed <= requests <= needed + 8 * kills
    assert derived_files(resumed.folder.path) == derived_files(undisturbed_run.folder.path)
    samples = [tuple(r["sample"]) for r in journal_records(only_run(tmp_path / "results")) if r["kind"] == "call"]
    assert len(samples) == len(set(samples)) == needed
