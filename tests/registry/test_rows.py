"""Differences of recorded rows are reported once, by rollout, and long lists are cut with a count."""

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


def format_row_difference(row: int, recorded: object, expected: object) -> str:
    return f"{ROLLOUTS_FILE}, row {row}: rollout {recorded}, but the journal gives rollout {expected} here; "


def remove_row(rows: Rows) -> list[str]:
    removed_row = rows.pop(1)
    return [format_row_difference(2, rows[1]["rollout_id"], removed_row["rollout_id"])]


def remove_last_rows(rows: Rows) -> list[str]:
    missing = [rows.pop(4), rows.pop(4)]
    return [f"{ROLLOUTS_FILE} ends before row 5: rollout {missing[0]['rollout_id']} is missing"]


def duplicate_row(rows: Rows) -> list[str]:
    rows.insert(3, dict(rows[1]))
    return [format_row_difference(4, rows[1]["rollout_id"], rows[4]["rollout_id"])]


def insert_row(rows: Rows) -> list[str]:
    rows.insert(2, {**rows[0], "rollout_id": "\x1b[31m"})
    return [format_row_difference(3, r"\x1b[31m", rows[3]["rollout_id"])]


def append_row(rows: Rows) -> list[str]:
    rows.append(dict(rows[1]))
    return [f"{ROLLOUTS_FILE}, row 7, rollout {rows[1]['rollout_id']}: the journal gives only 6 rows"]


def move_row(rows: Rows) -> list[str]:
    row = rows.pop(1)
    rows.append(row)
    return [format_row_difference(2, rows[1]["rollout_id"], row["rollout_id"])]


def change_value(rows: Rows) -> list[str]:
    rows[2]["rounds"] = 77
    return [f"{ROLLOUTS_FILE}, row 3, rollout {rows[2]['rollout_id']}: rounds: recorded 77, recomputed "]


def change_value_before_a_gap(rows: Rows) -> list[str]:
    messages = change_value(rows)
    removed_row = rows.pop(3)
    return [*messages, format_row_difference(4, rows[3]["rollout_id"], removed_row["rollout_id"])]


def change_id(rows: Rows) -> list[str]:
    old_id, rows[0]["rollout_id"] = rows[0]["rollout_id"], [1]
    return [format_row_difference(1, "[1]", old_id)]


def add_many_columns(rows: Rows) -> list[str]:
    rows[0] |= {f"column {number}": 1 for number in range(10_000)}
    return [f"{ROLLOUTS_FILE}, row 1, rollout {rows[0]['rollout_id']}: column 0: recorded 1, recomputed nothing; "]


def change_types(rows: Rows) -> list[str]:
    rows[0]["y"] = bool(rows[0]["y"])
    rows[1]["repeat"] = float(rows[1]["repeat"])
    rows[2]["correct"] = int(rows[2]["correct"])
    rows[3]["rewards"] = json.dumps(rows[3]["rewards"])
    del rows[4]["votes"]
    recorded = (f"y: recorded {rows[0]['y']}", "repeat: recorded 0.0", f"correct: recorded {rows[2]['correct']}",
                "rewards: recorded '{", "votes: recorded nothing")  # fmt: skip
    return [
        f"{ROLLOUTS_FILE}, row {number}, rollout {row['rollout_id']}: {message}"
        for number, (row, message) in enumerate(zip(rows, recorded, strict=False), 1)
    ]


FORGERIES = (
    remove_row, remove_last_rows, duplicate_row, insert_row, append_row, move_row, change_value,
    change_value_before_a_gap, change_id, add_many_columns, change_types,
)  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("forge", FORGERIES)
def test_each_change_of_published_rows_is_reported_once(
    forge: Callable[[Rows], list[str]], run: RunFolder, tmp_path: Path
) -> None:
    lines = bytes(build_run_bundle(run.path).contents[f"data/{ROLLOUTS_FILE}"]).splitlines()
    rows = [json.loads(line) for line in lines]
    expected = forge(rows)
    (tmp_path / ROLLOUTS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    messages = list(find_published_differences(RunFolder(tmp_path), run))
    assert len(messages) == len(expected), messages
    for line in expected:
        assert [message for message in messages if message.startswith(line)], (line, messages)
    assert all(len(line) < 1000 for line in messages)


def test_row_with_duplicate_keys_is_refused(run: RunFolder, tmp_path: Path) -> None:
    rows = bytes(build_run_bundle(run.path).contents[f"data/{ROLLOUTS_FILE}"])
    (tmp_path / ROLLOUTS_FILE).write_bytes(rows.replace(b'"correct":', b'"correct":true,"correct":', 1))
    with pytest.raises(
        RunError, match=re.escape(f"{ROLLOUTS_FILE}:1 is damaged: its JSON has duplicate keys: correct")
    ):
        list(find_published_differences(RunFolder(tmp_path), run))


def test_columns_of_a_newer_version_may_be_missing_in_all_rows_but_not_in_some(run: RunFolder, tmp_path: Path) -> None:
    rows = [
        json.loads(line) for line in bytes(build_run_bundle(run.path).contents[f"data/{ROLLOUTS_FILE}"]).splitlines()
    ]
    for changed_rows in (rows, rows[1:]):
        written = [row if row not in changed_rows else {**row, "votes": ...} for row in rows]
        plain = [{name: value for name, value in row.items() if value is not ...} for row in written]
        (tmp_path / ROLLOUTS_FILE).write_text("".join(json.dumps(row) + "\n" for row in plain))
        for allow_missing in (True, False):
            messages = list(find_published_differences(RunFolder(tmp_path), run, allow_missing=allow_missing))
            assert len(messages) == (0 if allow_missing and changed_rows is rows else len(changed_rows)), messages


def test_missing_messages_and_calls_are_reported_by_their_keys(run: RunFolder, tmp_path: Path) -> None:
    for name in ("rollouts", "messages", "completions"):
        with duckdb.connect() as database:
            rows = f"SELECT *, row_number() OVER () AS place FROM '{run.table(name)}'"
            remaining = f"SELECT * EXCLUDE place FROM ({rows}) WHERE place <> 3 ORDER BY place"
            database.execute(f"COPY ({remaining}) TO '{RunFolder(tmp_path).table(name)}' (FORMAT parquet)")
    messages = list(find_row_differences(RunFolder(tmp_path), run))
    assert len(messages) == 3, messages
    for line, parts in zip(
        messages, ("", ", round .*, channel .*, agent .*", ", round .*, agent .*, attempt .*"), strict=True
    ):
        row = rf"rollout \w+{parts}"
        assert re.fullmatch(rf"\w+\.parquet, row 3: {row}, but the journal gives {row} here; .*not compared", line)


def test_long_list_of_messages_is_cut_with_a_count() -> None:
    messages = list(limit_messages((f"row {number}" for number in range(MAX_LISTED + 1234)), "rows"))
    assert messages[MAX_LISTED - 1 :] == [f"row {MAX_LISTED - 1}", "and 1,234 more rows"]
