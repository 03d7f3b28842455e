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
    original_default: str
    nip_run_key: str
    default: str
    note: str


ROWS = [Row(*cells) for line in TEXT.splitlines() if len(cells := [c.strip() for c in line.split("|")[1:-1]]) == 5]
ROWS = [row for row in ROWS if row.names != "original" and not row.names.startswith("---")]


def parse_key(cell: str) -> str:
    return cell.strip("`")


def find_default(key: str) -> Any:
    """Return a key's default in the schema, REQUIRED if it has none, or None for a mapping with free names.

    Raises:
        KeyError: there is no such key.
    """
    node: dict[str, Any] = SCHEMA
    section: dict[str, Any] = {}
    for name in key.split("."):
        section = resolve_schema(node)
        node = section["additionalProperties"] if name in ("GROUP", "AGENT") else section["properties"][name]
    parts = key.split(".")
    if parts[0] == "protocol" and parts[-1] in PARAMETERS:
        return PARAMETERS[parts[-1]]["default"]
    return REQUIRED if parts[-1] in section.get("required", ()) else node.get("default")


def resolve_schema(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node or "anyOf" in node:
        node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node["anyOf"][0]
    return node


def parse_default(cell: str) -> Any:
    """Parse a cell with a default."""
    text = cell.strip("*").strip("`")
    return REQUIRED if text == REQUIRED else json.loads(text)


def test_page_has_all_tables() -> None:
    assert len(ROWS) >= 70
    assert sum(row.nip_run_key != "none" for row in ROWS) >= 50


def test_every_key_in_the_tables_has_the_stated_default() -> None:
    for row in ROWS:
        if row.nip_run_key == "none":
            continue
        default = find_default(parse_key(row.nip_run_key))
        if row.default:
            stated_default = parse_default(row.default)
            assert stated_default == default, row.names
            assert type(stated_default) is type(default), row.names
            marked = row.default.startswith("**")
            assert marked == (str(parse_default(row.original_default)).lower() != str(stated_default).lower()), (
                f"{row.names}: bold?"
            )


def test_a_missing_parameter_has_no_default() -> None:
    assert [row.names for row in ROWS if row.nip_run_key == "none" and row.default] == []


def test_every_key_named_in_the_text_exists() -> None:
    sections = "|".join(SCHEMA["properties"])
    keys = set(re.findall(rf"`((?:{sections})(?:\.\w+)+)", TEXT))
    assert len(keys) >= 45
    for key in sorted(keys):
        find_default(key)


def test_unknown_key_is_detected() -> None:
    for unknown_key in (
        "retry.invalid_response.tries",
        "models.GROUP.max_words",
        "protocol.rounds",
        "agents.GROUP.model.x",
    ):
        with pytest.raises(KeyError):
            find_default(unknown_key)


def test_numbers_in_the_text_are_the_defaults() -> None:
    assert f"{find_default('retry.invalid_response.attempts')} times: `retry.invalid_response.attempts`" in TEXT
    attempts, seconds = find_default("retry.transient.attempts"), find_default("retry.transient.total_seconds")
    assert f"`retry.transient`: {attempts} attempts within {seconds:g} seconds" in TEXT
    assert find_default("training.from_scratch") is find_default("protocol.randomize_channel_order") is False


def test_readme_links_to_the_page() -> None:
    assert "(docs/reference/from-the-original.md)" in (ROOT / "README.md").read_text("utf-8")
