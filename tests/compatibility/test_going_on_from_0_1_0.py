"""What 0.1.0 began goes on here as it would have gone on there; what it finished is paid for."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.old import (
    FIXTURES,
    MADE,
    RUNS,
    called,
    contents,
    differing,
    differing_results,
    holds,
    journal,
    opened,
    read_json,
    rows,
    run_folder,
    with_new_names,
    without_new_keys,
)
from tests.fixtures.v0_1_0.make import KILLED_FAULTS, PORT
from tests.support.servers.chat_client import run_chat_server

CLOCK = {"started_at", "finished_at"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return opened(tmp_path)


# Finished runs


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["finished", "served", "trees", "malt", "replayed", "sweep"])
def test_a_finished_run_is_shown_and_not_played(folder: Path, name: str) -> None:
    before = contents(folder)
    done = called("run", f"specs/{name}.yaml", "--json", cwd=folder)
    shown = done.json
    assert [row["was_finished"] for row in shown] == [True] * (2 if name == "sweep" else 1)
    assert all(row["run_id"] == RUNS.get(name, row["run_id"]) for row in shown)
    assert contents(folder) == before


@pytest.mark.full
def test_a_finished_run_is_shown_by_its_folder(folder: Path) -> None:
    """Parts of training runs, replays and the points of a sweep too."""
    before = contents(folder)
    unfinished = {RUNS["killed"], RUNS["learning"]}
    runs = [path for path in sorted((folder / "results" / "runs").iterdir()) if path.name not in unfinished]
    shown = called("run", *(f"results/runs/{path.name}" for path in runs), "--json", cwd=folder).json
    assert [(row["run_id"], row["was_finished"]) for row in shown] == [(path.name, True) for path in runs]
    assert len(runs) == 13
    assert contents(folder) == before


@pytest.mark.full
@pytest.mark.parametrize("name", ["finished", "served", "trees", "replayed"])
def test_a_finished_run_is_derived_again_from_its_journal(folder: Path, name: str) -> None:
    """Another concurrency makes no other run, but has every file made again: nobody is asked, and nothing differs."""
    run = run_folder(folder, name)
    old = shutil.copytree(run, folder / "old")
    with run_chat_server() as server:
        where = [f"models.m.base_url={server.base_url}"] if name == "served" else []
        done = called("run", f"specs/{name}.yaml", "--json", "rollouts.concurrency=3", *where, cwd=folder)
        assert server.requests == 0
    (result,) = done.json
    assert (result["run_id"], result["was_finished"]) == (RUNS[name], False)
    assert (run / "journal.jsonl").read_bytes() == (old / "journal.jsonl").read_bytes()
    assert differing_results(run, old) == []
    changed = {"finished_at", "spec_sha256"}
    assert holds(read_json(run / "manifest.json"), without(read_json(old / "manifest.json"), changed))


def without(mapping: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """What a manifest or a record has, but these."""
    return {name: value for name, value in mapping.items() if name not in names}


def test_a_replay_gives_the_same_bytes_and_asks_nobody(folder: Path) -> None:
    source = f"results/runs/{RUNS['served']}"
    with run_chat_server() as server:
        where = f"models.m.base_url={server.base_url}"
        words = ("--replay", source, "--results", "again", where)
        (result,) = called("run", "specs/served.yaml", "--json", *words, cwd=folder).json
        assert server.requests == 0
    assert differing_results(folder / result["folder"], folder / source) == []


@pytest.mark.full
def test_a_replay_by_0_1_0_can_be_replayed(folder: Path) -> None:
    source = RUNS["served"] + "-replay"
    with run_chat_server() as server:
        where = f"models.m.base_url={server.base_url}"
        (result,) = called("run", "specs/served.yaml", "--json", "--replay", source, where, cwd=folder).json
        assert server.requests == 0
    assert result["run_id"] not in (RUNS["served"], source)
    for table in ("rollouts.parquet", "messages.parquet"):
        new, old = folder / result["folder"] / table, run_folder(folder, "served") / table
        assert rows(new, "run_id") == rows(old, "run_id")


@pytest.mark.full
def test_a_replay_says_that_it_called_nobody_and_cost_nothing_whatever_a_call_costs(folder: Path) -> None:
    words = ("--replay", f"results/runs/{RUNS['served']}", "--results", "again", "~models.m.price")
    said = called("run", "specs/served.yaml", *words, "models.m.base_url=http://127.0.0.1:9/v1", cwd=folder)
    (result,) = called("runs", "--json", "--results", "again", cwd=folder).json
    assert result["cost_usd"] is None  # no price is known
    assert f"cost      $0.0000 (replayed), {result['completions']} answers\n" in said.out
    shown = called("show", "last", "--results", "again", cwd=folder)
    assert re.search(r"^cost_usd +0.0$", shown.out, re.MULTILINE)


def test_the_old_cache_answers_every_request_again(folder: Path) -> None:
    """The key of an entry has the server's address, so the spec is played where no server may be; and the chats."""
    words = ("models.m.chat_format=openai", "--results", "again")
    (result,) = called("run", "specs/served.yaml", "--json", *words, cwd=folder).json
    new, old = folder / result["folder"], run_folder(folder, "served")
    assert result["cost_usd"] == 0
    records = [record for record in journal(new) if record["kind"] != "begun"]
    assert {(record["kind"], record["cache"]) for record in records} == {("call", True)}
    assert len(records) == sum(record["kind"] == "call" for record in journal(old))
    assert differing_results(new, old, "rollouts", "messages") == []


