"""Runs, a leaderboard and specs that 0.1.0 left are listed, shown, asked, exported and checked as ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.compatibility.old import (
    FIXTURES,
    RENAMED,
    RUNS,
    called,
    contents,
    differing,
    holds,
    opened,
    read_json,
    rows,
    run_folder,
    same_file,
    teaches_the_same,
)
from tests.fixtures.v0_1_0.make import EXPORTS

QUESTIONS = {
    "runs": "SELECT * FROM runs ORDER BY run_id",
    "agents": "SELECT * FROM agents ORDER BY run_id, agent",
    "metrics": "SELECT * FROM metrics ORDER BY run_id, agent NULLS FIRST, metric",
    "rollouts": "SELECT * FROM rollouts ORDER BY run_id, datapoint_id, repeat, rollout_id",
    "messages": "SELECT * FROM messages ORDER BY run_id, rollout_id, round, channel, agent",
    "completions": "SELECT * FROM completions ORDER BY run_id, rollout_id, round, agent, attempt, error",
    "leaderboard": "SELECT * FROM leaderboard ORDER BY run_id",
}

FINISHED = ("finished", "served", "trees", "malt", "replayed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What 0.1.0 left, for tests that only read; that they do is made sure of in the end."""
    made = opened(tmp_path_factory.mktemp("old"))
    before = contents(made / "results" / "runs")
    yield made
    assert contents(made / "results" / "runs") == before


def test_every_run_is_listed_with_its_manifest(folder: Path) -> None:
    listed = called("runs", "--json", cwd=folder)
    assert listed.err == ""
    found = {row["run_id"]: row for row in listed.json}
    manifests = {path.parent.name: read_json(path) for path in (folder / "results" / "runs").glob("*/manifest.json")}
    assert len(manifests) == len(list((folder / "results" / "runs").iterdir())) == 15
    manifests[RUNS["killed"]]["status"] = "interrupted"  # nobody holds its lock
    assert found.keys() == manifests.keys()
    assert all(holds(found[name], manifests[name]) for name in manifests)


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_shown_with_its_numbers(folder: Path, name: str) -> None:
    run = run_folder(folder, name)
    shown = called("show", RUNS[name], "--json", cwd=folder).json
    assert holds(shown["manifest"], read_json(run / "manifest.json"))
    assert holds(shown["metrics"], read_json(run / "metrics.json"))
    told = called("show", RUNS[name], cwd=folder)
    assert (told.code, told.err) == (0, "")
    assert "accuracy" in told.out
    assert RUNS[name] in told.out


def test_a_killed_run_is_shown_as_one_to_go_on_with(folder: Path) -> None:
    told = called("show", RUNS["killed"], cwd=folder)
    assert told.code == 0
    assert "interrupted" in told.out
    assert "run the same command again" in told.err


def test_a_training_run_tells_what_it_waits_for(folder: Path) -> None:
    shown = called("show", RUNS["learning"], "--json", cwd=folder).json
    said = read_json(FIXTURES / "said" / "learning.json")
    said["metrics"]["next"] = [step.replace("go on with", "continue with") for step in said["metrics"]["next"]]
    assert holds(shown, said)


@pytest.mark.parametrize("name", ["finished", "served", "trees"])
def test_a_transcript_is_told_as_it_was(folder: Path, name: str) -> None:
    shown = called("show", RUNS[name], "test1", "--json", cwd=folder).json
    said = read_json(FIXTURES / "said" / f"{name}-test1.json")
    assert said["transcript"]
    assert holds(shown, said)


def test_misses_of_the_old_cache_are_explained(folder: Path) -> None:
    said = read_json(FIXTURES / "said" / "why-miss.json")
    assert said["requests"] > 20
    assert holds(called("explain-misses", RUNS["served"], "--json", cwd=folder).json, said)


# The leaderboard


def board_rows(results: Path, name: str, columns: tuple[str, ...] = ()) -> tuple[tuple[str, ...], list[Any]]:
    """Rows of the leaderboard file, or of all runs' Parquet files, as JSON has them; read by DuckDB alone."""
    with duckdb.connect(":memory:") as connection:
        if name in ("messages", "completions"):
            files = [str(path) for path in sorted((results / "runs").glob(f"*/{name}.parquet"))]
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({files})")
        else:
            connection.execute(f"ATTACH '{results / 'leaderboard.duckdb'}' AS board (READ_ONLY)")
            connection.execute("USE board")
        found = connection.execute(QUESTIONS[name].replace("*", ", ".join(columns) or "*"))
        names = tuple(item[0] for item in found.description or ())
        return names, json.loads(json.dumps(found.fetchall(), default=str))


@pytest.mark.full
@pytest.mark.parametrize("name", QUESTIONS)
def test_sql_finds_the_rows_that_stand_there(folder: Path, name: str) -> None:
    columns, expected = board_rows(folder / "results", name)
    question = QUESTIONS[name].replace("*", ", ".join(columns))
    found = called("sql", question, "--json", cwd=folder).json
    assert len(expected) > 4
    assert [[row[column] for column in columns] for row in found] == expected


