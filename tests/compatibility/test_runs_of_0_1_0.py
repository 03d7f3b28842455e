"""Runs, leaderboard and specs of 0.1.0 can be listed, shown, queried, exported and checked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.compatibility.old import (
    FIXTURES,
    RENAMED_KEY_NOTICE,
    RUNS,
    contains,
    copy_old_files,
    find_different_files,
    has_same_content,
    has_same_training_examples,
    hash_files,
    read_json,
    read_table,
    run_command,
    run_folder,
)
from tests.fixtures.v0_1_0.make import EXPORTS

QUERIES = {
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
    """Files of 0.1.0 for tests that only read. The end checks that no run has changed."""
    folder_copy = copy_old_files(tmp_path_factory.mktemp("old"))
    before = hash_files(folder_copy / "results" / "runs")
    yield folder_copy
    assert hash_files(folder_copy / "results" / "runs") == before


def test_every_run_is_listed_with_its_manifest(folder: Path) -> None:
    listed = run_command("runs", "--json", cwd=folder)
    assert listed.err == ""
    read_table = {row["run_id"]: row for row in listed.json}
    manifests = {path.parent.name: read_json(path) for path in (folder / "results" / "runs").glob("*/manifest.json")}
    assert len(manifests) == len(list((folder / "results" / "runs").iterdir())) == 15
    manifests[RUNS["killed"]]["status"] = "interrupted"  # its lock is free
    assert read_table.keys() == manifests.keys()
    assert all(contains(read_table[name], manifests[name]) for name in manifests)


@pytest.mark.parametrize("name", FINISHED)
def test_finished_run_is_shown_with_its_metrics(folder: Path, name: str) -> None:
    run = run_folder(folder, name)
    document = run_command("show", RUNS[name], "--json", cwd=folder).json
    assert contains(document["manifest"], read_json(run / "manifest.json"))
    assert contains(document["metrics"], read_json(run / "metrics.json"))
    printed = run_command("show", RUNS[name], cwd=folder)
    assert (printed.code, printed.err) == (0, "")
    assert "accuracy" in printed.out
    assert RUNS[name] in printed.out


def test_killed_run_is_shown_as_interrupted_with_a_hint_to_resume(folder: Path) -> None:
    printed = run_command("show", RUNS["killed"], cwd=folder)
    assert printed.code == 0
    assert "interrupted" in printed.out
    assert "run the same command again" in printed.err


def test_training_run_shows_its_next_steps(folder: Path) -> None:
    document = run_command("show", RUNS["learning"], "--json", cwd=folder).json
    expected = read_json(FIXTURES / "said" / "learning.json")
    expected["metrics"]["next"] = [step.replace("go on with", "continue with") for step in expected["metrics"]["next"]]
    assert contains(document, expected)


@pytest.mark.parametrize("name", ["finished", "served", "trees"])
def test_transcript_is_shown_as_by_0_1_0(folder: Path, name: str) -> None:
    document = run_command("show", RUNS[name], "test1", "--json", cwd=folder).json
    expected = read_json(FIXTURES / "said" / f"{name}-test1.json")
    assert expected["transcript"]
    assert contains(document, expected)


def test_explain_misses_works_with_the_cache_of_0_1_0(folder: Path) -> None:
    expected = read_json(FIXTURES / "said" / "why-miss.json")
    assert expected["requests"] > 20
    assert contains(run_command("explain-misses", RUNS["served"], "--json", cwd=folder).json, expected)


# The leaderboard


def read_leaderboard_rows(results: Path, name: str, columns: tuple[str, ...] = ()) -> tuple[tuple[str, ...], list[Any]]:
    """Return rows of the leaderboard file or of all runs' Parquet files as JSON values, read with DuckDB only."""
    with duckdb.connect(":memory:") as connection:
        if name in ("messages", "completions"):
            files = [str(path) for path in sorted((results / "runs").glob(f"*/{name}.parquet"))]
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({files})")
        else:
            connection.execute(f"ATTACH '{results / 'leaderboard.duckdb'}' AS board (READ_ONLY)")
            connection.execute("USE board")
        cursor = connection.execute(QUERIES[name].replace("*", ", ".join(columns) or "*"))
        names = tuple(column[0] for column in cursor.description or ())
        return names, json.loads(json.dumps(cursor.fetchall(), default=str))


@pytest.mark.full
@pytest.mark.parametrize("name", QUERIES)
def test_sql_returns_the_stored_rows(folder: Path, name: str) -> None:
    columns, expected = read_leaderboard_rows(folder / "results", name)
    query = QUERIES[name].replace("*", ", ".join(columns))
    read_table = run_command("sql", query, "--json", cwd=folder).json
    assert len(expected) > 4
    assert [[row[column] for column in columns] for row in read_table] == expected


@pytest.mark.full
def test_sql_fills_newer_columns_with_null(folder: Path) -> None:
    query = "SELECT count(*) AS n, count(reasoning) AS r, count(verdict_logprobs) AS v FROM completions"
    ((counts),) = run_command("sql", query, "--json", cwd=folder).json
    assert counts["n"] > 100
    assert (counts["r"], counts["v"]) == (0, 0)


