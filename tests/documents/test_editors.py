"""The shipped schemas for editors are complete and give no false alarms."""

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
def load_shipped_schema(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((ROOT / "specs" / f"{name}.schema.json").read_text("utf-8"))
    return schema


def list_invalid_keys(name: str, data: Any) -> list[str]:
    """Return the keys that a schema refuses."""
    errors = Draft202012Validator(load_shipped_schema(name)).iter_errors(data)
    return [".".join(map(str, error.absolute_path)) for error in errors]


@pytest.mark.parametrize(
    ("name", "path"),
    [*(("experiment", path) for path in SPECS), *(("protocol", path) for path in PROTOCOLS)],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_shipped_files_have_no_editor_errors(name: str, path: Path) -> None:
    assert list_invalid_keys(name, yaml.safe_load(path.read_text("utf-8"))) == []


def iterate_keys(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for owner, node in {"(root)": schema, **schema["$defs"]}.items():
        for name, value in node["properties"].items():
            yield f"{owner}.{name}", value


def contains_null(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and any(map(contains_null, value.values())))


@pytest.mark.parametrize("name", ["experiment", "protocol"])
def test_every_key_has_a_description_an_example_and_no_default_of_null(name: str) -> None:
    for key, node in iterate_keys(load_shipped_schema(name)):
        assert node["description"].endswith((".", "?")), key
        assert node["examples"], key
        assert "default" not in node or not contains_null(node["default"]), key


@pytest.mark.parametrize("name", ["experiment", "protocol"])
def test_every_key_accepts_an_interpolation(name: str) -> None:
    for owner, node in {"(root)": load_shipped_schema(name), **load_shipped_schema(name)["$defs"]}.items():
        validator = Draft202012Validator({**node, "$defs": load_shipped_schema(name)["$defs"]})
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
def test_editor_underlines_mistakes_but_not_interpolations(data: dict[str, Any], keys: list[str]) -> None:
    assert sorted(list_invalid_keys("experiment", data)) == keys


def test_editor_suggests_every_built_in_protocol() -> None:
    (names,) = [
        branch["enum"]
        for branch in load_shipped_schema("experiment")["$defs"]["ProtocolUse"]["properties"]["use"]["anyOf"][:1]
    ]
    assert names == builtin_names()