@pytest.mark.full
def test_columns_that_came_since_are_null_there(folder: Path) -> None:
    question = "SELECT count(*) AS n, count(reasoning) AS r, count(verdict_logprobs) AS v FROM completions"
    ((found),) = called("sql", question, "--json", cwd=folder).json
    assert found["n"] > 100
    assert (found["r"], found["v"]) == (0, 0)


@pytest.mark.full
def test_the_leaderboard_ranks_the_runs_it_has(folder: Path) -> None:
    columns = ("run_id", "accuracy", "ci_low", "ci_high", "n", "cost_usd", "models")
    _, expected = board_rows(folder / "results", "leaderboard", columns)
    found = called("leaderboard", "--json", cwd=folder).json
    assert len(expected) == 10
    assert sorted([row[column] for column in columns] for row in found) == sorted(expected)
    assert RUNS["served"] in called("leaderboard", "sums/v1", cwd=folder).out


@pytest.mark.full
def test_a_rebuilt_leaderboard_has_the_rows_of_the_old_one(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    tables = ("runs", "agents", "metrics", "rollouts", "leaderboard")
    before = {name: board_rows(folder / "results", name) for name in tables}
    (folder / "results" / "leaderboard.duckdb").unlink()
    rebuilt = called("leaderboard", "--rebuild", "--json", cwd=folder)
    assert rebuilt.err == ""
    assert len(rebuilt.json["runs"]) == 15
    for name, (columns, old) in before.items():
        _, new = board_rows(folder / "results", name, columns)
        at = columns.index("run_id")
        assert [row for row in new if row[at] != RUNS["killed"]] == old, name
    # A killed process puts no row there; the run's folder tells how it ended.
    _, killed = board_rows(folder / "results", "runs", ("run_id", "status"))
    assert [RUNS["killed"], "interrupted"] in killed


# Exports


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_the_files_that_0_1_0_exported(folder: Path, tmp_path: Path, name: str) -> None:
    done = called("export", RUNS[name.partition("-")[0]], *EXPORTS[name], "--out", str(tmp_path / "out"), cwd=folder)
    assert done.code == 0, done.err
    assert any((FIXTURES / "exports" / name).iterdir())
    assert differing(FIXTURES / "exports" / name, tmp_path / "out") == ["report.json"]  # which 0.1.0 did not write


@pytest.mark.full
@pytest.mark.parametrize("name", ["finished", "served", "trees"])
def test_exports_are_the_files_that_came_with_the_run(folder: Path, tmp_path: Path, name: str) -> None:
    own = run_folder(folder, name) / "fine_tune"
    written = set()
    for consumer in ("openai", "trl", "verl")[: 3 if name == "finished" else 2]:
        out = tmp_path / consumer
        assert called("export", RUNS[name], "--format", consumer, "--out", str(out), cwd=folder).code == 0
        for path in (p for p in out.rglob("*.*") if p.is_file() and p.name != "report.json"):
            old = own / path.relative_to(out)
            assert same_file(path, old) or teaches_the_same(old, path), path
            written.add(path.relative_to(out))
    assert written == {p.relative_to(own) for p in own.rglob("*") if p.is_file()} - {Path("report.json")}


# Specs


def test_every_spec_makes_the_run_that_it_made(folder: Path) -> None:
    """Specs, with the hashes that tell runs apart; and saved ones, played anew elsewhere."""
    said = read_json(FIXTURES / "said" / "check.json")
    saved = [row for row in said if row["spec"].startswith("results/")]
    others = [row for row in said if row not in saved]
    assert (len({row["spec"] for row in others}), len(saved)) == (8, 15)
    for rows_, words in ((others, ()), (saved, ("--results", "elsewhere"))):
        checked = called("check", "--json", *dict.fromkeys(row["spec"] for row in rows_), *words, cwd=folder)
        assert [line for line in checked.err.splitlines() if not line.endswith(RENAMED)] == []
        assert holds([{**row, "notes": []} for row in checked.json], [{**row, "notes": []} for row in rows_])
    there = called("check", "--json", *(row["spec"] for row in saved), cwd=folder).json
    assert [(row["run_id"], row["identity"]) for row in there] == [
        (Path(row["spec"]).parent.name, read_json((folder / row["spec"]).with_name("manifest.json"))["identity"])
        for row in saved
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", ["finished", "trees"])
def test_a_saved_spec_plays_the_same_games(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(run_folder(folder, name), tmp_path / "run")
    (result,) = called("run", "run/spec.yaml", "-q", "--json", cwd=tmp_path).json
    for table in ("rollouts", "messages"):
        old, new = (rows(run / f"{table}.parquet", "run_id") for run in (tmp_path / "run", tmp_path / result["folder"]))
        assert len(old[1]) > 4
        assert new == old
