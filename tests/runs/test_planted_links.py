"""Links that were planted in a run's folder: whatever a run writes, nothing outside of its folder is touched."""

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

EXTRA = (
    ".parts", ".parts/rollouts.00000.jsonl", ".in_flight", "fine_tune/.seen", "fine_tune/agents",
    "iterations/0/v.job/trainer.lock", "iterations/0/v.job/output", "iterations/0/p.job",
)  # fmt: skip
"""What is there while a run goes on, or not in each run."""

Play = Callable[[Path, Path], object]


def play_games(folder: Path, results: Path) -> object:
    return run_spec(spec_file(folder, size=2), results, run_id="planted")


def play_training(folder: Path, results: Path) -> object:
    trainer = {"backend": "command", "command": ["sh", "-c", "echo trained > $0", "{model_file}", "{dataset}"]}
    path = training_spec(folder, training={"iterations": 1, "trainers": {"v": trainer}})
    return run_training(path, results, run_id="planted")


PLAYS: dict[str, Play] = {"games": play_games, "training": play_training}


@cache
def written_by(name: str) -> tuple[str, ...]:
    """All that a run leaves in its folder, files and folders."""
    with TemporaryDirectory() as there:
        PLAYS[name](Path(there), Path(there) / "results")
        run = Path(there) / "results" / "runs" / "planted"
        return tuple(sorted(str(path.relative_to(run)) for path in run.rglob("*")))


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def planted(folder: Path, run: Path, name: str) -> None:
    """A link in the place of what a run writes, to a file or folder that must stay as it is."""
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


def all_names(play: str) -> Iterator[str]:
    there = dict.fromkeys((*written_by(play), *EXTRA))
    if play == "training":  # the rest is as it is with games, and the other group's files as this one's
        there = {name: None for name in there if name.startswith(("iterations", "sta")) and "/p.sft" not in name}
    yield from there
    yield from (f"{one}.new" for one in there if Path(one).suffix and not one.endswith(".lock"))


def see_that_none_leads_out(folder: Path, play: str, names: Iterable[str]) -> None:
    """Each in a run of its own, which fails or goes through."""
    ended = 0
    for number, name in enumerate(names):
        here = folder / str(number)
        run = here / "results" / "runs" / "planted"
        run.mkdir(parents=True)
        planted(here, run, name)
        before = contents(here / "outside")
        with suppress(NipRunError):
            PLAYS[play](here, here / "results")
            ended += 1
        assert contents(here / "outside") == before, name
        shutil.rmtree(here)
    assert ended


@pytest.mark.full
@pytest.mark.parametrize("play", PLAYS)
def test_no_planted_link_leads_a_run_out_of_its_folder(tmp_path: Path, play: str) -> None:
    """All that a run writes, whatever that is."""
    see_that_none_leads_out(tmp_path, play, all_names(play))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name",
    ["manifest.json.new", "journal.jsonl", "run.log", ".lock", "rollouts.parquet.new", "fine_tune/m.sft.jsonl.new"],
)
def test_a_link_that_was_planted_is_not_written_through(tmp_path: Path, name: str) -> None:
    """One of each kind; the run without a link is the one that must go through."""
    see_that_none_leads_out(tmp_path, "games", [name, "nothing.txt"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["journal.jsonl", "run.log", ".lock", "manifest.json.new"])
def test_a_link_to_nothing_makes_no_file(tmp_path: Path, name: str) -> None:
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
def test_a_planted_folder_is_said_to_be_a_link(tmp_path: Path, name: str) -> None:
    run = tmp_path / "results" / "runs" / "planted"
    run.mkdir(parents=True)
    planted(tmp_path, run, name)
    with pytest.raises(NipRunError, match="remove that"):
        play_games(tmp_path, tmp_path / "results")


def test_old_files_are_not_removed_through_a_link(tmp_path: Path) -> None:
    """A run that builds no fine-tune files removes those that it has left before."""
    run = tmp_path / "results" / "runs" / "planted"
    run.mkdir(parents=True)
    planted(tmp_path, run, "fine_tune")
    before = contents(tmp_path / "outside")
    run_spec(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results", run_id="planted")
    assert contents(tmp_path / "outside") == before
