"""`nip-run plan --workers`: how long a run takes and what bounds it, from games that are played here to be measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from runner.models.layers.limits import GroupLimit
from tests.support.processes import nip_run, nip_run_here
from tests.support.runs import run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

QUICK = ("--measure", "0.02")
FIXED = {"min_message_rounds": 5, "max_message_rounds": 5, "verifier_first": True}


def timed(folder: Path, *words: str, run: Callable[..., CompletedProcess[str]] = nip_run_here) -> dict[str, Any]:
    """Return a forecast. In the process of the test, the time of the start includes the CPU time of earlier tests."""
    done = run("plan", "spec.yaml", *QUICK, *words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    time = found["time"]
    assert isinstance(time, dict)
    return time


def test_a_run_without_servers_is_bound_by_the_core_and_nothing_of_what_was_played_is_left(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4, protocol=FIXED, fine_tune=None, budget={"completions": 100})
    before = sorted(path.name for path in tmp_path.iterdir())
    found = timed(tmp_path, "--workers", "1")
    assert (found["games"], found["calls"], found["servers_known"]) == (4, [20, 20], True)
    assert [one["name"] for one in found["bounds"]] == ["core"]
    assert found["bottleneck"] in {"core", "start and end"}
    assert found["seconds"][0] == found["seconds"][1] > 20 / found["calls_per_second"]
    assert found["journal_bytes"] > 20 * 200
    assert found["breaks"][0]["games"] == 20
    day = next(one["games"] for one in found["breaks"] if "day" in one["what"])
    assert 0.05 < day * 5 / found["calls_per_second"] / 86400 < 1.01  # start and end are there once, and not for each
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.full
def test_a_pilot_says_how_long_servers_take_and_what_they_allow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with run_chat_server(latency=0.2, decide=0.0) as server:
        path = spec_file(tmp_path, server.base_url, size=2000, protocol=FIXED, fine_tune=None)
        pilot = run_spec(path, tmp_path / "results", "dataset.limit=16", run_id="pilot")
    with caplog.at_level("INFO"):
        GroupLimit("m", 8).learn_rates({"x-ratelimit-limit-requests": "60000"})
    with (pilot.path / "run.log").open("a") as log:
        log.write(f"{caplog.messages[-1]}\n")
    found = timed(tmp_path, "--workers", "1", run=nip_run)
    calls = table(pilot.path, "completions")
    latency = sum(one["latency_ms"] for one in calls) / len(calls) / 1000
    servers = next(one for one in found["bounds"] if one["name"] == "servers")
    assert servers["calls_per_second"] == pytest.approx(8 / latency)
    assert found["bottleneck"] == "servers"
    assert found["seconds"][0] >= 10000 * latency / 8
    assert found["calls"] == [10000, 10000]
    tokens = sum(one["prompt_tokens"] for one in calls) / len(calls)
    assert found["prompt_tokens"][0] == pytest.approx(10000 * tokens)
    limit = next(one for one in found["bounds"] if one["name"] == "provider's limit")
    assert limit["detail"] == "m: 60,000 requests a minute"
    slow = timed(tmp_path, "--workers", "1", "models.m.requests_per_minute=600", run=nip_run)
    assert slow["bottleneck"] == "provider's limit"
    assert slow["calls_per_second"] == pytest.approx(10000 / 994.5)


@pytest.mark.full
def test_without_a_pilot_it_is_said_that_servers_are_not_known(tmp_path: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1", size=50, fine_tune=None)
    done = nip_run_here("plan", "spec.yaml", "--workers", "1", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "50 games, 50 to 300 calls: at least" in text
    assert "the latency of the servers is not known" in text
    assert "--like pilot" in text


@pytest.mark.full
def test_workers_and_shards_are_measured_and_told_with_the_sizes_that_show_a_difference(tmp_path: Path) -> None:
    spec_file(tmp_path, size=300, fine_tune=None)
    words = ("--workers", "2", "--shards", "2", "--detect", "0.2")
    done = nip_run_here("plan", "spec.yaml", *QUICK, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("2 shards of 2 workers and their writer", "writer", "2 workers and their writer,", "datapoints"):
        assert said in done.stdout
    found = timed(tmp_path, *words[:2])
    assert {"cores", "writer"} == {one["name"] for one in found["bounds"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "0"), "--workers must be at least 1, not 0"),
        (
            ("--workers", "1025"),
            "--workers 1025: the maximum of execution.processes is 1,024, and of execution.workers 4,096 on",
        ),
        (
            ("--workers", "4097", "execution.engine=ray", "execution.workers=2"),
            "--workers 4097: the maximum of execution.workers is 4,096; use fewer workers, or split",
        ),
        (("--shards", "10001"), "--shards 10001: the maximum is 10,000"),
        (("--shards", "13"), "--shards 13: the dataset has only 12 groups"),
        (("--workers", "2", "--cores", "-1"), "--cores must be at least 1, not -1"),
        (("--workers", "2", "--measure", "0"), "--measure must be a number of seconds above 0 and up to 3600, not 0"),
        (("--cores", "2"), "add --workers N or --shards N"),
        (("--workers", "2", "--like", "none"), "no run 'none'"),
        (("--workers", "2", "rollouts.num_responses_per_timestep=2"), "cannot predict the duration of trees"),
        (("--workers", "1", "models.m={model: a, batch: true}"), "models.m.batch: the duration of a batch"),
        (
            ("--workers", "1", "models.m={model: a, answer_words: 5}"),
            "models.m.answer_words: answer_words works only with provider dummy",
        ),
    ],
)
def test_what_cannot_be_timed_is_told(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    spec_file(tmp_path, fine_tune=None)
    done = nip_run_here("plan", "spec.yaml", *words, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    spec_file(tmp_path, fine_tune=None)
    done = nip_run_here("plan", "spec.yaml", "--workers", "1", *QUICK, "--results", "/proc/none", cwd=tmp_path)
    assert (done.returncode, "use --results DIR with a writable folder" in done.stderr) == (1, True)
