"""Results of analyses and labels of people, written for tests without a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.base.storage.parquet import read_tables, write_parquet
from runner.results.table_columns import ANALYSES, ANALYSIS_COLUMNS

INSTRUMENT = "0a1b2c3d4e"

Answers = Callable[[int, Mapping[str, Any]], Sequence[Mapping[str, Any]]]
"""A function that returns the units of a game, each with the columns that differ from the default."""


def write_analysis(
    run: Path, answers: Answers, name: str = "role_conformance", instrument: str = INSTRUMENT, **columns: Any
) -> Path:
    """Write the results of an analysis of a run; `answers` gets the number of a game and its row in `rollouts`."""
    names = ("rollout_id", "datapoint_id")
    tables = {"rollouts": run / "rollouts.parquet"}
    games = [
        dict(zip(names, row, strict=True)) for row in read_tables(f"SELECT {','.join(names)} FROM rollouts", tables, {})
    ]
    defaults = {
        "run_id": run.name, "analyzer": name, "analyzer_sha256": "a" * 64, "question_sha256": "b" * 64,
        "instrument": instrument, "model": "judge-1", "unit": "message", "status": "answered", **columns,
    }  # fmt: skip
    rows = [
        {**dict.fromkeys(ANALYSIS_COLUMNS), **defaults, **game, "group": game["datapoint_id"],
         "unit_id": f"{game['rollout_id']}/{index}", **unit}
        for number, game in enumerate(games)
        for index, unit in enumerate(answers(number, game))
    ]  # fmt: skip
    values = {str(row["answer"]): row["value"] for row in rows if row["status"] == "answered"}
    values = {"yes": 1.0, "no": 0.0} if set(values) <= {"yes", "no"} else values
    if len(values) < 2:
        values["other"] = None if None in values.values() else 0.0
    defined = {"answers": list(values), "answer_values": None if None in values.values() else list(values.values())}
    rows = [{**row, **{name: row[name] or value for name, value in defined.items()}} for row in rows]
    target = run / ANALYSES / f"{name}-{instrument}.parquet"
    target.parent.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        lines = Path(folder) / "rows.jsonl"
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        write_parquet([lines], ANALYSIS_COLUMNS, target)
    return target


def yes(is_yes: bool, **columns: Any) -> dict[str, Any]:
    """Return the columns of a unit with the answer yes or no."""
    return {"answer": "yes" if is_yes else "no", "value": float(is_yes), **columns}


def write_lines(path: Path, *lines: Mapping[str, Any]) -> None:
    """Write a file of JSON lines."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
