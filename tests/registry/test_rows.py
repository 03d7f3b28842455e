"""What is wrong with recorded rows is told once, by the rollout that it is of, and of many alike how many."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.base.errors import RunError
from runner.registry.check_notes import MAX_LISTED, limit_messages
from runner.registry.rollouts_file import ROLLOUTS_FILE
from runner.registry.verification.row_differences import find_published_differences, find_row_differences
from runner.results.folder import RunFolder
from tests.support.run_bundles import build_run_bundle
from tests.support.runs import run_spec
from tests.support.specs import spec_file

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("rows")
    return RunFolder(run_spec(spec_file(folder, size=6, fine_tune=None), folder / "results").path)


def difference_in_row(row: int, recorded: object, expected: object) -> str:
    return f"{ROLLOUTS_FILE}, row {row}: rollout {recorded}, but the journal gives rollout {expected} here; "


def removed(rows: Rows) -> list[str]:
    gone = rows.pop(1)
    return [difference_in_row(2, rows[1]["rollout_id"], gone["rollout_id"])]


def cut(rows: Rows) -> list[str]:
    gone = [rows.pop(4), rows.pop(4)]
    return [f"{ROLLOUTS_FILE} ends before row 5: rollout {gone[0]['rollout_id']} is missing"]


def doubled(rows: Rows) -> list[str]:
    rows.insert(3, dict(rows[1]))
    return [difference_in_row(4, rows[1]["rollout_id"], rows[4]["rollout_id"])]


def added(rows: Rows) -> list[str]:
    rows.insert(2, {**rows[0], "rollout_id": "\x1b[31m"})
    return [difference_in_row(3, r"\x1b[31m", rows[3]["rollout_id"])]


def added_at_the_end(rows: Rows) -> list[str]:
    rows.append(dict(rows[1]))
    return [f"{ROLLOUTS_FILE}, row 7, rollout {rows[1]['rollout_id']}: the journal gives only 6 rows"]


def moved(rows: Rows) -> list[str]:
    row = rows.pop(1)
    rows.append(row)
    return [difference_in_row(2, rows[1]["rollout_id"], row["rollout_id"])]


def changed(rows: Rows) -> list[str]:
    rows[2]["rounds"] = 77
    return [f"{ROLLOUTS_FILE}, row 3, rollout {rows[2]['rollout_id']}: rounds: recorded 77, recomputed "]


def changed_before_a_gap(rows: Rows) -> list[str]:
    changed_first = changed(rows)
    gone = rows.pop(3)
    return [*changed_first, difference_in_row(4, rows[3]["rollout_id"], gone["rollout_id"])]


def renamed(rows: Rows) -> list[str]:
    was, rows[0]["rollout_id"] = rows[0]["rollout_id"], [1]
    return [difference_in_row(1, "[1]", was)]


def many_columns(rows: Rows) -> list[str]:
    rows[0] |= {f"column {number}": 1 for number in range(10_000)}
    return [f"{ROLLOUTS_FILE}, row 1, rollout {rows[0]['rollout_id']}: column 0: recorded 1, recomputed nothing; "]


def of_other_types(rows: Rows) -> list[str]:
    rows[0]["y"] = bool(rows[0]["y"])
    rows[1]["repeat"] = float(rows[1]["repeat"])
    rows[2]["correct"] = int(rows[2]["correct"])
    rows[3]["rewards"] = json.dumps(rows[3]["rewards"])
    del rows[4]["votes"]
    recorded = (f"y: recorded {rows[0]['y']}", "repeat: recorded 0.0", f"correct: recorded {rows[2]['correct']}",
                "rewards: recorded '{", "votes: recorded nothing")  # fmt: skip
    return [
        f"{ROLLOUTS_FILE}, row {place}, rollout {row['rollout_id']}: {said}"
        for place, (row, said) in enumerate(zip(rows, recorded, strict=False), 1)
    ]


FORGED = (
    removed, cut, doubled, added, added_at_the_end, moved, changed, changed_before_a_gap, renamed, many_columns,
    of_other_types,
)  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("forge", FORGED)
def test_what_was_done_to_published_rows_is_told_once(
    forge: Callable[[Rows], list[str]], run: RunFolder, tmp_path: Path
) -> None:
    lines = bytes(build_run_bundle(run.path).contents[f"data/{ROLLOUTS_FILE}"]).splitlines()
    rows = [json.loads(line) for line in lines]
    expected = forge(rows)
    (tmp_path / ROLLOUTS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = list(find_published_differences(RunFolder(tmp_path), run))
    assert len(told) == len(expected), told
    for line in expected:
        assert [one for one in told if one.startswith(line)], (line, told)
    assert all(len(line) < 1000 for line in told)


def test_a_key_that_stands_twice_in_a_row_is_no_row(run: RunFolder, tmp_path: Path) -> None:
    rows = bytes(build_run_bundle(run.path).contents[f"data/{ROLLOUTS_FILE}"])
    (tmp_path / ROLLOUTS_FILE).write_bytes(rows.replace(b'"correct":', b'"correct":true,"correct":', 1))
    with pytest.raises(
        RunError, match=re.escape(f"{ROLLOUTS_FILE}:1 is damaged: its JSON has duplicate keys: correct")
    ):
        list(find_published_differences(RunFolder(tmp_path), run))


def test_columns_that_another_version_did_not_write_are_left_out_of_every_row_or_of_none(
    run: RunFolder, tmp_path: Path
) -> None:
    rows = [
        json.loads(line) for line in bytes(build_run_bundle(run.path).contents[f"data/{ROLLOUTS_FILE}"]).splitlines()
    ]
    for without in (rows, rows[1:]):
        written = [row if row not in without else {**row, "votes": ...} for row in rows]
        plain = [{name: value for name, value in row.items() if value is not ...} for row in written]
        (tmp_path / ROLLOUTS_FILE).write_text("".join(json.dumps(row) + "\n" for row in plain))
        for allow_missing in (True, False):
            told = list(find_published_differences(RunFolder(tmp_path), run, allow_missing=allow_missing))
            assert len(told) == (0 if allow_missing and without is rows else len(without)), told


def test_messages_and_calls_that_are_missing_are_told_by_what_they_are_of(run: RunFolder, tmp_path: Path) -> None:
    for name in ("rollouts", "messages", "completions"):
        with duckdb.connect() as database:
            rows = f"SELECT *, row_number() OVER () AS place FROM '{run.table(name)}'"
            kept = f"SELECT * EXCLUDE place FROM ({rows}) WHERE place <> 3 ORDER BY place"
            database.execute(f"COPY ({kept}) TO '{RunFolder(tmp_path).table(name)}' (FORMAT parquet)")
    told = list(find_row_differences(RunFolder(tmp_path), run))
    assert len(told) == 3, told
    for line, what in zip(
        told, ("", ", round .*, channel .*, agent .*", ", round .*, agent .*, attempt .*"), strict=True
    ):
        row = rf"rollout \w+{what}"
        assert re.fullmatch(rf"\w+\.parquet, row 3: {row}, but the journal gives {row} here; .*not compared", line)


def test_of_many_alike_it_is_told_how_many() -> None:
    told = list(limit_messages((f"row {number}" for number in range(MAX_LISTED + 1234)), "rows"))
    assert told[MAX_LISTED - 1 :] == [f"row {MAX_LISTED - 1}", "and 1,234 more rows"]
