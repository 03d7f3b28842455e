"""`docs/reference/from-the-original.md` agrees with the spec: its keys exist and have the defaults that it states."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest

from runner.documents.dataclass_schema import build_schema
from runner.game.protocols.schema import Parameters
from runner.spec.schemas import experiment_schema
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "reference" / "from-the-original.md").read_text("utf-8")
SCHEMA = experiment_schema()
PARAMETERS = build_schema(Parameters, "parameters")["properties"]
REQUIRED = "required"


class Row(NamedTuple):
    names: str
    theirs: str
    ours: str
    default: str
    note: str


ROWS = [Row(*cells) for line in TEXT.splitlines() if len(cells := [c.strip() for c in line.split("|")[1:-1]]) == 5]
ROWS = [row for row in ROWS if row.names != "original" and not row.names.startswith("---")]


def key_of(cell: str) -> str:
    return cell.strip("`")


def default_of(key: str) -> Any:
    """A key's default in the schema; REQUIRED where it has to be given, None for what has names of its own below it.

    Raises:
        KeyError: there is no such key.
    """
    node: dict[str, Any] = SCHEMA
    section: dict[str, Any] = {}
    for name in key.split("."):
        section = _resolved(node)
        node = section["additionalProperties"] if name in ("GROUP", "AGENT") else section["properties"][name]
    parts = key.split(".")
    if parts[0] == "protocol" and parts[-1] in PARAMETERS:
        return PARAMETERS[parts[-1]]["default"]
    return REQUIRED if parts[-1] in section.get("required", ()) else node.get("default")


def _resolved(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node or "anyOf" in node:
        node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node["anyOf"][0]
    return node


def parse_default(cell: str) -> Any:
    """What a cell says that a default is."""
    text = cell.strip("*").strip("`")
    return REQUIRED if text == REQUIRED else json.loads(text)


def test_it_has_every_table() -> None:
    assert len(ROWS) >= 70
    assert sum(row.ours != "none" for row in ROWS) >= 50


def test_our_key_beside_a_parameter_has_the_stated_default() -> None:
    for row in ROWS:
        if row.ours == "none":
            continue
        found = default_of(key_of(row.ours))
        if row.default:
            ours = parse_default(row.default)
            assert ours == found, row.names
            assert type(ours) is type(found), row.names
            marked = row.default.startswith("**")
            assert marked == (str(parse_default(row.theirs)).lower() != str(ours).lower()), f"{row.names}: bold?"


def test_a_missing_parameter_has_no_default() -> None:
    assert [row.names for row in ROWS if row.ours == "none" and row.default] == []


def test_every_key_that_a_sentence_names_is_one() -> None:
    sections = "|".join(SCHEMA["properties"])
    named = set(re.findall(rf"`((?:{sections})(?:\.\w+)+)", TEXT))
    assert len(named) >= 45
    for key in sorted(named):
        default_of(key)


def test_a_key_that_is_none_is_noticed() -> None:
    for wrong in ("retry.invalid_response.tries", "models.GROUP.max_words", "protocol.rounds", "agents.GROUP.model.x"):
        with pytest.raises(KeyError):
            default_of(wrong)


def test_the_numbers_in_sentences_are_the_defaults() -> None:
    assert f"{default_of('retry.invalid_response.attempts')} times: `retry.invalid_response.attempts`" in TEXT
    attempts, seconds = default_of("retry.transient.attempts"), default_of("retry.transient.total_seconds")
    assert f"`retry.transient`: {attempts} attempts within {seconds:g} seconds" in TEXT
    assert default_of("training.from_scratch") is default_of("protocol.randomize_channel_order") is False


def test_the_readme_leads_to_it() -> None:
    assert "(docs/reference/from-the-original.md)" in (ROOT / "README.md").read_text("utf-8")
