"""Random specs and overrides: generated from the shipped schemas, and mutations of the shipped specs.

`try_example` runs `nip-run check` on each example. `DepthCounter` counts the examples that reach each step of loading,
to show that not all examples fail at the first step.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from runner.cli.main import main
from runner.documents.yaml_reader import Document, parse_yaml
from runner.documents.yaml_writer import dump
from runner.game.protocols.loader import builtin_names, protocol_schema
from runner.spec.schemas import experiment_schema
from tests.support.paths import ROOT

STEPS = ("yaml", "schema", "names", "templates", "dataset", "planned")
"""The steps of loading a spec: YAML, schema, names, templates, dataset, and the estimated price."""

SPECS = tuple(sorted(path.name for path in (ROOT / "specs").glob("*.yaml")))

ODD_TEXTS = (
    "", " ", "\n", "\0", "a\0b", "\x1b[2J", "\ud800", "\udcff", "[/b]", "${seed}", "${..seed}", "${a.b[0]}",
    "${oc.env:HOME}", "\\${seed}", "${", "???", "~", "null", "1e999", "0x" + "f" * 5000, "9" * 5000, "1:30", "017",
    "1_000", ".", "..", "/", "a" * 300, "/".join(["d" * 100] * 60), "ü" * 200, "{{ 7*7 }}", "http://[::1/v1",
    "http://x:99999999/", "http://[::1]:80/v1\n", "https://xn--", "nip", "nip.yaml", "hf://x/y", "*",
    "data/[a-z].csv", "yes", "2026-02-30", "!!python/none", "&a b", "<<", "=", "a=b", "models.small", "\u202e",
    "\U000e0041", "x" * 70_000,
)  # fmt: skip
ODD_NUMBERS = (
    0, -1, 1, 2, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(10**400), 1e308, -1e308, 5e-324, float("inf"),
    float("nan"), True, 0.1,
)  # fmt: skip
WHOLE_FLOATS = (2.0, -1.0, 1e18, 2.0**63, -(2.0**63), 1e19, 1e300, -1e300)
"""Floats that JSON Schema accepts as integers."""

USUAL_TEXTS = (
    "nip", "debate", "small", "m", "dummy", "verifier", "prover", "prompts/code_validation/nip", "text", "label = 1",
    "train", "data/code_validation.jsonl", "low", "https://example.invalid/v1", "KEY", "a b", "id", "question", "x-1",
    "0.5",
)  # fmt: skip


def mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], share: int = 9) -> st.SearchStrategy[Any]:
    """Generate usual values, and an odd value once in `share` + 1 times."""
    return st.integers(0, share).flatmap(lambda number: odd if number == share else usual)


texts = mostly(st.sampled_from(USUAL_TEXTS), st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=8)), 5)
scalars = mostly(
    st.one_of(st.none(), st.booleans(), st.integers(0, 9), texts),
    st.one_of(st.sampled_from(ODD_NUMBERS), st.integers(), st.floats(), texts),
    5,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


def values_of_schema(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Generate values for a schema. Some of them violate a bound or a pattern."""
    if "$ref" in schema:
        return st.deferred(lambda: values_of_schema(root["$defs"][schema["$ref"].rpartition("/")[2]], root))
    if "anyOf" in schema:
        return st.one_of(*(values_of_schema(arm, root) for arm in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", [])
    strategies = [_STRATEGIES[kind](schema, root) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    if not strategies:
        return values
    if not schema.get("examples"):
        return st.one_of(strategies)
    # Copies, because a mutation changes the generated value, and the schema must not change.
    return mostly(st.sampled_from(schema["examples"]).map(copy.deepcopy), st.one_of(strategies), 3)


def _objects_of_schema(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "properties" in schema:
        required = {name: values_of_schema(schema["properties"][name], root) for name in schema.get("required", ())}
        optional = {n: values_of_schema(s, root) for n, s in schema["properties"].items() if n not in required}
        return st.fixed_dictionaries(required, optional=optional)
    additional = schema.get("additionalProperties")
    inner = values_of_schema(additional, root) if isinstance(additional, Mapping) else values
    names = st.one_of(st.sampled_from(["m", "small", "verifier", "prover", "seed", "prover0"]), texts)
    return st.dictionaries(names, inner, min_size=schema.get("minProperties", 0), max_size=3)


def _numbers_of_schema(schema: Mapping[str, Any], _: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -5))
    return mostly(st.integers(min_value=int(low), max_value=int(low) + 9), st.sampled_from(ODD_NUMBERS), 7)


_STRATEGIES: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], st.SearchStrategy[Any]]] = {
    "string": lambda schema, _: mostly(st.from_regex(schema["pattern"]), texts) if "pattern" in schema else texts,
    "integer": lambda schema, root: mostly(_numbers_of_schema(schema, root), st.sampled_from(WHOLE_FLOATS), 11),
    "number": lambda schema, root: st.one_of(_numbers_of_schema(schema, root), st.floats()),
    "boolean": lambda _, __: st.booleans(),
    "null": lambda _, __: st.none(),
    "array": lambda schema, root: st.lists(values_of_schema(schema.get("items", {}), root), max_size=3),
    "object": _objects_of_schema,
}


