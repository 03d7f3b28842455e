"""Runs of the dummy provider whose tables contain verdicts planted by a test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import duckdb

from runner.results.leaderboard.results_folder import Results
from tests.support.runs import run_spec
from tests.support.specs import spec_file

SOLO = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None},
    "prompts": "prompts/code_validation/solo_verifier",
    "agents": {"prover": None},
    "fine_tune": None,
}

SIZE = 40
"""Number of datapoints of the runs in `conftest`."""

Verdict = Callable[[int, int], bool | None]
"""Function of the number of a datapoint and a repeat: True if the verdict is right, None if there is none."""


def write_solo_spec(folder: Path, **changes: object) -> Path:
    """Write a spec of a verifier alone with the datapoints p0, p1, ...; the odd ones have label 1."""
    return spec_file(folder, **{**SOLO, **changes})  # type: ignore[arg-type]


def other_system_override(number: int) -> str:
    """Return an override that turns a spec into another system; other seeds are samples of the same system."""
    return f"agents.verifier.max_response_words={100 + number}"


def play_with_planted_verdicts(path: Path, results: Path, run_id: str, verdict: Verdict, *overrides: str) -> str:
    """Play a spec, plant the verdicts, and add the run to the leaderboard."""
    folder = run_spec(path, results, *overrides, run_id=run_id).folder
    folder.unseal()
    plant_verdicts(folder.table("rollouts"), verdict)
    with duckdb.connect(":memory:") as connection:
        sql = f"SELECT avg(correct::INT) FROM read_parquet('{folder.table('rollouts')}')"
        ((accuracy,),) = connection.execute(sql).fetchall()
    metrics = json.loads(folder.metrics.read_text())
    next(row for row in metrics["metrics"] if row["metric"] == "accuracy")["value"] = accuracy
    folder.metrics.write_text(json.dumps(metrics))
    Results(results).board.append(folder)
    return run_id


def plant_verdicts(table: Path, verdict: Verdict) -> None:
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"CREATE TABLE t AS SELECT * FROM read_parquet('{table}')")
        rows = connection.execute("SELECT rollout_id, datapoint_id, repeat FROM t").fetchall()
        is_right_values = [verdict(int(re.sub(r"[^0-9]", "", datapoint)), repeat) for _, datapoint, repeat in rows]
        connection.execute(
            "CREATE TABLE planted AS SELECT unnest(?) AS rollout_id, unnest(?::BOOLEAN[]) AS is_right",
            [[row[0] for row in rows], is_right_values],
        )
        connection.execute(
            "UPDATE t SET correct = coalesce(is_right, false), decision = CASE WHEN is_right THEN y "
            "WHEN NOT is_right THEN 1 - y ELSE 2 END, outcome = CASE WHEN is_right IS NULL THEN 'no_decision' "
            "ELSE 'decided' END FROM planted WHERE planted.rollout_id = t.rollout_id"
        )
        connection.execute(f"COPY t TO '{table}' (FORMAT parquet)")
