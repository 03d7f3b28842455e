"""Links planted in a run's folder: a run changes no file outside its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runner.base.errors import NipRunError
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec

EXTRA_PATHS = (
    ".parts", ".parts/rollouts.00000.jsonl", ".in_flight", "fine_tune/.seen", "fine_tune/agents",
    "iterations/0/v.job/trainer.lock", "iterations/0/v.job/output", "iterations/0/p.job",
)  # fmt: skip
"""Paths that exist only during a run, or only in some runs."""

PlayFunction = Callable[[Path, Path], object]


def play_games(folder: Path, results: Path) -> object:
    return run_spec(spec_file(folder, size=2), results, run_id="planted")


def play_training(folder: Path, results: Path) -> object:
    trainer = {"backend": "command", "command": ["sh", "-c", "echo trained > $0", "{model_file}", "{dataset}"]}
    path = training_spec(folder, training={"iterations": 1, "trainers": {"v": trainer}})
    return run_training(path, results, run_id="planted")


PLAY_FUNCTIONS: dict[str, PlayFunction] = {"games": play_games, "training": play_training}


@cache
def list_written_paths(kind: str) -> tuple[str, ...]:
    """Return the paths of all files and folders that a run leaves in its folder."""
    with TemporaryDirectory() as folder:
        PLAY_FUNCTIONS[kind](Path(folder), Path(folder) / "results")
        run = Path(folder) / "results" / "runs" / "planted"
        return tuple(sorted(str(path.relative_to(run)) for path in run.rglob("*")))


def read_contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def plant_link(folder: Path, run: Path, name: str) -> None:
    """Plant a link at a path that a run writes, to a file or folder that must not change."""
    outside = folder / "outside" / Path(name).name
    is_folder = not Path(name).suffix or name.endswith(".job")
    if is_folder and not name.endswith("lock"):
        for inside in ("m.sft.jsonl", "report.json", "rollouts.00000.jsonl", "agents/verifier.sft.jsonl"):
            (outside / inside).parent.mkdir(parents=True, exist_ok=True)
            (outside / inside).write_bytes(b"precious")
    else:
        outside.parent.mkdir()
        outside.write_bytes(b"precious")
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside)


def list_link_names(kind: str) -> Iterator[str]:
    names = dict.fromkeys((*list_written_paths(kind), *EXTRA_PATHS))
    if kind == "training":  # other paths are tested with games; group p's files are like v's
        names = {name: None for name in names if name.startswith(("iterations", "sta")) and "/p.sft" not in name}
    yield from names
    yield from (f"{name}.new" for name in names if Path(name).suffix and not name.endswith(".lock"))


def assert_no_link_is_followed(folder: Path, kind: str, names: Iterable[str]) -> None:
    """Play a run for each link; the run may fail or complete."""
    completed_runs = 0
    for number, name in enumerate(names):
        case_folder = folder / str(number)
        run = case_folder / "results" / "runs" / "planted"
        run.mkdir(parents=True)
        plant_link(case_folder, run, name)
        contents_before = read_contents(case_folder / "outside")
        with suppress(NipRunError):
            PLAY_FUNCTIONS[kind](case_folder, case_folder / "results")
            completed_runs += 1
        assert read_contents(case_folder / "outside") == contents_before, name
        shutil.rmtree(case_folder)
    assert completed_runs


@pytest.mark.full
@pytest.mark.parametrize("kind", PLAY_FUNCTIONS)
def test_no_planted_link_makes_a_run_write_outside_its_folder(tmp_path: Path, kind: str) -> None:
    """Test a link at every path that a run writes."""
    assert_no_link_is_followed(tmp_path, kind, list_link_names(kind))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name",
    ["manifest.json.new", "journal.jsonl", "run.log", ".lock", "rollouts.parquet.new", "fine_tune/m.sft.jsonl.new"],
)
def test_a_planted_link_is_not_written_through(tmp_path: Path, name: str) -> None:
    """Test one path of each kind; the run whose link it does not use must complete."""
    assert_no_link_is_followed(tmp_path, "games", [name, "nothing.txt"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["journal.jsonl", "run.log", ".lock", "manifest.json.new"])
def test_a_dangling_link_creates_no_file(tmp_path: Path, name: str) -> None:
    run, outside = tmp_path / "results" / "runs" / "planted", tmp_path / "outside"
    for folder in (run, outside):
        folder.mkdir(parents=True)
    (run / name).symlink_to(outside / "made")
    with suppress(NipRunError):
        play_games(tmp_path, tmp_path / "results")
    assert not (outside / "made").exists()


@pytest.mark.full
def test_a_results_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "large disk")
    play_games(tmp_path, tmp_path / "results")
    assert (only_run(tmp_path / "large disk") / "rollouts.parquet").is_file()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [".parts", "inputs", "inputs/prompts", "fine_tune", "fine_tune/agents"])
def test_a_planted_link_to_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    run = tmp_path / "results" / "runs" / "planted"
    run.mkdir(parents=True)
    plant_link(tmp_path, run, name)
    with pytest.raises(NipRunError, match="remove that"):
        play_games(tmp_path, tmp_path / "results")


def test_old_files_are_not_removed_through_a_link(tmp_path: Path) -> None:
    """A run without fine-tune files removes those of an earlier run."""
    run = tmp_path / "results" / "runs" / "planted"
    run.mkdir(parents=True)
    plant_link(tmp_path, run, "fine_tune")
    contents_before = read_contents(tmp_path / "outside")
    run_spec(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results", run_id="planted")
    assert read_contents(tmp_path / "outside") == contents_before
