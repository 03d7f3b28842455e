"""The schemas built from dataclasses are valid, complete for editors, and equal the shipped ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator

from runner.base.problems import Place
from runner.documents.dataclass_schema import build_schema, from_plain, option, path_keys, to_plain
from runner.documents.merged_data import LayeredData
from runner.documents.schema_check import _is_valid, _validator, check_schema
from runner.game.protocols.loader import protocol_editor_schema, protocol_schema
from runner.game.protocols.schema import Parameters
from runner.spec.experiment import Experiment
from runner.spec.schemas import editor_schema, experiment_schema
from tests.support.paths import ROOT
from tests.support.processes import nip_run

SCHEMAS = {"experiment": experiment_schema(), "protocol": protocol_schema()}
ALL_SCHEMAS = {**SCHEMAS, "experiment for editors": editor_schema(), "protocol for editors": protocol_editor_schema()}


def iterate_keys(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Yield for every key its owner, its name, its schema, and whether it is optional."""
    for owner, definition in {"(root)": document, **document["$defs"]}.items():
        for name, node in definition["properties"].items():
            yield owner, name, node, name not in definition.get("required", ())


KEYS = [
    (document, owner, name, node, optional)
    for document in SCHEMAS.values()
    for owner, name, node, optional in iterate_keys(document)
]


@pytest.mark.full
@pytest.mark.parametrize("title", ALL_SCHEMAS)
def test_every_schema_is_valid_draft_2020_12(title: str) -> None:
    assert ALL_SCHEMAS[title]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(ALL_SCHEMAS[title])


VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.0, 0.5, -0.5, 2.5, 1e30, 2**70, "", "x", "a b", "dummy", "x\n", "-" * 300, [], [1],
    ["x"], ["x", "x"], ["x", 1, None], {}, {"x": 1}, {"x": {}}, {"use": "nip"}, {"model": "m"},
)  # fmt: skip


def test_values_accepted_without_jsonschema_are_valid() -> None:
    accepted = 0
    for document in SCHEMAS.values():
        for _, _, node, _ in iterate_keys(document):
            validator = _validator()({**node, "$defs": document["$defs"]})
            for value in (*VALUES, *node["examples"]):
                is_valid = _is_valid(value, node, document["$defs"])
                accepted += is_valid
                assert validator.is_valid(value) or not is_valid, (node, value)
    assert accepted > 1_000


def test_every_key_has_a_description_type_and_example() -> None:
    for _, owner, name, node, optional in KEYS:
        assert node["description"].strip(), (owner, name)
        assert {"type", "anyOf", "$ref"} & node.keys(), (owner, name)
        assert len(node["examples"]) >= 1, (owner, name)
        # A protocol parameter that a spec leaves out has the default of the protocol.
        if optional and not (owner == "ProtocolUse" and name in Parameters.__dataclass_fields__):
            assert "default" in node, (owner, name)


@pytest.mark.full
def test_every_example_and_default_is_valid() -> None:
    for document, owner, name, node, _ in KEYS:
        validator = Draft202012Validator({**node, "$defs": document["$defs"]})
        for value in [*node["examples"], *([node["default"]] if "default" in node else [])]:
            assert not [error.message for error in validator.iter_errors(value)], (owner, name, value)


def test_every_key_has_an_example_that_is_not_null() -> None:
    for title, document in SCHEMAS.items():
        for owner, name, node, _ in iterate_keys(document):
            assert node["examples"] != [None], f"{title} {owner}.{name}"


@pytest.mark.parametrize("title", ["experiment for editors", "protocol for editors"])
def test_editor_schema_requires_no_keys_of_a_file_with_extends(title: str) -> None:
    assert not list(Draft202012Validator(ALL_SCHEMAS[title]).iter_errors({"extends": "base.yaml"}))
    assert not list(Draft202012Validator(ALL_SCHEMAS[title]).iter_errors({"extends": ["one.yaml", "two.yaml"]}))
    assert list(Draft202012Validator(ALL_SCHEMAS[title]).iter_errors({"exends": "base.yaml"}))


@pytest.mark.full
@pytest.mark.parametrize("name", ["experiment", "protocol"])
def test_shipped_schema_equals_the_printed_one(name: str) -> None:
    printed = nip_run("schema", name, cwd=ROOT).stdout
    assert json.loads((ROOT / "specs" / f"{name}.schema.json").read_text("utf-8")) == json.loads(printed)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf.

    More about it.
    """

    size: float = option("How big.", default=1.0, minimum=0)
    kind: Literal["green", "red"] = option("Which.", default="green")


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A tree."""

    name: str = option("Its name.", example="oak", minLength=1)
    file: str | None = option("Its picture.", default=None, example="oak.png", path=True)
    leaves: tuple[Leaf, ...] = option("Its leaves.", default=(), example=[{"size": 2.0}])
    by_name: dict[str, Leaf] = option("Leaves with names.", factory=dict, example={"a": {}})
    top: Leaf | None = option("The top.", default=None, example={})
    rows: tuple[str | tuple[str, ...], ...] = option("Rows.", default=(), example=["a", ["b", "c"]])
    anything: Any = option("Anything.", default=None, example=1)


TREE = build_schema(Tree, "tree")


