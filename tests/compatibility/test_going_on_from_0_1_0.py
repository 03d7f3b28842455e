"""Runs that 0.1.0 began resume as 0.1.0 would have resumed them. Finished runs are not played again."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.old import (
    FIXTURE_INFO,
    FIXTURES,
    RUNS,
    contains,
    copy_old_files,
    find_different_files,
    find_different_results,
    hash_files,
    read_journal,
    read_json,
    read_table,
    remove_new_keys,
    rename_old_keys,
    run_command,
    run_folder,
)
from tests.fixtures.v0_1_0.make import KILLED_FAULTS, PORT
from tests.support.servers.chat_client import run_chat_server

TIMES = {"started_at", "finished_at"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_old_files(tmp_path)


# Finished runs


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["finished", "served", "trees", "malt", "replayed", "sweep"])
def test_finished_run_is_shown_and_not_played(folder: Path, name: str) -> None:
    before = hash_files(folder)
    result = run_command("run", f"specs/{name}.yaml", "--json", cwd=folder)
    read_table = result.json
    assert [row["was_finished"] for row in read_table] == [True] * (2 if name == "sweep" else 1)
    assert all(row["run_id"] == RUNS.get(name, row["run_id"]) for row in read_table)
    assert hash_files(folder) == before


@pytest.mark.full
def test_finished_run_is_shown_by_its_folder(folder: Path) -> None:
    """This includes parts of training runs, replays and sweep points."""
    before = hash_files(folder)
    unfinished = {RUNS["killed"], RUNS["learning"]}
    runs = [path for path in sorted((folder / "results" / "runs").iterdir()) if path.name not in unfinished]
    read_table = run_command("run", *(f"results/runs/{path.name}" for path in runs), "--json", cwd=folder).json
    assert [(row["run_id"], row["was_finished"]) for row in read_table] == [(path.name, True) for path in runs]
    assert len(runs) == 13
    assert hash_files(folder) == before


@pytest.mark.full
@pytest.mark.parametrize("name", ["finished", "served", "trees", "replayed"])
def test_results_are_rebuilt_from_the_journal_without_requests(folder: Path, name: str) -> None:
    """Another concurrency keeps the run, but rebuilds every file: without requests and with equal content."""
    run = run_folder(folder, name)
    old = shutil.copytree(run, folder / "old")
    with run_chat_server() as server:
        overrides = [f"models.m.base_url={server.base_url}"] if name == "served" else []
        result = run_command("run", f"specs/{name}.yaml", "--json", "rollouts.concurrency=3", *overrides, cwd=folder)
        assert server.requests == 0
    (row,) = result.json
    assert (row["run_id"], row["was_finished"]) == (RUNS[name], False)
    assert (run / "journal.jsonl").read_bytes() == (old / "journal.jsonl").read_bytes()
    assert find_different_results(run, old) == []
    changed_keys = {"finished_at", "spec_sha256"}
    assert contains(read_json(run / "manifest.json"), omit_keys(read_json(old / "manifest.json"), changed_keys))


def omit_keys(mapping: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a manifest or record without some keys."""
    return {name: value for name, value in mapping.items() if name not in names}


def test_replay_gives_the_same_results_without_requests(folder: Path) -> None:
    source = f"results/runs/{RUNS['served']}"
    with run_chat_server() as server:
        server_option = f"models.m.base_url={server.base_url}"
        options = ("--replay", source, "--results", "again", server_option)
        (row,) = run_command("run", "specs/served.yaml", "--json", *options, cwd=folder).json
        assert server.requests == 0
    assert find_different_results(folder / row["folder"], folder / source) == []


@pytest.mark.full
def test_replay_made_by_0_1_0_can_be_replayed(folder: Path) -> None:
    source = RUNS["served"] + "-replay"
    with run_chat_server() as server:
        server_option = f"models.m.base_url={server.base_url}"
        (row,) = run_command("run", "specs/served.yaml", "--json", "--replay", source, server_option, cwd=folder).json
        assert server.requests == 0
    assert row["run_id"] not in (RUNS["served"], source)
    for table in ("rollouts.parquet", "messages.parquet"):
        new, old = folder / row["folder"] / table, run_folder(folder, "served") / table
        assert read_table(new, "run_id") == read_table(old, "run_id")


