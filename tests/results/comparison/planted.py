"""Runs of the dummy provider with verdicts that a test has planted in their tables, which is what is compared."""

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
"""Datapoints of the runs in `conftest`."""

Verdict = Callable[[int, int], bool | None]
"""Whether the verdict on datapoint `p<i>` is right, in this repeat; None: there was none."""


def solo_spec(folder: Path, **changes: object) -> Path:
    """A spec of a verifier alone, whose datapoints are p0, p1, ...: the odd ones are right."""
    return spec_file(folder, **{**SOLO, **changes})  # type: ignore[arg-type]


def other_system(number: int) -> str:
    """Return an override that makes another system of a spec: seeds alone make samples of one system."""
    return f"agents.verifier.max_response_words={100 + number}"


def planted(path: Path, results: Path, run_id: str, verdict: Verdict, *overrides: str) -> str:
    """Play a spec, plant the verdicts, and put the run on the board."""
    folder = run_spec(path, results, *overrides, run_id=run_id).folder
    folder.unseal()
    plant(folder.table("rollouts"), verdict)
    with duckdb.connect(":memory:") as connection:
        sql = f"SELECT avg(correct::INT) FROM read_parquet('{folder.table('rollouts')}')"
        ((accuracy,),) = connection.execute(sql).fetchall()
    metrics = json.loads(folder.metrics.read_text())
    next(row for row in metrics["metrics"] if row["metric"] == "accuracy")["value"] = accuracy
    folder.metrics.write_text(json.dumps(metrics))
    Results(results).board.append(folder)
    return run_id


def plant(table: Path, verdict: Verdict) -> None:
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"CREATE TABLE t AS SELECT * FROM read_parquet('{table}')")
        rows = connection.execute("SELECT rollout_id, datapoint_id, repeat FROM t").fetchall()
        rights = [verdict(int(re.sub(r"[^0-9]", "", datapoint)), repeat) for _, datapoint, repeat in rows]
        connection.execute(
            "CREATE TABLE planted AS SELECT unnest(?) AS rollout_id, unnest(?::BOOLEAN[]) AS is_right",
            [[row[0] for row in rows], rights],
        )
        connection.execute(
            "UPDATE t SET correct = coalesce(is_right, false), decision = CASE WHEN is_right THEN y "
            "WHEN NOT is_right THEN 1 - y ELSE 2 END, outcome = CASE WHEN is_right IS NULL THEN 'no_decision' "
            "ELSE 'decided' END FROM planted WHERE planted.rollout_id = t.rollout_id"
        )
        connection.execute(f"COPY t TO '{table}' (FORMAT parquet)")
