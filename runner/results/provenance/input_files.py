"""Save a run's inputs in its folder, so that the run can be played again without any other file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import orjson

from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write
from runner.documents.dataclass_schema import to_plain
from runner.documents.yaml_writer import dump
from runner.game.prompts.templates import stored_name
from runner.game.protocols.ballot import ANSWERS
from runner.game.protocols.schema import file_content
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.spec.datasets.loader import Dataset
from runner.spec.rejudged_run import DEBATES

PLAYERS = "players"
"""The folder in a run's `inputs/` with the templates of players of a tournament that have their own."""


def write_inputs(plan: Plan, folder: RunFolder) -> None:
    """Save the resolved spec and all files that it needs in the run's folder."""
    inputs = folder.make("inputs")
    folder.make("inputs", "prompts")
    for name, source in plan.spec.prompts.sources.items():
        atomic_write(inputs / "prompts" / stored_name(name), source)
    for player, templates in plan.spec.player_prompts.items():
        player_folder = folder.make("inputs", PLAYERS, player)
        for name, source in templates.sources.items():
            atomic_write(player_folder / stored_name(name), source)
    protocol = file_content(plan.spec.protocol.file)
    atomic_write(inputs / "protocol.yaml", dump({**protocol, "fixed": []}))
    atomic_write(inputs / "dataset.jsonl", _dataset_lines(plan))
    if plan.debates is not None:
        atomic_write(inputs / DEBATES, plan.debates.lines())
    spec = resolved_spec(plan)
    for group, run in plan.spec.replays.items():
        spec["models"][group]["run"] = os.path.relpath(run, folder.path)
    atomic_write(folder.spec, "# The resolved spec of this run, with every default written out.\n" + dump(spec))


def _dataset_lines(plan: Plan) -> Iterator[bytes]:
    """Yield every datapoint as a JSON line, with its split if the plan uses two splits."""
    spec = plan.spec
    splits: list[tuple[Dataset, dict[str, Any]]] = [(spec.dataset, {})]
    if spec.test is not None and spec.experiment.training is not None:
        splits = [
            (spec.dataset, {"split": spec.experiment.dataset.split}),
            (spec.test, {"split": spec.experiment.training.test.split}),
        ]
    for dataset, split in splits:
        for point in dataset.datapoints:
            row = {"id": point.id, "label": point.saved_label, **point.columns, **split}
            yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def resolved_spec(plan: Plan) -> dict[str, Any]:
    """Return the spec as data, without the key `execution`. Its paths name the files that are saved with the run."""
    data: dict[str, Any] = to_plain(plan.spec.experiment)
    del data["execution"]
    for player in plan.spec.player_prompts:
        data["tournament"]["players"][player]["prompts"] = f"inputs/{PLAYERS}/{player}"
    parameters = to_plain(plan.spec.protocol.parameters)
    selection: dict[str, Any] = {
        "columns": {},
        "labels": {},
        "ids": "column",
        "explode": None,
        "transcripts": None,
        "transform": [],
        "group_by": plan.spec.dataset.group_by,
        "split": None if plan.spec.test is None else data["dataset"]["split"],
        "filter": None,
        "balance": "none",
        "shuffle": False,
        "revision": None,
        "answers": None if data["dataset"]["answers"] is None else ANSWERS,
        "right_answers": "auto" if data["dataset"]["answers"] is None else "number",
    }
    return {
        **data,
        "benchmark": plan.benchmark,
        "dataset": {**data["dataset"], **selection, "path": "inputs/dataset.jsonl"},
        "protocol": {"use": "inputs/protocol.yaml", **parameters},
        "prompts": "inputs/prompts",
        "rejudge": None if data["rejudge"] is None else {**data["rejudge"], "run": f"inputs/{DEBATES}"},
        "sweep": {},
        "cache": None,
    }


def spec_hash(plan: Plan) -> str:
    """Return the hash of the resolved spec."""
    return tagged_hash("spec", resolved_spec(plan))


def dataset_selection(plan: Plan) -> dict[str, Any]:
    """Return the settings that selected the datapoints. The saved spec has the selected datapoints instead."""
    return {name: value for name, value in to_plain(plan.spec.experiment.dataset).items() if name != "path"}
