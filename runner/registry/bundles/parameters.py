"""The hyperparameters of a run by themselves, nested as in a spec: what is edited there wins over the run's own spec.

`spec.yaml` of a release extends the run's resolved spec and then this file, so that as published it is the same spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.documents.yaml_writer import dump
from runner.spec.origin import DATA

FILE = "parameters.yaml"

SPEC = f"""\
# What was played, and above it what you change in {FILE}; or add keys here.
extends: [{DATA}/spec.yaml, {FILE}]
"""

_HEADER = """\
# Every hyperparameter of the run, with its value. Change any, and play this folder: what stands here wins.
# `KEY: null` takes an entry away, such as a key of `extra_body`; the keys are in docs/reference/spec.md.
"""

NOT_PARAMETERS = frozenset(
    (
        "name", "description", "kind", "benchmark", "prompts", "sweep", "max_sweep_points", "cache", "rejudge",
    )
)  # fmt: skip
"""Keys of a spec that say what it is called, or where its files are. All others are hyperparameters."""

_PATHS: Mapping[str, frozenset[str]] = {
    "dataset": frozenset(("path", "revision", "columns", "labels", "ids", "explode")),
    "protocol": frozenset(("use",)),
    "training": frozenset(("rerun_tests", "from")),
    "models": frozenset(("run", "from_run", "from_group", "lineage", "base_model")),
}
"""Of a section, what names files and runs, or tells of them; of `models`, in each group."""


def parameters_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a resolved spec."""
    found = {name: value for name, value in spec.items() if name not in NOT_PARAMETERS}
    for section in ("dataset", "protocol", "training"):
        if found.get(section) is not None:
            found[section] = _without(found[section], _PATHS[section])
    if spec.get("rejudge") is not None:
        found["rejudge"] = _without(spec["rejudge"], frozenset(("run",)))
    found["models"] = {name: _without(group, _PATHS["models"]) for name, group in found["models"].items()}
    return found


def parameters(spec: Mapping[str, Any]) -> bytes:
    """The file of a resolved spec's hyperparameters."""
    return (_HEADER + dump(parameters_of(spec))).encode()


def _without(section: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name not in names}