@pytest.mark.full
def test_replay_reports_zero_cost_if_prices_are_unknown(folder: Path) -> None:
    options = ("--replay", f"results/runs/{RUNS['served']}", "--results", "again", "~models.m.price")
    printed = run_command("run", "specs/served.yaml", *options, "models.m.base_url=http://127.0.0.1:9/v1", cwd=folder)
    (row,) = run_command("runs", "--json", "--results", "again", cwd=folder).json
    assert row["cost_usd"] is None  # no price is known
    assert f"cost      $0.0000 (replayed), {row['completions']} answers\n" in printed.out
    details = run_command("show", "last", "--results", "again", cwd=folder)
    assert re.search(r"^cost_usd +0.0$", details.out, re.MULTILINE)


def test_cache_of_0_1_0_answers_every_request(folder: Path) -> None:
    """A cache key includes the server's address, so the spec keeps that address. No server listens there."""
    options = ("models.m.chat_format=openai", "--results", "again")
    (row,) = run_command("run", "specs/served.yaml", "--json", *options, cwd=folder).json
    new, old = folder / row["folder"], run_folder(folder, "served")
    assert row["cost_usd"] == 0
    records = [record for record in read_journal(new) if record["kind"] != "begun"]
    assert {(record["kind"], record["cache"]) for record in records} == {("call", True)}
    assert len(records) == sum(record["kind"] == "call" for record in read_journal(old))
    assert find_different_results(new, old, "rollouts", "messages") == []


@pytest.mark.full
def test_explain_misses_compares_requests_with_the_cache_of_0_1_0(folder: Path) -> None:
    with run_chat_server() as server:
        server_option = f"models.m.base_url={server.base_url}"
        overrides = (
            "models.m.temperature=0.5",
            "models.m.chat_format=openai",
            "models.m.share_prompts=false",
            server_option,
        )
        (run,) = run_command("run", "specs/served.yaml", "--json", *overrides, cwd=folder).json
        assert server.requests > 0
    explained = run_command("explain-misses", run["run_id"], "--json", cwd=folder).json["explained"]
    differences = {row["field"]: row["nearest"] for row in explained[0]["differences"]}
    assert differences == {"base_url": f"http://127.0.0.1:{PORT}/v1", "temperature": 1.0}


@pytest.mark.full
def test_run_by_folder_replays_without_requests_and_refuses_a_training_part(folder: Path) -> None:
    replay, part = (f"results/runs/{name}" for name in (RUNS["served"] + "-replay", RUNS["learning"] + "-i0"))
    with run_chat_server() as server:
        options = ("rollouts.concurrency=3", f"models.m.base_url={server.base_url}", "--json")
        (row,) = run_command("run", replay, *options, cwd=folder).json
        assert (row["run_id"], row["was_finished"]) == (Path(replay).name, False)
        assert server.requests == 0
    new, old = (run / "messages.parquet" for run in (folder / replay, run_folder(folder, "served")))
    assert read_table(new, "run_id") == read_table(old, "run_id")
    refused = run_command("run", part, "rollouts.per_datapoint=9", cwd=folder)
    assert refused.code == 1
    assert f"resume that run with nip-run results/runs/{RUNS['learning']}," in refused.err


# A run that was killed

