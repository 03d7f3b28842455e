"""The schemas that ship, on files as they are written: complete, and without a false alarm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from runner.game.protocols.loader import builtin_names
from tests.support.paths import ROOT

SPECS = sorted(path for folder in ("", "base", "paper") for path in (ROOT / "specs" / folder).glob("*.yaml"))
PROTOCOLS = sorted((ROOT / "runner" / "game" / "protocols").glob("*.yaml"))


@cache
def shipped(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "specs" / f"{name}.schema.json").read_text("utf-8"))
    return found


def wrong(name: str, data: Any) -> list[str]:
    """The keys that a schema finds something wrong with."""
    errors = Draft202012Validator(shipped(name)).iter_errors(data)
    return [".".join(map(str, error.absolute_path)) for error in errors]


@pytest.mark.parametrize(
    ("name", "path"),
    [*(("experiment", path) for path in SPECS), *(("protocol", path) for path in PROTOCOLS)],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_no_shipped_file_is_underlined(name: str, path: Path) -> None:
    assert wrong(name, yaml.safe_load(path.read_text("utf-8"))) == []


def keys_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for owner, node in {"(root)": schema, **schema["$defs"]}.items():
        for name, value in node["properties"].items():
            yield f"{owner}.{name}", value


def nulls(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and any(map(nulls, value.values())))


@pytest.mark.parametrize("name", ["experiment", "protocol"])
def test_every_key_has_a_description_an_example_and_no_default_of_null(name: str) -> None:
    for key, node in keys_of(shipped(name)):
        assert node["description"].endswith((".", "?")), key
        assert node["examples"], key
        assert "default" not in node or not nulls(node["default"]), key


@pytest.mark.parametrize("name", ["experiment", "protocol"])
def test_a_reference_may_stand_at_every_key(name: str) -> None:
    for owner, node in {"(root)": shipped(name), **shipped(name)["$defs"]}.items():
        validator = Draft202012Validator({**node, "$defs": shipped(name)["$defs"]})
        data = dict.fromkeys(node["properties"], "${some.key}")
        assert [error.message for error in validator.iter_errors(data)] == [], owner


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        ({"protocol": {"use": "own.yaml"}, "seed": "${a}", "name": "${benchmark}-2"}, []),
        ({"protocol": {"use": "debat"}}, ["protocol.use"]),
        ({"seed": "a${b}"}, ["seed"]),
        ({"seed": "zero", "rollouts": "many", "kind": "traning"}, ["kind", "rollouts", "seed"]),
        (
            {"models": {"m": {"base_url": "ftp://a", "temperature": "hot"}}},
            ["models.m"],
        ),
        ({"models": {"m": None}, "agents": {"prover": None}, "cache": None}, []),
        ({"dataset": {"splitt": "test"}}, ["dataset"]),
    ],
)
def test_mistakes_are_underlined_and_references_are_not(data: dict[str, Any], keys: list[str]) -> None:
    assert sorted(wrong("experiment", data)) == keys


def test_every_built_in_protocol_is_offered() -> None:
    (offered,) = [
        arm["enum"] for arm in shipped("experiment")["$defs"]["ProtocolUse"]["properties"]["use"]["anyOf"][:1]
    ]
    assert offered == builtin_names()
