"""Reasons why a release is left out, and whether it may be readable later."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from runner.base.errors import ReleaseError, RunError
from runner.base.storage.parquet import write_parquet
from runner.registry.release_errors import describe_error, is_temporary


def test_errors_are_described_in_one_line_with_release_paths_except_memory_errors(tmp_path: Path) -> None:
    assert describe_error(ZeroDivisionError("x\ny")) == "the release is malformed (ZeroDivisionError: x)"
    assert describe_error(ReleaseError(f"{tmp_path}/spec.yaml:3: no"), tmp_path) == "data/spec.yaml:3: no"
    with pytest.raises(MemoryError):
        describe_error(MemoryError())


@pytest.mark.parametrize(
    ("row", "folder", "is_passing"),
    [('{"y": 1}', "gone", True), ('{"y": "x"}', "", False), ("{", "", False)],
    ids=["no place to write", "a wrong type", "no JSON"],
)
def test_only_errors_of_this_machine_are_temporary(tmp_path: Path, row: str, folder: str, is_passing: bool) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text(row + "\n")
    with pytest.raises(RunError) as caught:
        write_parquet([lines], {"y": "TINYINT"}, tmp_path / folder / "rows.parquet")
    assert is_temporary(caught.value, tmp_path) is is_passing


def test_missing_file_is_permanent_and_unreadable_file_is_temporary(tmp_path: Path) -> None:
    missing_file, unreadable_file = RunError("x"), RunError("x")
    missing_file.__cause__ = FileNotFoundError(errno.ENOENT, "", str(tmp_path / "spec.yaml"))
    unreadable_file.__cause__ = OSError(errno.EMFILE, "", str(tmp_path / "spec.yaml"))
    assert (is_temporary(missing_file, tmp_path), is_temporary(unreadable_file, tmp_path)) == (False, True)
