"""Build `parameters.yaml` of a run's release: its hyperparameters, which users can edit before they play it again.

The `spec.yaml` of a release extends the run's resolved spec and then this file. If a user does not edit the file, the
spec is the one that was played.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.documents.yaml_writer import dump
from runner.spec.origin import DATA

FILE_NAME = "parameters.yaml"

SPEC_TEXT = f"""\
# The spec that was played, overridden by your changes in {FILE_NAME}. You can also add keys here.
extends: [{DATA}/spec.yaml, {FILE_NAME}]
"""

_HEADER = """\
# Every hyperparameter of the run. Change any value, and play this folder: this file overrides the played spec.
# `KEY: null` removes an entry, such as a key of `extra_body`; docs/reference/spec.md describes the keys.
"""

NOT_PARAMETERS = frozenset(
    (
        "name", "description", "kind", "benchmark", "prompts", "sweep", "max_sweep_points", "cache", "rejudge",
    )
)  # fmt: skip
"""Keys of a spec that name something or select files, and so are not hyperparameters."""

_SOURCE_KEYS: Mapping[str, frozenset[str]] = {
    "dataset": frozenset(("path", "revision", "columns", "labels", "ids", "explode", "transform")),
    "protocol": frozenset(("use",)),
    "training": frozenset(("rerun_tests", "from")),
    "models": frozenset(("run", "from_run", "from_group", "lineage", "base_model")),
}
"""Keys in sections of the spec that are not hyperparameters either; for `models`, in each model group."""


def select_parameters(spec: Mapping[str, Any]) -> dict[str, object]:
    """Return the hyperparameters of a resolved spec."""
    selected = {name: value for name, value in spec.items() if name not in NOT_PARAMETERS}
    for section in ("dataset", "protocol", "training"):
        if selected.get(section) is not None:
            selected[section] = _remove_keys(selected[section], _SOURCE_KEYS[section])
    if spec.get("rejudge") is not None:
        selected["rejudge"] = _remove_keys(spec["rejudge"], frozenset(("run",)))
    groups = selected["models"].items()
    selected["models"] = {name: _remove_keys(group, _SOURCE_KEYS["models"]) for name, group in groups}
    return selected


def build_parameters(spec: Mapping[str, object]) -> bytes:
    """Return the file with the hyperparameters of a resolved spec."""
    return (_HEADER + dump(select_parameters(spec))).encode()


def _remove_keys(section: Mapping[str, object], names: frozenset[str]) -> dict[str, object]:
    return {name: value for name, value in section.items() if name not in names}
