"""Find and check the run whose debates a spec judges again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import RunError, UsageError
from runner.base.package_data import exists, is_file, is_folder
from runner.base.problems import Problem
from runner.base.storage.atomic_files import read_json
from runner.base.storage.log_lines import JOURNAL
from runner.base.storage.safe_files import open_to_read
from runner.documents.merged_data import LayeredData
from runner.spec.experiment import Experiment
from runner.spec.model_sources import FindRun
from runner.spec.sound_spec import SoundSpec

DEBATES = "debates.jsonl"
"""File in a run's `inputs/` with copies of the debates that the run judges, so that it does not need the other run."""

RUN_KEY = ("rejudge", "run")
MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class RejudgedRun:
    """A run whose debates are judged again."""

    path: Path
    """The run's folder, or a copy of its debates (`debates.jsonl`) in the folder of a run that judged them."""
    run_id: str
    identity: str
    """Hash that identifies the run. It does not change if more games are added to the run."""
    journal_sha256: str
    """SHA-256 of the current journal with the debates."""

    @property
    def is_folder(self) -> bool:
        return is_folder(self.path)

    @property
    def prompts(self) -> Path:
        """The templates that the run was played with."""
        return self.path / "inputs" / "prompts" if self.is_folder else self.path.parent / "prompts"


def read_debates_header(path: Path) -> dict[str, object]:
    """Return the first line of a file of debates.

    Raises:
        RunError: the file has no debates.
    """
    try:
        with open_to_read(path) as file:
            header = json.loads(file.readline(MAX_HEADER_BYTES))
        if not isinstance(header, dict) or not {"run_id", "identity", "journal_sha256", "context"} <= header.keys():
            raise ValueError("invalid header")
    except (OSError, ValueError) as error:
        raise RunError(f"{path} has no debates; set the folder of a run") from error
    return header


def resolve_rejudged_run(layered: LayeredData, find_run: FindRun) -> Iterator[Problem]:
    """Replace a run id in `rejudge.run` by the run's folder. Yield a problem if there is no such run."""
    section = layered.data.get("rejudge")
    if not isinstance(section, dict):
        return
    run = section.get("run")
    if not isinstance(run, str) or not run or exists(_path_of_run(layered)):
        return
    try:
        section["run"] = str(find_run(run).absolute())
    except UsageError as error:
        yield layered.problem_at(RUN_KEY, str(error))


def find_rejudged(layered: LayeredData, journal_hash: Callable[[Path], str]) -> RejudgedRun | None:
    """Return the run whose debates the spec judges; None if it judges none. `rejudge` must have no problems.

    Raises:
        RunError: the run's records cannot be read.
    """
    section = layered.data.get("rejudge")
    if not section:
        return None
    path = _path_of_run(layered)
    debates = path / "inputs" / DEBATES if is_folder(path) else path
    if is_file(debates):  # the run judges copies of another run's debates, which this spec judges, too
        header = read_debates_header(debates)
        journal_sha256 = str(header["journal_sha256"])
    else:
        header, journal_sha256 = read_json(path / "manifest.json"), journal_hash(path)
    return RejudgedRun(path, str(header.get("run_id")), str(header.get("identity")), journal_sha256)


def rejudge_problems(layered: LayeredData, sound: SoundSpec) -> Iterator[Problem]:
    """Yield a problem if the folder of the judged run lacks a file."""
    run = sound.section("rejudge").get("run")
    if run is None:
        return
    path, place = _path_of_run(layered), layered.place(RUN_KEY)
    needed = (JOURNAL, "spec.yaml", "manifest.json")
    if is_folder(path) and not all(is_file(path / name) and os.access(path / name, os.R_OK) for name in needed):
        yield Problem(
            place, "rejudge.run", f"{run!r} lacks one of {', '.join(needed)}; set the folder of a run with games"
        )


def rejudge_conflicts(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield keys that cannot be combined with `rejudge` or `votes`, each with a message."""
    plays_trees = experiment.rollouts.num_responses_per_timestep is not None
    if experiment.votes > 1 and plays_trees:
        yield "votes", "cannot be combined with trees of responses, where each answer is a branch; remove votes"
    if experiment.rejudge is None:
        return
    if experiment.kind != "benchmark":
        yield "kind", "judging debates again is a benchmark; set kind: benchmark"
    if experiment.fine_tune is not None:
        yield "fine_tune", "the debates belong to another run; build the files from that run, and set fine_tune: null"
    if plays_trees:
        key = "rollouts.num_responses_per_timestep"
        yield key, f"trees of responses cannot be judged again, since branches share rounds; remove {key}"


def _path_of_run(layered: LayeredData) -> Path:
    return layered.folder(RUN_KEY) / str(layered.data["rejudge"]["run"])
