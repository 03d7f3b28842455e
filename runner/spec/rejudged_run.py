"""The run whose debates a spec has judged again: where its records are, and by what they are told from others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import Problem, RunError, UsageError
from runner.base.package_data import is_file, is_folder
from runner.base.storage.atomic_files import read_json
from runner.base.storage.journal import JOURNAL
from runner.base.storage.safe_files import open_to_read
from runner.documents.layered_data import LayeredData
from runner.spec.experiment import Experiment
from runner.spec.model_sources import FindRun
from runner.spec.sound_spec import SoundSpec

DEBATES = "debates.jsonl"
"""The debates that a run judges, in its `inputs/`: one that is moved needs no other run."""

AT = ("rejudge", "run")
MAX_HEAD = 16 << 20


@dataclass(frozen=True)
class Rejudged:
    """A run whose debates are judged again."""

    path: Path
    """Its folder; or the file of debates that a run which judged them was saved with."""
    run_id: str
    identity: str
    """Of that run: one that has grown since is the same."""
    journal_sha256: str
    """Of the journal that has the debates, as it is now."""

    @property
    def is_folder(self) -> bool:
        return is_folder(self.path)

    @property
    def prompts(self) -> Path:
        """The templates that it was played with."""
        return self.path / "inputs" / "prompts" if self.is_folder else self.path.parent / "prompts"


def read_head(path: Path) -> dict[str, Any]:
    """The first line of a file of debates.

    Raises:
        RunError: it is none.
    """
    try:
        with open_to_read(path) as file:
            head = json.loads(file.readline(MAX_HEAD))
        if not isinstance(head, dict) or not {"run_id", "identity", "journal_sha256", "context"} <= head.keys():
            raise ValueError("no head")
    except (OSError, ValueError) as error:
        raise RunError(f"{path} holds no debates; give the folder of a run") from error
    return head


def take_debates(layered: LayeredData, find_run: FindRun) -> Iterator[Problem]:
    """Put the folder of the run whose debates are judged into the data of a spec, where that says its id.

    `find_run` looks a run up by its id.
    """
    section = layered.data.get("rejudge")
    if not isinstance(section, dict):
        return
    run = section.get("run")
    if not isinstance(run, str) or not run or is_folder(_path(layered)) or is_file(_path(layered)):
        return
    try:
        section["run"] = str(find_run(run).absolute())
    except UsageError as error:
        yield Problem(layered.place(AT), "rejudge.run", str(error))


def find_rejudged(layered: LayeredData, journal_hash: Any) -> Rejudged | None:
    """The run that a sound spec names.

    Raises:
        RunError: its records cannot be read.
    """
    section = layered.data.get("rejudge")
    if not section:
        return None
    path = _path(layered)
    saved = path / "inputs" / DEBATES if is_folder(path) else path
    if is_file(saved):  # where a run judges another's debates, so does who judges it again
        head, journal = read_head(saved), None
    else:
        head, journal = read_json(path / "manifest.json"), journal_hash(path)
    return Rejudged(path, str(head.get("run_id")), str(head.get("identity")), journal or str(head["journal_sha256"]))


def rejudge_problems(layered: LayeredData, sound: SoundSpec) -> Iterator[Problem]:
    """What is wrong with the run that is to be judged again."""
    run = sound.section("rejudge").get("run")
    if run is None:
        return
    path, place = _path(layered), layered.place(AT)
    needed = (JOURNAL, "spec.yaml", "manifest.json")
    if is_folder(path) and not all(is_file(path / one) and os.access(path / one, os.R_OK) for one in needed):
        yield Problem(
            place, "rejudge.run", f"{run!r} lacks one of {', '.join(needed)}; give the folder of a run of games"
        )


def conflicts(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Keys that do not go with `rejudge` or `votes`, and why."""
    trees = experiment.rollouts.num_responses_per_timestep is not None
    if experiment.votes > 1 and trees:
        yield "votes", "votes are for single games: each answer of a tree is a branch of its own; leave votes out"
    if experiment.rejudge is None:
        return
    if experiment.kind != "benchmark":
        yield "kind", "to judge debates again is a benchmark; set kind: benchmark"
    if experiment.fine_tune is not None:
        yield "fine_tune", "these debates are another run's: build the files from that one, and set fine_tune: null"
    if trees:
        yield "rollouts.num_responses_per_timestep", "trees cannot be judged again: their branches share rounds"


def _path(layered: LayeredData) -> Path:
    return layered.folder(AT) / str(layered.data["rejudge"]["run"])
