"""A finished run's files are checked by their recorded hashes when they are read."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from runner import load_spec, open_run, run
from runner.base.errors import RunError
from runner.results.folder import RunFolder
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("finished")
    return run(load_spec(spec_file(folder)), results=folder / "results").folder


@pytest.fixture
def run_folder(original: RunFolder, tmp_path: Path) -> RunFolder:
    """Return a copy of a finished run, which a test may damage; its spec is next to its results."""
    folder = original.path.parents[2]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return RunFolder(tmp_path / original.path.relative_to(folder))


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
def test_a_damaged_file_is_an_error_that_names_verify(
    run_folder: RunFolder, name: str, command: tuple[str, ...]
) -> None:
    damage(run_folder.path / name)
    done = nip_run_here(*command, cwd=run_folder.path.parents[2])
    assert f"{name} is damaged" in done.stderr
    assert "nip-run verify" in done.stderr


def test_a_damaged_run_is_not_compared(run_folder: RunFolder) -> None:
    folder = run_folder.path.parents[2]
    other_run = run(
        load_spec(folder / "spec.yaml", {"agents.verifier.max_response_words": 9}), results=folder / "results"
    )
    damage(run_folder.table("rollouts"))
    done = nip_run_here("compare", run_folder.run_id, other_run.run_id, cwd=folder)
    assert done.returncode == 1
    assert "rollouts.parquet is damaged" in done.stderr


def test_the_hashes_can_be_checked_with_sha256sum(run_folder: RunFolder) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=run_folder.path, check=True)


def test_damage_to_a_table_after_its_first_read_is_found_in_the_same_process(run_folder: RunFolder) -> None:
    result = open_run(run_folder.run_id, results=run_folder.path.parent.parent)
    assert result.rollouts().fetchall()
    damage(run_folder.table("rollouts"))
    with pytest.raises(RunError, match="nip-run verify"):
        result.rollouts()


def test_a_run_of_an_older_version_has_no_hashes_and_is_read(run_folder: RunFolder) -> None:
    run_folder.sums.unlink()
    assert nip_run_here("show", "last", cwd=run_folder.path.parents[2]).returncode == 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["metrics.json", "messages.parquet"])
def test_a_missing_file_is_rebuilt_from_the_journal_with_the_same_bytes(run_folder: RunFolder, name: str) -> None:
    path = run_folder.path / name
    original_bytes, journal = path.read_bytes(), run_folder.journal.read_bytes()
    path.unlink()
    done = nip_run_here("run", "spec.yaml", "-q", cwd=run_folder.path.parents[2])
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == original_bytes
    assert run_folder.journal.read_bytes() == journal


def test_emptied_hashes_are_damage_and_missing_hashes_are_reported_by_verify(run_folder: RunFolder) -> None:
    folder = run_folder.path.parents[2]
    run_folder.sums.write_bytes(b"")
    done = nip_run_here("show", "last", cwd=folder)
    assert done.returncode == 1
    assert "metrics.json is damaged" in done.stderr
    run_folder.sums.unlink()
    done = nip_run_here("verify", run_folder.run_id, cwd=folder)
    assert done.returncode == 1
    assert "SHA256SUMS is missing" in done.stdout + done.stderr


@pytest.mark.full
def test_rebuilding_the_leaderboard_lists_damaged_runs_and_ranks_the_others(run_folder: RunFolder) -> None:
    folder = run_folder.path.parents[2]
    other_runs = [run(load_spec(folder / "spec.yaml", {"seed": seed}), results=folder / "results") for seed in (1, 2)]
    damage(run_folder.table("rollouts"))
    other_runs[0].folder.metrics.unlink()
    done = nip_run_here("leaderboard", "--rebuild", cwd=folder)
    assert done.returncode == 1
    assert f"{TABLE} is damaged" in done.stderr
    assert "has 2 runs" in done.stdout
    listed = {row["run_id"]: row for row in json.loads(nip_run_here("leaderboard", "--json", cwd=folder).stdout)}
    assert set(listed) == {other_run.run_id for other_run in other_runs}
    assert listed[other_runs[0].run_id]["reason"] == "damaged: its metrics or tables are missing; verify it"
    assert listed[other_runs[1].run_id]["rank"] == 1


def test_no_resume_command_is_offered_for_a_damaged_run(run_folder: RunFolder) -> None:
    damage(run_folder.metrics)
    done = nip_run_here("run", "spec.yaml", cwd=run_folder.path.parents[2])
    assert done.returncode == 1
    assert "metrics.json is damaged" in done.stderr
    assert "Resume with" not in done.stderr