def test_schema_has_the_types_bounds_and_descriptions_of_fields() -> None:
    assert TREE["description"] == "A tree."
    assert TREE["$defs"]["Leaf"]["description"] == "A leaf."
    assert TREE["required"] == ["name"]
    assert TREE["additionalProperties"] is False
    assert TREE["properties"]["name"] == {
        "description": "Its name.", "type": "string", "minLength": 1, "examples": ["oak"],
    }  # fmt: skip
    assert TREE["properties"]["file"]["type"] == ["string", "null"]
    assert TREE["properties"]["leaves"]["items"] == {"$ref": "#/$defs/Leaf"}
    assert TREE["properties"]["by_name"]["additionalProperties"] == {"$ref": "#/$defs/Leaf"}
    assert TREE["properties"]["top"]["anyOf"] == [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]
    assert TREE["$defs"]["Leaf"]["properties"]["kind"]["enum"] == ["green", "red"]


def test_path_keys_are_found() -> None:
    assert path_keys(Tree) == [("file",)]
    assert ("prompts",) in path_keys(Experiment)
    assert ("dataset", "path") in path_keys(Experiment)


TREE_DATA = {
    "name": "oak",
    "file": "oak.png",
    "leaves": [{"size": 2.0, "kind": "red"}, {"size": 1.0, "kind": "green"}],
    "by_name": {"a": {"size": 3.0, "kind": "green"}},
    "top": {"size": 0.0, "kind": "green"},
    "rows": ["a", ["b", "c"]],
    "anything": {"x": [1]},
}


def test_objects_from_plain_data_are_frozen_and_convert_back() -> None:
    tree = from_plain(Tree, TREE_DATA)
    assert tree.leaves[0] == Leaf(size=2.0, kind="red")
    assert tree.by_name["a"].size == 3.0
    assert tree.rows == ("a", ("b", "c"))
    assert to_plain(tree) == TREE_DATA
    assert from_plain(Tree, to_plain(tree)) == tree
    with pytest.raises(AttributeError):
        tree.name = "elm"  # type: ignore[misc]


def test_plain_data_includes_defaults_and_integers_become_floats() -> None:
    tree = from_plain(Tree, {"name": "oak", "top": {"size": 2}})
    assert tree.top is not None
    assert isinstance(tree.top.size, float)
    assert to_plain(tree) == {
        "name": "oak", "file": None, "leaves": [], "by_name": {}, "top": {"size": 2.0, "kind": "green"}, "rows": [],
        "anything": None,
    }  # fmt: skip


def test_experiment_converts_to_plain_data_and_back() -> None:
    required = {f.name: SCHEMAS["experiment"]["properties"][f.name]["examples"][0] for f in fields(Experiment)}
    data = {name: value for name, value in required.items() if value is not None}
    experiment = from_plain(Experiment, data)
    assert from_plain(Experiment, to_plain(experiment)) == experiment
    assert not list(Draft202012Validator(SCHEMAS["experiment"]).iter_errors(to_plain(experiment)))


def list_problems(data: dict[str, Any]) -> list[str]:
    """Return the problems that `check_schema` finds, without places."""
    layered = LayeredData(data, {(): Place("f")}, files=["f"])
    return [f"{problem.key}: {problem.message}" for problem in check_schema(layered, TREE)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "(root): missing key: name; add name: oak"),
        ({"name": "a", "leafs": []}, "leafs: unknown key; did you mean 'leaves'?"),
        (
            {"name": "a", "qqq": 1},
            "qqq: unknown key; known are name, file, leaves, by_name, top, rows, anything",
        ),
        ({"name": 3}, "name: expected text, not 3; if you mean a text, put it in quotes"),
        ({"name": False}, "name: expected text, not false; if you mean a text, put it in quotes"),
        ({"name": None}, "name: expected text, not nothing; if you mean a text, put it in quotes"),
        ({"name": ""}, "name: must not be empty; for example name: oak"),
        (
            {"name": "a", "leaves": {}},
            "leaves: expected a list, not a mapping (KEY: VALUE lines); for example leaves: [{size: 2.0}]",
        ),
        (
            {"name": "a", "leaves": [{"size": "big"}]},
            "leaves.0.size: expected a number, not 'big'; for example size: 1.0",
        ),
        ({"name": "a", "leaves": [{"size": -1}]}, "leaves.0.size: -1 is too small; must be at least 0"),
        ({"name": "a", "by_name": {"x": {"sise": 1}}}, "by_name.x.sise: unknown key; did you mean 'size'?"),
        ({"name": "a", "top": {"kind": "gren"}}, "top.kind: 'gren' is not one of green, red; did you mean 'green'?"),
        ({"name": "a", "top": 3}, "top: expected a mapping (KEY: VALUE lines), not 3"),
        ({"name": "a", "top": []}, "top: expected a mapping (KEY: VALUE lines), not a list"),
    ],
)
def test_error_states_the_expected_value(data: dict[str, Any], message: str) -> None:
    assert list_problems(data) == [message]


def test_all_schema_violations_are_reported_together() -> None:
    assert len(list_problems({"nam": 1, "top": {"size": "x", "kind": 2}, "leaves": [{"a": 1}, {"b": 1}]})) >= 6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_infinite_number_is_refused(value: float) -> None:
    assert list_problems({"name": "a", "top": {"size": value}})