@pytest.mark.full
def test_leaderboard_ranks_the_stored_runs(folder: Path) -> None:
    columns = ("run_id", "accuracy", "ci_low", "ci_high", "n", "cost_usd", "models")
    _, expected = read_leaderboard_rows(folder / "results", "leaderboard", columns)
    read_table = run_command("leaderboard", "--json", cwd=folder).json
    assert len(expected) == 10
    assert sorted([row[column] for column in columns] for row in read_table) == sorted(expected)
    assert RUNS["served"] in run_command("leaderboard", "sums/v1", cwd=folder).out


@pytest.mark.full
def test_a_rebuilt_leaderboard_has_the_rows_of_the_old_one(tmp_path: Path) -> None:
    folder = copy_old_files(tmp_path)
    tables = ("runs", "agents", "metrics", "rollouts", "leaderboard")
    before = {name: read_leaderboard_rows(folder / "results", name) for name in tables}
    (folder / "results" / "leaderboard.duckdb").unlink()
    rebuilt = run_command("leaderboard", "--rebuild", "--json", cwd=folder)
    assert rebuilt.err == ""
    assert len(rebuilt.json["runs"]) == 15
    for name, (columns, old) in before.items():
        _, new = read_leaderboard_rows(folder / "results", name, columns)
        run_id_index = columns.index("run_id")
        assert [row for row in new if row[run_id_index] != RUNS["killed"]] == old, name
    # A killed process writes no row. The run's status comes from its folder.
    _, killed = read_leaderboard_rows(folder / "results", "runs", ("run_id", "status"))
    assert [RUNS["killed"], "interrupted"] in killed


# Exports


@pytest.mark.parametrize("name", EXPORTS)
def test_export_equals_the_export_of_0_1_0(folder: Path, tmp_path: Path, name: str) -> None:
    result = run_command(
        "export", RUNS[name.partition("-")[0]], *EXPORTS[name], "--out", str(tmp_path / "out"), cwd=folder
    )
    assert result.code == 0, result.err
    assert any((FIXTURES / "exports" / name).iterdir())
    assert find_different_files(FIXTURES / "exports" / name, tmp_path / "out") == [
        "report.json"
    ]  # which 0.1.0 did not write


@pytest.mark.full
@pytest.mark.parametrize("name", ["finished", "served", "trees"])
def test_export_equals_the_fine_tune_files_of_the_run(folder: Path, tmp_path: Path, name: str) -> None:
    fine_tune_folder = run_folder(folder, name) / "fine_tune"
    written = set()
    for consumer in ("openai", "trl", "verl")[: 3 if name == "finished" else 2]:
        out = tmp_path / consumer
        assert run_command("export", RUNS[name], "--format", consumer, "--out", str(out), cwd=folder).code == 0
        for path in (p for p in out.rglob("*.*") if p.is_file() and p.name != "report.json"):
            old = fine_tune_folder / path.relative_to(out)
            assert has_same_content(path, old) or has_same_training_examples(old, path), path
            written.add(path.relative_to(out))
    assert written == {p.relative_to(fine_tune_folder) for p in fine_tune_folder.rglob("*") if p.is_file()} - {
        Path("report.json")
    }


# Specs


def test_every_spec_has_the_run_id_and_identity_of_0_1_0(folder: Path) -> None:
    """This also holds for saved specs that are played with another results folder."""
    expected = read_json(FIXTURES / "said" / "check.json")
    saved = [row for row in expected if row["spec"].startswith("results/")]
    unsaved = [row for row in expected if row not in saved]
    assert (len({row["spec"] for row in unsaved}), len(saved)) == (8, 15)
    for expected_rows, options in ((unsaved, ()), (saved, ("--results", "elsewhere"))):
        checked = run_command(
            "check", "--json", *dict.fromkeys(row["spec"] for row in expected_rows), *options, cwd=folder
        )
        assert [line for line in checked.err.splitlines() if not line.endswith(RENAMED_KEY_NOTICE)] == []
        assert contains([{**row, "notes": []} for row in checked.json], [{**row, "notes": []} for row in expected_rows])
    checked_in_place = run_command("check", "--json", *(row["spec"] for row in saved), cwd=folder).json
    assert [(row["run_id"], row["identity"]) for row in checked_in_place] == [
        (Path(row["spec"]).parent.name, read_json((folder / row["spec"]).with_name("manifest.json"))["identity"])
        for row in saved
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", ["finished", "trees"])
def test_saved_spec_plays_the_same_games(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(run_folder(folder, name), tmp_path / "run")
    (row,) = run_command("run", "run/spec.yaml", "-q", "--json", cwd=tmp_path).json
    for table in ("rollouts", "messages"):
        old, new = (
            read_table(run / f"{table}.parquet", "run_id") for run in (tmp_path / "run", tmp_path / row["folder"])
        )
        assert len(old[1]) > 4
        assert new == old