VARYING_KEYS = {
    "manifest.json": TIMES | {"spec_sha256"},
    "journal.jsonl": {"ms", "wait"},
}
"""Keys that may differ, by file: times, the hash of the spec, which names the server's port, latencies and random
delays. Latencies are also in `completions.parquet`, and the port is in `spec.yaml` and in error messages. `run.log`
and `.lock` describe only the process."""


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize(("torn_bytes", "argument"), [(0, "spec"), (30, "spec"), (0, "folder")])
def test_killed_run_resumes_with_identical_files(folder: Path, torn_bytes: int, argument: str) -> None:
    run, expected_run = run_folder(folder, "killed"), FIXTURES / "after" / RUNS["killed"]
    recorded = (run / "journal.jsonl").read_bytes()
    if torn_bytes:
        (run / "journal.jsonl").write_bytes(recorded + find_next_journal_line(expected_run, recorded)[:torn_bytes])
    assert (run / ".in_flight").is_file()
    assert (run / ".parts").is_dir()
    with run_chat_server(faults=KILLED_FAULTS) as server:
        overrides = ["rollouts.concurrency=1", f"models.m.base_url={server.base_url}"]
        spec = "specs/killed.yaml" if argument == "spec" else str(run.relative_to(folder))
        result = run_command("run", spec, "--json", *overrides, cwd=folder)
        requests = server.requests
        addresses = {server.base_url: f"http://127.0.0.1:{PORT}/v1"}
    (row,) = result.json
    assert (row["run_id"], row["was_finished"]) == (RUNS["killed"], False)
    assert any("incomplete line" in line for line in row["notes"]) == bool(torn_bytes)
    assert any("started with models.m.chat_format=openai" in line for line in row["notes"])
    assert requests == FIXTURE_INFO["requests"]["killed"]
    assert (run / "journal.jsonl").read_bytes().startswith(recorded)
    assert not (run / ".in_flight").exists()
    assert not (run / ".parts").exists()
    check_run_equals(run, expected_run, addresses)


def find_next_journal_line(run: Path, recorded: bytes) -> bytes:
    data = (run / "journal.jsonl").read_bytes()
    assert data.startswith(recorded)
    return data[len(recorded) :].partition(b"\n")[0]


def check_run_equals(run: Path, expected_run: Path, addresses: dict[str, str]) -> None:
    """Assert that every file of a run equals that of the expected run, except `VARYING_KEYS`."""

    def replace_addresses(text: Any) -> Any:
        """Replace the server's address by that in the expected run."""
        if isinstance(text, str):
            for actual_rows, elsewhere in addresses.items():
                text = text.replace(actual_rows, elsewhere)
        return text

    names = {str(path.relative_to(expected_run)) for path in expected_run.rglob("*") if path.is_file()}
    assert names <= {str(path.relative_to(run)) for path in run.rglob("*")}
    assert find_different_results(run, expected_run, "messages") == []
    assert find_different_files(run / "inputs", expected_run / "inputs") == []
    for table, excluded in (("rollouts", ()), ("completions", ("latency_ms",))):
        columns, actual_rows = read_table(run / f"{table}.parquet", *excluded)
        assert (columns, [tuple(map(replace_addresses, row)) for row in actual_rows]) == read_table(
            expected_run / f"{table}.parquet", *excluded
        )
    assert replace_addresses(remove_new_keys(run / "spec.yaml")) == rename_old_keys(expected_run / "spec.yaml")
    for record, expected_record in zip(read_journal(run), read_journal(expected_run), strict=True):
        actual_record = {name: replace_addresses(value) for name, value in record.items()}
        # 0.1.0 charged nothing for a failure with status 500.
        names = VARYING_KEYS["journal.jsonl"] | ({"charged"} if record["kind"] == "failure" else set())
        assert omit_keys(actual_record, names) == omit_keys(expected_record, names)
    expected_manifest = omit_keys(
        read_json(expected_run / "manifest.json"), VARYING_KEYS["manifest.json"] | {"cost_usd_at_most"}
    )
    assert contains(read_json(run / "manifest.json"), expected_manifest)


# A training run that waits