def _list_paths(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [prefix] if prefix else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        paths += _list_paths(value, (*prefix, name))
    return paths


def _sections(schema: Mapping[str, Any], root: Mapping[str, Any], prefix: str = "") -> dict[str, Mapping[str, Any]]:
    """Return the schema of each dotted key that consists of fixed names."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    sections: dict[str, Mapping[str, Any]] = {}
    for name, inner in schema.get("properties", {}).items():
        key = f"{prefix}.{name}" if prefix else name
        sections[key] = inner
        arms = inner.get("anyOf", [inner])
        for arm in arms:
            sections.update(_sections(arm, root, key))
    return sections


SCHEMA = experiment_schema()
KEYS = _sections(SCHEMA, SCHEMA)
GROUP_KEYS = _sections(SCHEMA["$defs"]["ModelSettings"], SCHEMA)
AGENT_KEYS = _sections(SCHEMA["$defs"]["AgentSettings"], SCHEMA)


@dataclass(frozen=True)
class Example:
    """Files in one folder, the name of the spec, and overrides."""

    files: Mapping[str, bytes]
    spec: str
    overrides: tuple[str, ...]


def to_yaml(data: Any) -> str:
    """Return data as YAML, or as JSON if our YAML cannot represent them."""
    try:
        return dump(data)
    except (yaml.YAMLError, ValueError, TypeError):
        return json.dumps(data, default=str)


@st.composite
def overrides(draw: st.DrawFn) -> str:
    key = draw(mostly(st.sampled_from(sorted(KEYS)), texts))
    schema = KEYS.get(key)
    kind = draw(st.integers(0, 12))
    if kind == 0:
        group = draw(st.sampled_from(["dummy", "small", "strong", "m"]))
        name = draw(st.sampled_from(sorted(GROUP_KEYS)))
        key, schema = f"models.{group}.{name}", GROUP_KEYS[name]
    elif kind == 1:
        name = draw(st.sampled_from(sorted(AGENT_KEYS)))
        key, schema = f"agents.{draw(st.sampled_from(['verifier', 'prover']))}.{name}", AGENT_KEYS[name]
    value = draw(values_of_schema(schema, SCHEMA) if schema is not None and draw(st.integers(0, 7)) else values)
    if kind == 2:
        value = {draw(st.sampled_from(sorted(KEYS))): draw(st.lists(values, max_size=3)), key: [value]}
        key = "sweep"
    sign = draw(mostly(st.just(""), st.sampled_from(["+", "~"]), 7))
    if sign == "~":
        return f"~{key}"
    text = (
        value
        if isinstance(value, str) and draw(st.integers(0, 5)) == 0
        else json.dumps(value, default=str, ensure_ascii=False)
    )
    return f"{sign}{key}={text}"


def _mutate(draw: st.DrawFn, data: dict[str, Any]) -> None:
    """Change one key or value of a spec, or add one."""
    paths = _list_paths(data)
    path: tuple[Any, ...] = draw(st.sampled_from(paths)) if paths else ()
    container: Any = data
    for part in path[:-1]:
        container = container[part]
    key = ".".join(map(str, path))
    change = draw(st.sampled_from([0, 1, 2, 2, 2, 2, 3, 4])) if path else 3
    if change == 0:
        del container[path[-1]]
    elif change == 1 and isinstance(container, dict):
        container[draw(texts)] = container.pop(path[-1])
    elif change == 2 and key in KEYS:
        container[path[-1]] = draw(values_of_schema(KEYS[key], SCHEMA))
    elif change == 3:
        name = draw(st.sampled_from(sorted(SCHEMA["properties"])))
        data[name] = draw(mostly(values_of_schema(SCHEMA["properties"][name], SCHEMA), values, 2))
    else:
        container[path[-1]] = draw(values)


@st.composite
def mutated_specs(draw: st.DrawFn) -> str:
    """Generate a shipped spec with some values, keys or characters changed."""
    text = (ROOT / "specs" / draw(st.sampled_from(SPECS))).read_text("utf-8")
    if draw(st.integers(0, 11)) == 11:
        position = draw(st.integers(0, len(text)))
        inserted = draw(st.one_of(texts, st.sampled_from(["[", "{", "- ", "\t", "? ", "|\n", "#"])))
        return text[:position] + inserted + text[position:]
    data = parse_yaml(text, Document("spec", Path())).data
    for _ in range(draw(st.integers(0, 2))):
        _mutate(draw, data)
    return to_yaml(data)


@st.composite
def schema_specs(draw: st.DrawFn) -> str:
    """Generate a spec from the schema; most of them extend a complete spec."""
    data = draw(values_of_schema({**SCHEMA, "required": []}, SCHEMA))
    if isinstance(data, dict):
        chosen_keys = draw(st.lists(st.sampled_from(sorted(SCHEMA["properties"])), max_size=2))
        data = {name: value for name, value in data.items() if name in chosen_keys}
        data["extends"] = draw(st.sampled_from(["base/offline.yaml", "quickstart.yaml", "expert_iteration.yaml"]))
    return to_yaml(data)


@st.composite
def protocols(draw: st.DrawFn) -> str:
    data: Any = draw(values_of_schema({**protocol_schema(), "required": []}, protocol_schema()))
    if isinstance(data, dict):
        chosen_keys = draw(st.lists(st.sampled_from(sorted(protocol_schema()["properties"])), max_size=2))
        data = {name: value for name, value in data.items() if name in chosen_keys}
        data["extends"] = draw(st.sampled_from(builtin_names()))
    return to_yaml(data)


@st.composite
def datasets(draw: st.DrawFn) -> bytes:
    row = st.fixed_dictionaries(
        {"id": st.one_of(st.integers(0, 9), texts), "label": st.one_of(st.integers(0, 1), st.integers(0, 1), scalars),
         "question": values, "solution": texts},
        optional={"split": st.sampled_from(["train", "test"])},
    )  # fmt: skip
    rows = draw(st.lists(row, min_size=1, max_size=4))
    return "".join(json.dumps(item, default=str) + "\n" for item in rows).encode("utf-8", "surrogatepass")


@st.composite
def examples(draw: st.DrawFn) -> Example:
    files: dict[str, bytes] = {}
    kind = draw(st.integers(0, 9))
    spec = draw(st.one_of(mutated_specs(), schema_specs()) if kind < 9 else st.text(max_size=40))
    files["spec.yaml"] = spec.encode("utf-8", "surrogatepass")
    override_texts = list(draw(st.lists(overrides(), max_size=2)))
    extra_file = draw(st.integers(0, 5))
    if extra_file == 0:
        files["data.jsonl"] = draw(datasets())
        override_texts += ["dataset.path=data.jsonl", "dataset.limit=null"]
    elif extra_file == 1:
        files["rules.yaml"] = draw(protocols()).encode("utf-8", "surrogatepass")
        override_texts.append("protocol.use=rules.yaml")
    elif extra_file == 2:
        name = draw(st.sampled_from(SPECS))
        return Example(files, name, tuple(override_texts))
    return Example(files, "spec.yaml", tuple(override_texts))


@dataclass
class DepthCounter:
    """Counts how many examples reach each step of loading."""

    examples: int = 0
    steps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))

    def count(self, code: int, stderr: str) -> None:
        self.examples += 1
        depth = _depth(code, stderr)
        for step in STEPS[:depth]:
            self.steps[step] += 1

    def lines(self) -> list[str]:
        return [
            f"{step:<10} {n:>7} of {self.examples} ({n / max(self.examples, 1):.0%})" for step, n in self.steps.items()
        ]


YAML_ERRORS = (
    "not valid YAML", "the file is empty", "a mapping (KEY", "OmegaConf cannot", "more than 50000", "nested deeper",
    "a second document", "are not allowed", "a key must be text", "a duplicate key", "write KEY=VALUE",
    "half of a surrogate pair", "means something else in YAML", "no such key to delete", "the key is already set",
    "is not a mapping", "interpolation", "an override has one value", "to delete a key", "a number of", "only ${key}",
    "extends", "cannot read the file", "no such spec file", "not UTF-8", "Interpolation",
)  # fmt: skip
SCHEMA_ERRORS = (
    "unknown key", ": expected ", "is not one of", "is too small", "is too large", "must not be empty",
    "missing key", "does not have the form", "not a finite number", "63 bits", "needs at least", "is too long",
    "non-empty", "too many", "expected", "combinations are more", "must be both",
)  # fmt: skip
NAME_ERRORS = (
    "no protocol", "no folder", "no file", "no model group", "no such agent", "missing agents", "no agent",
    "no run folder", "no such parameter", "fixes", "always argues", "not an address", "may decide in no round",
    "key of its own", "exactly one agent", "no channel", "more than max_message_rounds", "an address",
    "unknown extension",
    "not a file",
)  # fmt: skip
TEMPLATE_ERRORS = ("template", ".jinja", "variable")
DATASET_ERRORS = ("dataset", "no row", "the file has", "labels must be", "not valid JSON", "no datapoint")


def _depth(code: int, stderr: str) -> int:
    if code == 0:
        return len(STEPS)
    for depth, messages in enumerate((YAML_ERRORS, SCHEMA_ERRORS, NAME_ERRORS, TEMPLATE_ERRORS, DATASET_ERRORS)):
        if any(message in stderr for message in messages):
            return depth
    return len(STEPS) - 1


class UnexpectedResult(AssertionError):
    """An example with an unexpected exit code, message or file."""


def try_example(example: Example, folder: Path, depth_counter: DepthCounter) -> None:
    """Run `nip-run check` on an example; raise UnexpectedResult unless it succeeds or reports an error in the spec."""
    before = Path.cwd()
    for name, content in example.files.items():
        (folder / name).write_bytes(content)
    out, err = io.StringIO(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["check", example.spec, *example.overrides, "-v", "-v"])
    finally:
        os.chdir(before)
    stderr = err.getvalue()
    if code not in (0, 2) or "bug in nip-run" in stderr:
        raise UnexpectedResult(f"exit {code}: {stderr[-3000:]}\n{example}")
    if {path.name for path in folder.iterdir()} - {"spec.yaml", "data.jsonl", "rules.yaml"}:
        raise UnexpectedResult(f"something was written: {sorted(path.name for path in folder.iterdir())}\n{example}")
    for name in ("data.jsonl", "rules.yaml"):
        (folder / name).unlink(missing_ok=True)
    final = "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith((" ", "Traceback")))
    depth_counter.count(code, final)