@pytest.mark.full
def test_what_the_old_cache_lacks_is_explained_by_what_it_has(folder: Path) -> None:
    with run_chat_server() as server:
        where = f"models.m.base_url={server.base_url}"
        words = ("models.m.temperature=0.5", "models.m.chat_format=openai", "models.m.share_prompts=false", where)
        (result,) = called("run", "specs/served.yaml", "--json", *words, cwd=folder).json
        assert server.requests > 0
    explained = called("explain-misses", result["run_id"], "--json", cwd=folder).json["explained"]
    first = {row["field"]: row["nearest"] for row in explained[0]["differences"]}
    assert first == {"base_url": f"http://127.0.0.1:{PORT}/v1", "temperature": 1.0}


@pytest.mark.full
def test_by_its_folder_a_replay_asks_nobody_and_a_part_is_left_to_its_training_run(folder: Path) -> None:
    replay, part = (f"results/runs/{name}" for name in (RUNS["served"] + "-replay", RUNS["learning"] + "-i0"))
    with run_chat_server() as server:
        words = ("rollouts.concurrency=3", f"models.m.base_url={server.base_url}", "--json")
        (result,) = called("run", replay, *words, cwd=folder).json
        assert (result["run_id"], result["was_finished"]) == (Path(replay).name, False)
        assert server.requests == 0
    new, old = (run / "messages.parquet" for run in (folder / replay, run_folder(folder, "served")))
    assert rows(new, "run_id") == rows(old, "run_id")
    refused = called("run", part, "rollouts.per_datapoint=9", cwd=folder)
    assert refused.code == 1
    assert f"resume that run with nip-run results/runs/{RUNS['learning']}," in refused.err


# A run that was killed

KILLED_DIFFER = {
    "manifest.json": CLOCK | {"spec_sha256"},
    "journal.jsonl": {"ms", "wait"},
}
"""What may differ, by file: when it was; the spec's hash, since the spec names the port of the server that was asked;
how long an answer took; how long was waited before the next, where that is drawn. Latencies are in
`completions.parquet` too, and the port in `spec.yaml` and in what failures say; `run.log` and `.lock` tell of the
process alone."""


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize(("torn", "by"), [(0, "spec"), (30, "spec"), (0, "folder")])
def test_a_killed_run_goes_on_with_identical_files(folder: Path, torn: int, by: str) -> None:
    run, there = run_folder(folder, "killed"), FIXTURES / "after" / RUNS["killed"]
    kept = (run / "journal.jsonl").read_bytes()
    if torn:
        (run / "journal.jsonl").write_bytes(kept + journal_line_after(there, kept)[:torn])
    assert (run / ".in_flight").is_file()
    assert (run / ".parts").is_dir()
    with run_chat_server(faults=KILLED_FAULTS) as server:
        words = ["rollouts.concurrency=1", f"models.m.base_url={server.base_url}"]
        spec = "specs/killed.yaml" if by == "spec" else str(run.relative_to(folder))
        done = called("run", spec, "--json", *words, cwd=folder)
        asked = server.requests
        as_there = {server.base_url: f"http://127.0.0.1:{PORT}/v1"}
    (result,) = done.json
    assert (result["run_id"], result["was_finished"]) == (RUNS["killed"], False)
    assert any("incomplete line" in line for line in result["notes"]) == bool(torn)
    assert any("started with models.m.chat_format=openai" in line for line in result["notes"])
    assert asked == MADE["requests"]["killed"]
    assert (run / "journal.jsonl").read_bytes().startswith(kept)
    assert not (run / ".in_flight").exists()
    assert not (run / ".parts").exists()
    same_as_there(run, there, as_there)


def journal_line_after(run: Path, start: bytes) -> bytes:
    whole = (run / "journal.jsonl").read_bytes()
    assert whole.startswith(start)
    return whole[len(start) :].partition(b"\n")[0]


