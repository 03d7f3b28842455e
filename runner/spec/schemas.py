"""The JSON Schemas of a spec, for checks and editors, and the keys that null removes or resets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from runner.documents.dataclass_schema import build_schema, removable_keys, resettable_keys
from runner.documents.editor_schemas import REFERENCE, allow_null, derive_editor_schema, name_or_pattern
from runner.game.protocols.loader import builtin_names
from runner.game.protocols.schema import Parameters
from runner.spec.experiment import Experiment


def experiment_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec, as a copy that the caller may change. (It does not have the key `extends`.)"""
    copied: dict[str, Any] = json.loads(_experiment_schema())
    return copied


@cache
def _experiment_schema() -> str:
    result = build_schema(Experiment, "nip-run experiment")
    use = result["$defs"]["ProtocolUse"]["properties"]
    for field_ in fields(Parameters):
        # The default depends on the protocol, which the spec's schema does not know.
        use[field_.name].pop("default", None)
    return json.dumps(result)


@cache
def removable_spec_keys() -> frozenset[tuple[str, ...]]:
    """Return the keys that null removes: named entries, and parameters whose defaults the protocol sets."""
    parameters = {("protocol", field_.name) for field_ in fields(Parameters) if field_.default is not None}
    return removable_keys(Experiment) | parameters


@cache
def resettable_spec_keys() -> frozenset[tuple[str, ...]]:
    """Return the keys that null resets to their defaults in a file or an override."""
    return resettable_keys(Experiment) - removable_spec_keys()


_RELEASE_PATTERN = r"([a-z]+/)?[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*@[a-z0-9._-]+|sha256:[0-9a-f]{12,64}"
"""Pattern of a release's name for editors. It accepts some invalid names."""

_SECTIONS_WITH_USE: Mapping[str, tuple[str, str]] = {
    "AgentSettings": ("An installed agent", "acme/careful-verifier@1.0"),
    "ModelSettings": ("An installed model", "acme/small-verifier@2"),
    "TrainerSettings": ("An installed trainer", "acme/trl-on-one-gpu@1"),
}
"""Sections whose entries may take settings from a release, with a description and an example."""


def editor_schema() -> dict[str, Any]:
    """Return the schema for editors. Required keys may be missing in a file, since an extended file may set them."""
    result = derive_editor_schema(experiment_schema(), "base/offline.yaml")
    section = result["$defs"]["ProtocolUse"]
    use = section["properties"].pop("use")
    pattern = rf"\.ya?ml$|{_RELEASE_PATTERN}"
    field = {
        "description": use["description"],
        **name_or_pattern(builtin_names(), pattern),
        "examples": use["examples"],
    }
    section["properties"] = {"use": field, **section["properties"]}
    for name, (description, example) in _SECTIONS_WITH_USE.items():
        # `use` is not in the schema for checks, since it is resolved before, like `extends`.
        use_of_release = {
            "description": f"{description}, whose settings apply unless this entry sets its own: "
            "OWNER/NAME@VERSION, as `nip-run install` pinned it.",
            "type": "string",
            "pattern": rf"^({_RELEASE_PATTERN})$|{REFERENCE}",
            "examples": [example],
        }
        entry = result["$defs"][name]
        entry["properties"] = {"use": use_of_release, **entry["properties"]}
    for name, key in (("ModelSettings", "provider"), ("TrainerSettings", "backend")):
        names = result["$defs"][name]["properties"][key]["anyOf"]
        names.append({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"})  # the name of a plugin
    for key_path in removable_spec_keys():
        if key_path[0] == "protocol":
            section["properties"][key_path[1]] = allow_null(section["properties"][key_path[1]])
    return result