@pytest.mark.full
def test_training_run_resumes_with_identical_files(folder: Path) -> None:
    """The test names two models. A command trains those of the other group."""
    begun_before = {path.name for path in (folder / "results" / "runs").iterdir()}
    saved = f"results/runs/{RUNS['learning']}"  # resumes the run as its spec does
    waiting = run_command("run", saved, "-q", "--set-model", "p=first", cwd=folder)
    assert waiting.code == 1
    assert "--set-model p=NAME" in waiting.err
    (row,) = run_command("run", "specs/learning.yaml", "-q", "--json", "--set-model", "p=second", cwd=folder).json
    assert row["run_id"] == RUNS["learning"]
    expected_names = sorted(path.name for path in (FIXTURES / "after").glob("learning-*"))
    assert len(expected_names) == 6
    actual_run, expected_run = (folder / "results" / "runs" / expected_names[0], FIXTURES / "after" / expected_names[0])
    replacements = dict(
        zip(read_dataset_hash_and_model(actual_run), read_dataset_hash_and_model(expected_run), strict=True)
    )
    for name in expected_names:
        run, expected_folder = folder / "results" / "runs" / name, FIXTURES / "after" / name
        differences = set(find_different_files(run, expected_folder)) - {
            "troubles.json",
            *(f"{part}.lock" for part in ("", "v.job/begin")),
        }
        differences = {
            path for path in differences if not path.startswith("inputs/trainers/")
        }  # not stored before 0.2.0
        uses_trained_model = name.endswith("-t2")  # uses the model trained on the dataset
        if name not in begun_before:
            assert uses_trained_model or read_answers(run) == read_answers(expected_folder)
            differences.discard("journal.jsonl")
        spec = expected_folder / "spec.yaml"
        text = replace_names(remove_new_keys(run / "spec.yaml"), replacements)
        assert text in (spec.read_text("utf-8"), rename_old_keys(spec))
        names = {Path(path).name for path in differences if Path(path).parent.name != "written"} - {"spec.yaml"}
        assert names <= VARYING_TRAINING_FILES | (
            FILES_WITH_DATASET_HASH
            if name == expected_names[0]
            else FILES_OF_THE_TRAINED_MODEL
            if uses_trained_model
            else set()
        ), differences
        manifest = json.loads(replace_names((run / "manifest.json").read_text("utf-8"), replacements))
        excluded_keys = (
            TIMES | {"spec_sha256", "version"} | ({"identity", "game_sha256"} if uses_trained_model else set())
        )
        assert contains(manifest, omit_keys(read_json(expected_folder / "manifest.json"), excluded_keys))


def read_dataset_hash_and_model(run: Path) -> tuple[str, str]:
    """Return the hash of the last dataset of `v`, and the model trained on it."""
    iteration = run / "iterations" / "1"
    dataset = (iteration / "v.sft.trl.jsonl").read_bytes()
    return hashlib.sha256(dataset).hexdigest(), (iteration / "v.job" / "model.txt").read_text().strip()


def replace_names(text: str, replacements: dict[str, str]) -> str:
    for name, replacement in replacements.items():
        text = text.replace(name, replacement)
    return text


def read_answers(run: Path) -> list[dict[str, Any]]:
    """Return the records of a journal without the header, which 0.1.0 did not write."""
    return [omit_keys(record, {"seq"}) for record in read_journal(run) if record["kind"] != "begun"]


VARYING_TRAINING_FILES = {
    "manifest.json", "SHA256SUMS", ".lock", "begin.lock", "trainer.lock", "README.txt", "run.log",
    "environment.lock",
}  # fmt: skip
"""Files that may differ: they contain times, lock holders, process ids, absolute paths or log lines."""

FILES_WITH_DATASET_HASH = {"model.txt", "stages.jsonl", "state.json", "metrics.json"}
"""Files with the hash of a dataset or the model trained on it. This version writes the last dataset of `v` in another
chat format than 0.1.0; see `has_same_training_examples`."""

FILES_OF_THE_TRAINED_MODEL = {"rollouts.parquet", "messages.parquet", "completions.parquet", "metrics.json"}
"""Files with the games of the trained model, whose ids depend on its name."""
