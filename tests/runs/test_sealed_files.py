"""A finished run's files are checked by their recorded hashes when they are read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runner import load_spec, open_run, run
from runner.errors import RunError
from runner.results.folder import RunFolder
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    return run(load_spec(spec_file(tmp_path)), results=tmp_path / "results").folder


def damage(path: Path) -> None:
    """Change one byte in the middle of a file, and keep its size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


METRICS, TABLE, MESSAGES = "metrics.json", "rollouts.parquet", "messages.parquet"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (METRICS, ("show", "last")),
        (TABLE, ("show", "last", "--wrong")),
        (TABLE, ("leaderboard", "--rebuild")),
        (METRICS, ("report", "last", "-o", "report.html")),
        (METRICS, ("export", "last", "--format", "inspect", "--out", "out")),
        (METRICS, ("plot", "outcomes", "last", "-o", "plot.svg")),
        (MESSAGES, ("sql", "SELECT sum(round) FROM messages")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_damaged_file_is_an_error_that_names_verify(finished: RunFolder, name: str, command: tuple[str, ...]) -> None:
    damage(finished.path / name)
    done = nip_run_here(*command, cwd=finished.path.parents[2])
    assert f"{name} is damaged" in done.stderr
    assert "nip-run verify" in done.stderr


def test_two_runs_of_which_one_is_damaged_are_not_compared(finished: RunFolder) -> None:
    folder = finished.path.parents[2]
    other = run(load_spec(folder / "spec.yaml", {"agents.verifier.max_response_words": 9}), results=folder / "results")
    damage(finished.table("rollouts"))
    done = nip_run_here("compare", finished.run_id, other.run_id, cwd=folder)
    assert done.returncode == 1
    assert "rollouts.parquet is damaged" in done.stderr


def test_the_hashes_can_be_checked_with_sha256sum(finished: RunFolder) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=finished.path, check=True)


def test_a_table_that_was_damaged_after_it_was_read_is_found_in_the_same_process(finished: RunFolder) -> None:
    result = open_run(finished.run_id, results=finished.path.parent.parent)
    assert result.rollouts().fetchall()
    damage(finished.table("rollouts"))
    with pytest.raises(RunError, match="nip-run verify"):
        result.rollouts()


def test_a_run_of_an_older_version_has_no_hashes_and_is_read(finished: RunFolder) -> None:
    finished.sums.unlink()
    assert nip_run_here("show", "last", cwd=finished.path.parents[2]).returncode == 0


@pytest.mark.parametrize("name", ["metrics.json", "messages.parquet"])
def test_a_file_that_is_missing_is_written_again_from_the_journal_with_the_same_bytes(
    finished: RunFolder, name: str
) -> None:
    path = finished.path / name
    before, journal = path.read_bytes(), finished.journal.read_bytes()
    path.unlink()
    done = nip_run_here("run", "spec.yaml", "-q", cwd=finished.path.parents[2])
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == before
    assert finished.journal.read_bytes() == journal
