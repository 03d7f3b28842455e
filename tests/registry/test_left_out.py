"""Why something of a registry is left out, in words, and whether the same may be read later."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from runner.base.errors import ReleaseError, RunError
from runner.base.storage.parquet import write_parquet
from runner.registry.release_errors import describe_error, is_temporary


def test_any_error_is_told_in_one_line_with_the_paths_of_the_release_but_for_want_of_memory(tmp_path: Path) -> None:
    assert describe_error(ZeroDivisionError("x\ny")) == "the release is malformed (ZeroDivisionError: x)"
    assert describe_error(ReleaseError(f"{tmp_path}/spec.yaml:3: no"), tmp_path) == "data/spec.yaml:3: no"
    with pytest.raises(MemoryError):
        describe_error(MemoryError())


@pytest.mark.parametrize(
    ("row", "folder", "passing"),
    [('{"y": 1}', "gone", True), ('{"y": "x"}', "", False), ("{", "", False)],
    ids=["no place to write", "a wrong type", "no JSON"],
)
def test_what_this_machine_lacks_is_no_refusal_that_stays(tmp_path: Path, row: str, folder: str, passing: bool) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text(row + "\n")
    with pytest.raises(RunError) as told:
        write_parquet([lines], {"y": "TINYINT"}, tmp_path / folder / "rows.parquet")
    assert is_temporary(told.value, tmp_path) is passing


def test_a_file_that_a_release_lacks_is_its_own_fault_and_one_that_cannot_be_read_is_not(tmp_path: Path) -> None:
    lacking, unread = RunError("x"), RunError("x")
    lacking.__cause__ = FileNotFoundError(errno.ENOENT, "", str(tmp_path / "spec.yaml"))
    unread.__cause__ = OSError(errno.EMFILE, "", str(tmp_path / "spec.yaml"))
    assert (is_temporary(lacking, tmp_path), is_temporary(unread, tmp_path)) == (False, True)
