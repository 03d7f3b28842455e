"""Every file states its format. A file of a newer version of nip-run is refused before anything is changed."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.compatibility.old import RUNS, copy_old_files, hash_files, read_journal, read_json, run_command, run_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_old_files(tmp_path)


def read_leaderboard_format(path: Path) -> int | None:
    with duckdb.connect(str(path), read_only=True) as connection:
        has_table = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'format'").fetchall()
        return connection.execute("SELECT version FROM format").fetchall()[0][0] if has_table else None


def read_cache_format(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


@pytest.mark.full
def test_new_files_state_their_format(folder: Path) -> None:
    options = ("models.m={provider: dummy}", "cache=own.sqlite")
    (played,) = run_command("run", "specs/finished.yaml", *options, "--json", "--results", "new", cwd=folder).json
    assert run_command("run", "specs/learning.yaml", "-q", "--results", "new", cwd=folder).code == 1
    run = folder / played["folder"]
    assert read_json(run / "manifest.json")["format"] == 1
    manifest, first = read_json(run / "manifest.json"), read_journal(run)[0]
    identities = {"run": manifest["identity"], "run_id": manifest["run_id"]}
    assert first == {"kind": "begun", "format": 2, "seq": 0, **identities, "journal": first["journal"]}
    assert len(first["journal"]) == 16
    assert [record["kind"] for record in read_journal(run)].count("begun") == 1
    first_stage = read_journal(run_folder(folder, "learning", "new"), "stages.jsonl")[0]
    training = read_json(run_folder(folder, "learning", "new") / "manifest.json")
    assert (first_stage["stage"], first_stage["format"], first_stage["run"]) == ("begun", 2, training["identity"])
    assert read_cache_format(folder / "own.sqlite") == 1
    assert read_leaderboard_format(folder / "new" / "leaderboard.duckdb") == 7


@pytest.mark.full
def test_logs_of_0_1_0_keep_their_format_when_extended(folder: Path) -> None:
    """Logs are only appended to. Manifests and leaderboards are rewritten, in the current format."""
    run, board = run_folder(folder, "finished"), folder / "results" / "leaderboard.duckdb"
    assert "format" not in read_json(run / "manifest.json")
    assert read_leaderboard_format(board) is None
    longer = run_command("run", "specs/finished.yaml", "rollouts.per_datapoint=3", "-q", cwd=folder)
    assert longer.code == 0
    options = ("models.m.chat_format=openai", "--results", "again")  # a new run, which the cache answers
    assert run_command("run", "specs/served.yaml", "-q", *options, cwd=folder).code == 0
    assert all("format" not in record and record["kind"] != "begun" for record in read_journal(run))
    assert len({record["sample"][1] for record in read_journal(run)}) == 3
    assert read_cache_format(folder / "cache.sqlite") == 0
    assert read_json(run / "manifest.json")["format"] == 1
    assert read_leaderboard_format(board) == 7


# Files of a newer version of nip-run


def write_newer_manifest(folder: Path) -> Path:
    path = run_folder(folder, "finished") / "manifest.json"
    path.write_text(json.dumps({"format": 2, "what": "is not known"}), "utf-8")
    return path


def write_newer_log(path: Path) -> Path:
    """Write a log with a first record, which is the same in every version, and an unknown second one."""
    body = json.dumps({"format": 3, "seq": 0, "kind": "begun"}, sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(b"%08x %b\n" % (zlib.crc32(body), body) + b"what is not known")
    return path


def write_newer_journal(folder: Path) -> Path:
    return write_newer_log(run_folder(folder, "killed") / "journal.jsonl")


def write_newer_stages(folder: Path) -> Path:
    return write_newer_log(run_folder(folder, "learning") / "stages.jsonl")


def write_newer_cache(folder: Path) -> Path:
    path = folder / "cache.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    return path


def write_newer_leaderboard(folder: Path) -> Path:
    path = folder / "results" / "leaderboard.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE format AS SELECT 8 AS version")
    return path


REFUSED_COMMANDS = {
    "show a run": (write_newer_manifest, ("show", RUNS["finished"])),
    "run": (write_newer_manifest, ("run", "specs/finished.yaml")),
    "run longer": (write_newer_manifest, ("run", "specs/finished.yaml", "rollouts.per_datapoint=3")),
    "run under its id": (write_newer_manifest, ("run", "specs/trees.yaml", "--run-id", RUNS["finished"])),
    "export": (write_newer_manifest, ("export", RUNS["finished"], "--format", "trl")),
    "resume": (write_newer_journal, ("run", "specs/killed.yaml")),
    "resume with no budget": (write_newer_journal, ("run", "specs/killed.yaml", "budget.usd=null")),
    "show a rollout": (write_newer_journal, ("show", RUNS["killed"], "test0")),
    "replay": (
        write_newer_journal,
        ("run", "specs/killed.yaml", "--replay", RUNS["killed"], "--run-id", RUNS["killed"]),
    ),
    "show a training run": (write_newer_stages, ("show", RUNS["learning"])),
    "train on": (write_newer_stages, ("run", "specs/learning.yaml", "--set-model", "p=first")),
    "explain misses": (write_newer_cache, ("explain-misses", RUNS["served"])),
    "leaderboard": (write_newer_leaderboard, ("leaderboard",)),
    "sql": (write_newer_leaderboard, ("sql", "SELECT run_id FROM runs")),
    "rebuild": (write_newer_leaderboard, ("leaderboard", "--rebuild")),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", REFUSED_COMMANDS)
def test_file_of_a_newer_format_is_refused_and_nothing_is_changed(folder: Path, name: str) -> None:
    write_newer, arguments = REFUSED_COMMANDS[name]
    path = write_newer(folder)
    before = hash_files(folder)
    refused = run_command(*arguments, cwd=folder)
    assert refused.code == 1
    prefix = str(path.relative_to(folder)) if name != "explain misses" else "results/runs/served"
    assert any(line.startswith(prefix) for line in refused.err.splitlines())
    newer_format, known_format = {".jsonl": (3, 2), ".duckdb": (8, 7)}.get(path.suffix, (2, 1))
    formats = f"its format is {newer_format}, this version reads up to {known_format}"
    assert f"{path.name} was written by a newer version of nip-run ({formats}); upgrade" in refused.err
    assert hash_files(folder) == before


@pytest.mark.sample(1)
@pytest.mark.parametrize(("write_newer", "spec"), [(write_newer_cache, "served"), (write_newer_leaderboard, "sweep")])
def test_run_leaves_a_shared_file_of_a_newer_format_unchanged(
    folder: Path, write_newer: Callable[[Path], Path], spec: str
) -> None:
    """The run fails or is missing on the leaderboard, but its own records are stored."""
    path = write_newer(folder)
    before = path.read_bytes()
    options = ("--again",) if spec == "sweep" else ("--results", "again")
    refused = run_command("run", f"specs/{spec}.yaml", *options, cwd=folder)
    assert refused.code == 1
    assert "was written by a newer version of nip-run" in refused.err
    assert path.read_bytes() == before


@pytest.mark.full
def test_run_of_a_newer_format_is_left_out_of_lists_with_a_warning(folder: Path) -> None:
    path = write_newer_manifest(folder)
    for arguments in (("runs", "--json"), ("leaderboard", "--rebuild", "--json")):
        listed = run_command(*arguments, cwd=folder)
        assert RUNS["finished"] not in listed.out
        assert RUNS["served"] in listed.out
        assert str(path.relative_to(folder)) in listed.err
        assert "upgrade nip-run; the run is left out" in listed.err
        assert "Remove" not in listed.err


def test_format_that_is_not_a_number_is_refused(folder: Path) -> None:
    path = run_folder(folder, "finished") / "manifest.json"
    path.write_text(json.dumps({**read_json(path), "format": "next"}), "utf-8")
    refused = run_command("run", "specs/finished.yaml", cwd=folder)
    assert refused.code == 1
    assert "its format cannot be 'next'" in refused.err
