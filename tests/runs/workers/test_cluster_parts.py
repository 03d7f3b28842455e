"""Parts of cluster workers that need no cluster: the actor's channel, messages, and settings in a spec."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import ProviderRefusal, SpecError
from runner.runs.workers import messages
from runner.runs.workers.cluster.actor_channel import PIECE_BYTES, ActorChannel
from runner.runs.workers.cluster.errors import describe_death, find_node_problem, with_node
from runner.runs.workers.frames import FrameReader, Outbox
from runner.runs.workers.remote_errors import RemoteError
from runner.spec.loader import load_spec
from runner.version import __version__
from tests.support.event_loop import run_loop_turns
from tests.support.processes import nip_run, nip_run_here
from tests.support.specs import spec_file


def test_an_actor_answers_calls_in_order_in_whatever_order_they_arrive() -> None:
    def frame(message: Any) -> list[bytes]:
        outbox = Outbox()
        outbox.add(message)
        return [bytes(outbox.take())]

    async def ask() -> list[Any]:
        channel, reader = ActorChannel(), FrameReader()
        second = asyncio.create_task(channel.exchange(1, frame(messages.StopRequest())))
        third = asyncio.create_task(channel.exchange(2, []))
        await run_loop_turns(20)
        assert [second.done(), third.done()] == [False, False]  # the first call has not arrived yet
        first = asyncio.create_task(channel.exchange(0, frame(messages.StopRequest())))
        assert list(await asyncio.gather(first, second)) == [b"", b""]  # a call is answered when the next one arrives
        channel.send(messages.WorkerReady())
        channel.send(messages.NoteAdded("a", "x" * 2 * PIECE_BYTES))
        answers = [await third, await channel.exchange(3, []), await channel.exchange(4, [])]
        fifth = asyncio.create_task(channel.exchange(5, []))
        await run_loop_turns(20)
        assert not fifth.done()
        fifth.cancel()
        return [message for answer in answers for batch in reader.feed(answer) for message in batch]

    ready, note = asyncio.run(ask())
    assert ready == messages.WorkerReady()
    assert len(note.line) == 2 * PIECE_BYTES


# Messages


class ActorUnavailableError(Exception):
    """An error with the name of an error of Ray."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            Exception(
                "The actor died unexpectedly before finishing this task.\n\tpid: 29\nThe actor is dead because its "
                "worker process has died. Worker exit type: SYSTEM_ERROR Some common causes include: (1) the OOM killer"
            ),
            "its worker process has died. Worker exit type: SYSTEM_ERROR",
        ),
        (
            Exception(
                "The actor died unexpectedly before finishing this task.\nThe actor died because its node has died. "
                "Node Id: ee2a\n\tthe actor's node was terminated unexpectedly"
            ),
            "its node has died",
        ),
        (
            ActorUnavailableError(
                "The actor 8e is unavailable: The actor is temporarily unavailable: RpcError: RPC error: Socket closed"
            ),
            "cannot be reached: RPC error: Socket closed",
        ),
        (Exception("ray::NipRunWorker.exchange()\n  File ...\nMemoryError: no room"), "MemoryError: no room"),
    ],
    ids=["process", "node", "link", "raised"],
)  # fmt: skip
def test_the_end_of_an_actor_is_described_in_one_line(error: Exception, expected: str) -> None:
    assert describe_death(error, "on node 10.0.0.3 (pid 29)") == f"on node 10.0.0.3 (pid 29) is gone: {expected}"


def test_a_node_without_nip_run_or_with_another_version_is_named() -> None:
    report = {"node": "10.0.0.3", "pid": 7, "version": __version__, "missing": ""}
    assert find_node_problem(report) is None
    missing = find_node_problem({**report, "version": None, "missing": "No module named 'runner'"})
    assert missing is not None
    assert f"install nip-run[ray]=={__version__}" in missing
    wrong_version = find_node_problem({**report, "version": "0.1.0"})
    assert wrong_version is not None
    assert (
        f"node 10.0.0.3 of the Ray cluster has nip-run 0.1.0, but this command is version {__version__}"
        in wrong_version
    )


def test_a_start_failure_names_the_node_and_keeps_its_type() -> None:
    failure = RemoteError.from_exception(ProviderRefusal("no key in MY_KEY", changes={"models.m.api_key_env": None}))
    error = with_node(failure, "on node 10.0.0.3 (pid 7)").to_exception()
    assert isinstance(error, ProviderRefusal)
    assert str(error).startswith("no key in MY_KEY (on node 10.0.0.3 (pid 7) of the Ray cluster")
    assert error.changes == {"models.m.api_key_env": None}


# Settings in a spec


@pytest.mark.parametrize(
    ("execution", "keys"),
    [
        ({"engine": "ray"}, ["execution.workers"]),
        ({"engine": "ray", "workers": 2, "processes": 2}, ["execution.processes"]),
        ({"workers": 2, "address": "head:6379"}, ["execution.workers", "execution.address"]),
        ({"engine": "ray", "address": "ray://head:10001"}, ["execution.workers", "execution.address"]),
        ({"engine": "ray", "workers": 2, "address": "head"}, ["execution.address"]),
    ],
)
def test_conflicting_keys_are_all_reported_at_once(
    tmp_path: Path, execution: dict[str, object], keys: list[str]
) -> None:
    with pytest.raises(SpecError) as raised:
        load_spec(spec_file(tmp_path, execution=execution))
    assert sorted(problem.key for problem in raised.value.problems) == sorted(keys)


@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:6379", "[::1]:6379"])
def test_an_address_of_a_cluster_is_accepted(tmp_path: Path, address: str) -> None:
    spec = load_spec(spec_file(tmp_path, execution={"engine": "ray", "workers": 2, "address": address}))
    assert spec.experiment.execution.address == address


def test_batch_calls_are_refused_on_ray_too(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"batch": True}})
    done = nip_run_here("check", path, "execution.engine=ray", "execution.workers=2", cwd=tmp_path)
    assert done.returncode == 2
    assert "execution.engine: batches need a single process (models.m.batch)" in done.stderr


@pytest.mark.full
def test_a_missing_ray_package_is_an_error_that_names_the_extra_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('there is none')\n")
    spec_file(tmp_path)
    done = nip_run("spec.yaml", "execution.engine=ray", "execution.workers=2", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "execution.engine=ray needs the package ray (there is none); run pip install 'nip-run[ray]'" in done.stderr
    assert not (tmp_path / "results").exists()