def same_as_there(run: Path, there: Path, addresses: dict[str, str]) -> None:
    """Every file of a run is what it is in another folder, but for `KILLED_DIFFER`."""

    def told(value: Any) -> Any:
        """With the address of the server that was asked there."""
        if isinstance(value, str):
            for here, elsewhere in addresses.items():
                value = value.replace(here, elsewhere)
        return value

    names = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert names <= {str(path.relative_to(run)) for path in run.rglob("*")}
    assert differing_results(run, there, "messages") == []
    assert differing(run / "inputs", there / "inputs") == []
    for table, clock in (("rollouts", ()), ("completions", ("latency_ms",))):
        columns, here = rows(run / f"{table}.parquet", *clock)
        assert (columns, [tuple(map(told, row)) for row in here]) == rows(there / f"{table}.parquet", *clock)
    assert told(without_new_keys(run / "spec.yaml")) == with_new_names(there / "spec.yaml")
    for record, other in zip(journal(run), journal(there), strict=True):
        ours = {name: told(value) for name, value in record.items()}
        # 0.1.0 charged nothing for a failure with status 500.
        names = KILLED_DIFFER["journal.jsonl"] | ({"charged"} if record["kind"] == "failure" else set())
        assert without(ours, names) == without(other, names)
    old = without(read_json(there / "manifest.json"), KILLED_DIFFER["manifest.json"] | {"cost_usd_at_most"})
    assert holds(read_json(run / "manifest.json"), old)


# A training run that waits


@pytest.mark.full
def test_a_training_run_goes_on_with_identical_files(folder: Path) -> None:
    """Two models are named; the other group's are made by a command."""
    begun = {path.name for path in (folder / "results" / "runs").iterdir()}
    saved = f"results/runs/{RUNS['learning']}"  # which goes on with it as its spec does
    waits = called("run", saved, "-q", "--set-model", "p=first", cwd=folder)
    assert waits.code == 1
    assert "--set-model p=NAME" in waits.err
    (result,) = called("run", "specs/learning.yaml", "-q", "--json", "--set-model", "p=second", cwd=folder).json
    assert result["run_id"] == RUNS["learning"]
    after = sorted(path.name for path in (FIXTURES / "after").glob("learning-*"))
    assert len(after) == 6
    mine, theirs = (folder / "results" / "runs" / after[0], FIXTURES / "after" / after[0])
    as_there = dict(zip(of_the_dataset(mine), of_the_dataset(theirs), strict=True))
    for name in after:
        run, there = folder / "results" / "runs" / name, FIXTURES / "after" / name
        differ = set(differing(run, there)) - {"troubles.json", *(f"{part}.lock" for part in ("", "v.job/begin"))}
        differ = {path for path in differ if not path.startswith("inputs/trainers/")}  # not stored before 0.2.0
        last = name.endswith("-t2")  # asks the model that was trained on it
        if name not in begun:
            assert last or answers(run) == answers(there)
            differ.discard("journal.jsonl")
        spec = there / "spec.yaml"
        written = replaced(without_new_keys(run / "spec.yaml"), as_there)
        assert written in (spec.read_text("utf-8"), with_new_names(spec))
        names = {Path(path).name for path in differ if Path(path).parent.name != "written"} - {"spec.yaml"}
        assert names <= TRAINING_DIFFERS | (OF_THE_DATASET if name == after[0] else OF_ITS_MODEL if last else set()), (
            differ
        )
        manifest = json.loads(replaced((run / "manifest.json").read_text("utf-8"), as_there))
        other = CLOCK | {"spec_sha256", "version"} | ({"identity", "game_sha256"} if last else set())
        assert holds(manifest, without(read_json(there / "manifest.json"), other))


def of_the_dataset(run: Path) -> tuple[str, str]:
    """The hash of the last dataset of `v`, and the model that was trained on it."""
    iteration = run / "iterations" / "1"
    dataset = (iteration / "v.sft.trl.jsonl").read_bytes()
    return hashlib.sha256(dataset).hexdigest(), (iteration / "v.job" / "model.txt").read_text().strip()


def replaced(text: str, names: dict[str, str]) -> str:
    for name, other in names.items():
        text = text.replace(name, other)
    return text


def answers(run: Path) -> list[dict[str, Any]]:
    """The records of a journal that was begun here or there: one that was begun here has its format before them."""
    return [without(record, {"seq"}) for record in journal(run) if record["kind"] != "begun"]


TRAINING_DIFFERS = {
    "manifest.json", "SHA256SUMS", ".lock", "begin.lock", "trainer.lock", "README.txt", "run.log",
    "environment.lock",
}  # fmt: skip
"""What may differ: what a part that begins now records of how it began; the times of manifests; who held a lock, and
which process trained; the absolute path of a dataset in instructions to people; what is only logged."""

OF_THE_DATASET = {"model.txt", "stages.jsonl", "state.json", "metrics.json"}
"""What says the hash of a dataset or the model that was trained on it, where this version wrote the last of the two
that `v` is trained on: its chats are as they were played, see `teaches_the_same`."""

OF_ITS_MODEL = {"rollouts.parquet", "messages.parquet", "completions.parquet", "metrics.json"}
"""Of the games of that model, whose ids follow from its name."""
