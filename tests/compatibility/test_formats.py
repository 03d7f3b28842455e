"""Every file states its format. A file of a newer version of nip-run is refused before anything is changed."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.compatibility.old import RUNS, called, contents, journal, opened, read_json, run_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return opened(tmp_path)


def board_format(path: Path) -> int | None:
    with duckdb.connect(str(path), read_only=True) as connection:
        has_table = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'format'").fetchall()
        return connection.execute("SELECT version FROM format").fetchall()[0][0] if has_table else None


def cache_format(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


@pytest.mark.full
def test_everything_new_says_its_format(folder: Path) -> None:
    words = ("models.m={provider: dummy}", "cache=own.sqlite")
    (played,) = called("run", "specs/finished.yaml", *words, "--json", "--results", "new", cwd=folder).json
    assert called("run", "specs/learning.yaml", "-q", "--results", "new", cwd=folder).code == 1
    run = folder / played["folder"]
    assert read_json(run / "manifest.json")["format"] == 1
    manifest, first = read_json(run / "manifest.json"), journal(run)[0]
    whose = {"run": manifest["identity"], "run_id": manifest["run_id"]}
    assert first == {"kind": "begun", "format": 2, "seq": 0, **whose, "journal": first["journal"]}
    assert len(first["journal"]) == 16
    assert [record["kind"] for record in journal(run)].count("begun") == 1
    begun = journal(run_folder(folder, "learning", "new"), "stages.jsonl")[0]
    training = read_json(run_folder(folder, "learning", "new") / "manifest.json")
    assert (begun["stage"], begun["format"], begun["run"]) == ("begun", 2, training["identity"])
    assert cache_format(folder / "own.sqlite") == 1
    assert board_format(folder / "new" / "leaderboard.duckdb") == 7


@pytest.mark.full
def test_what_0_1_0_began_goes_on_as_it_was_begun(folder: Path) -> None:
    """The logs are only appended to; a manifest and a board are written anew, and so in the format of today."""
    run, board = run_folder(folder, "finished"), folder / "results" / "leaderboard.duckdb"
    assert "format" not in read_json(run / "manifest.json")
    assert board_format(board) is None
    longer = called("run", "specs/finished.yaml", "rollouts.per_datapoint=3", "-q", cwd=folder)
    assert longer.code == 0
    again = ("models.m.chat_format=openai", "--results", "again")  # a new run, which the cache answers
    assert called("run", "specs/served.yaml", "-q", *again, cwd=folder).code == 0
    assert all("format" not in record and record["kind"] != "begun" for record in journal(run))
    assert len({record["sample"][1] for record in journal(run)}) == 3
    assert cache_format(folder / "cache.sqlite") == 0
    assert read_json(run / "manifest.json")["format"] == 1
    assert board_format(board) == 7


# What a newer version of nip-run wrote


def newer_manifest(folder: Path) -> Path:
    path = run_folder(folder, "finished") / "manifest.json"
    path.write_text(json.dumps({"format": 2, "what": "is not known"}), "utf-8")
    return path


def newer_log(path: Path) -> Path:
    """The first record has the form that it has in every version; what follows need not."""
    body = json.dumps({"format": 3, "seq": 0, "kind": "begun"}, sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(b"%08x %b\n" % (zlib.crc32(body), body) + b"what is not known")
    return path


def newer_journal(folder: Path) -> Path:
    return newer_log(run_folder(folder, "killed") / "journal.jsonl")


def newer_stages(folder: Path) -> Path:
    return newer_log(run_folder(folder, "learning") / "stages.jsonl")


def newer_cache(folder: Path) -> Path:
    path = folder / "cache.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    return path


def newer_board(folder: Path) -> Path:
    path = folder / "results" / "leaderboard.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE format AS SELECT 8 AS version")
    return path


REFUSED = {
    "show a run": (newer_manifest, ("show", RUNS["finished"])),
    "run": (newer_manifest, ("run", "specs/finished.yaml")),
    "run longer": (newer_manifest, ("run", "specs/finished.yaml", "rollouts.per_datapoint=3")),
    "run under its id": (newer_manifest, ("run", "specs/trees.yaml", "--run-id", RUNS["finished"])),
    "export": (newer_manifest, ("export", RUNS["finished"], "--format", "trl")),
    "resume": (newer_journal, ("run", "specs/killed.yaml")),
    "resume with no budget": (newer_journal, ("run", "specs/killed.yaml", "budget.usd=null")),
    "show a rollout": (newer_journal, ("show", RUNS["killed"], "test0")),
    "replay": (newer_journal, ("run", "specs/killed.yaml", "--replay", RUNS["killed"], "--run-id", RUNS["killed"])),
    "show a training run": (newer_stages, ("show", RUNS["learning"])),
    "train on": (newer_stages, ("run", "specs/learning.yaml", "--set-model", "p=first")),
    "explain misses": (newer_cache, ("explain-misses", RUNS["served"])),
    "leaderboard": (newer_board, ("leaderboard",)),
    "sql": (newer_board, ("sql", "SELECT run_id FROM runs")),
    "rebuild": (newer_board, ("leaderboard", "--rebuild")),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_newer_is_refused_and_nothing_is_changed(folder: Path, name: str) -> None:
    make, words = REFUSED[name]
    path = make(folder)
    before = contents(folder)
    refused = called(*words, cwd=folder)
    assert refused.code == 1
    begins = str(path.relative_to(folder)) if name != "explain misses" else "results/runs/served"
    assert any(line.startswith(begins) for line in refused.err.splitlines())
    newer, known = {".jsonl": (3, 2), ".duckdb": (8, 7)}.get(path.suffix, (2, 1))
    formats = f"its format is {newer}, this version reads up to {known}"
    assert f"{path.name} was written by a newer version of nip-run ({formats}); upgrade" in refused.err
    assert contents(folder) == before


@pytest.mark.sample(1)
@pytest.mark.parametrize(("make", "spec"), [(newer_cache, "served"), (newer_board, "sweep")])
def test_what_a_run_shares_with_others_is_left_as_it_is(folder: Path, make: Callable[[Path], Path], spec: str) -> None:
    """The run fails, or its rows are not on the board; its own records are kept."""
    path = make(folder)
    before = path.read_bytes()
    words = ("--again",) if spec == "sweep" else ("--results", "again")
    refused = called("run", f"specs/{spec}.yaml", *words, cwd=folder)
    assert refused.code == 1
    assert "was written by a newer version of nip-run" in refused.err
    assert path.read_bytes() == before


@pytest.mark.full
def test_a_newer_run_is_left_out_of_lists_with_a_word(folder: Path) -> None:
    path = newer_manifest(folder)
    for words in (("runs", "--json"), ("leaderboard", "--rebuild", "--json")):
        listed = called(*words, cwd=folder)
        assert RUNS["finished"] not in listed.out
        assert RUNS["served"] in listed.out
        assert str(path.relative_to(folder)) in listed.err
        assert "upgrade nip-run; the run is left out" in listed.err
        assert "Remove" not in listed.err


def test_a_format_that_is_no_number_is_not_taken_for_an_old_one(folder: Path) -> None:
    path = run_folder(folder, "finished") / "manifest.json"
    path.write_text(json.dumps({**read_json(path), "format": "next"}), "utf-8")
    refused = called("run", "specs/finished.yaml", cwd=folder)
    assert refused.code == 1
    assert "its format cannot be 'next'" in refused.err
