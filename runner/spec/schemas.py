"""The JSON Schemas of a spec, for its check and for editors, and which of its keys null takes away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from runner.documents.dataclass_schema import removable_keys, resettable_keys, schema
from runner.documents.editor_schemas import REFERENCE, allow_null, derive_editor_schema, name_or_pattern
from runner.game.protocols.loader import builtin_names
from runner.game.protocols.schema import Parameters
from runner.spec.experiment import Experiment


def experiment_schema() -> dict[str, Any]:
    """The JSON Schema of a spec file, a copy that may be changed. `extends` is read before the schema sees the rest."""
    copied: dict[str, Any] = json.loads(_experiment_schema())
    return copied


@cache
def _experiment_schema() -> str:
    result = schema(Experiment, "nip-run experiment")
    use = result["$defs"]["ProtocolUse"]["properties"]
    for field_ in fields(Parameters):
        # What a spec leaves out is the protocol's own default, which the spec's schema cannot know.
        use[field_.name].pop("default", None)
    return json.dumps(result)


@cache
def removable_spec_keys() -> frozenset[tuple[str, ...]]:
    """The keys that null takes away: named entries, and parameters, whose defaults are the protocol's own."""
    parameters = {("protocol", field_.name) for field_ in fields(Parameters) if field_.default is not None}
    return removable_keys(Experiment) | parameters


@cache
def resettable_spec_keys() -> frozenset[tuple[str, ...]]:
    """The keys that null sets back to their defaults, where a file or an override changes what is set."""
    return resettable_keys(Experiment) - removable_spec_keys()


_RELEASE = r"([a-z]+/)?[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*@[a-z0-9._-]+|sha256:[0-9a-f]{12,64}"
"""The name of a release, as an editor may know it."""

_USED: Mapping[str, tuple[str, str]] = {
    "AgentSettings": ("An installed agent", "acme/careful-verifier@1.0"),
    "ModelSettings": ("An installed model", "acme/small-verifier@2"),
    "TrainerSettings": ("An installed trainer", "acme/trl-on-one-gpu@1"),
}
"""The sections whose entries may take what they do not say from a release."""


def editor_schema() -> dict[str, Any]:
    """The schema for editors, of a file as it is written: the bases that it extends may hold what it leaves out."""
    result = derive_editor_schema(experiment_schema(), "base/offline.yaml")
    section = result["$defs"]["ProtocolUse"]
    use = section["properties"].pop("use")
    other = rf"\.ya?ml$|{_RELEASE}"
    named = {"description": use["description"], **name_or_pattern(builtin_names(), other), "examples": use["examples"]}
    section["properties"] = {"use": named, **section["properties"]}
    for name, (what, example) in _USED.items():
        # It is read before the schema sees the rest, as `extends` is.
        used = {
            "description": f"{what}, whose settings this entry has where it does not say its own: "
            "OWNER/NAME@VERSION, as `nip-run install` pinned it.",
            "type": "string",
            "pattern": rf"^({_RELEASE})$|{REFERENCE}",
            "examples": [example],
        }
        entry = result["$defs"][name]
        entry["properties"] = {"use": used, **entry["properties"]}
    for at in removable_spec_keys():
        if at[0] == "protocol":
            section["properties"][at[1]] = allow_null(section["properties"][at[1]])
    return result
