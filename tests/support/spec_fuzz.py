"""Specs and overrides that nobody would write: drawn from the shipped schemas, and mutations of the shipped specs.

Each is loaded and planned as `nip-run check` does it, and how deep it came is said, so that it is seen that the
examples are not all refused at the door.
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
"""How deep an example can come: YAML read, schema kept, names known, templates and data sound, and a price at last."""

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
"""Whole numbers, as JSON Schema has it."""

WORDS = (
    "nip", "debate", "small", "m", "dummy", "verifier", "prover", "prompts/code_validation/nip", "text", "label = 1",
    "train", "data/code_validation.jsonl", "low", "https://example.invalid/v1", "KEY", "a b", "id", "question", "x-1",
    "0.5",
)  # fmt: skip


def mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], share: int = 9) -> st.SearchStrategy[Any]:
    """The usual, and once in so many times the odd."""
    return st.integers(0, share).flatmap(lambda number: odd if number == share else usual)


texts = mostly(st.sampled_from(WORDS), st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=8)), 5)
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


def of_schema(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """What a schema of ours accepts, or nearly: a bound or a pattern is missed now and then."""
    if "$ref" in schema:
        return st.deferred(lambda: of_schema(root["$defs"][schema["$ref"].rpartition("/")[2]], root))
    if "anyOf" in schema:
        return st.one_of(*(of_schema(arm, root) for arm in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", [])
    drawn = [_OF_TYPE[kind](schema, root) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    if not drawn:
        return values
    if not schema.get("examples"):
        return st.one_of(drawn)
    # Copies: a mutation changes what was drawn, and the schema must stay as it is.
    return mostly(st.sampled_from(schema["examples"]).map(copy.deepcopy), st.one_of(drawn), 3)


def _of_object(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "properties" in schema:
        required = {name: of_schema(schema["properties"][name], root) for name in schema.get("required", ())}
        others = {n: of_schema(s, root) for n, s in schema["properties"].items() if n not in required}
        return st.fixed_dictionaries(required, optional=others)
    more = schema.get("additionalProperties")
    inner = of_schema(more, root) if isinstance(more, Mapping) else values
    names = st.one_of(st.sampled_from(["m", "small", "verifier", "prover", "seed", "prover0"]), texts)
    return st.dictionaries(names, inner, min_size=schema.get("minProperties", 0), max_size=3)


def _of_number(schema: Mapping[str, Any], _: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -5))
    return mostly(st.integers(min_value=int(low), max_value=int(low) + 9), st.sampled_from(ODD_NUMBERS), 7)


_OF_TYPE: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], st.SearchStrategy[Any]]] = {
    "string": lambda schema, _: mostly(st.from_regex(schema["pattern"]), texts) if "pattern" in schema else texts,
    "integer": lambda schema, root: mostly(_of_number(schema, root), st.sampled_from(WHOLE_FLOATS), 11),
    "number": lambda schema, root: st.one_of(_of_number(schema, root), st.floats()),
    "boolean": lambda _, __: st.booleans(),
    "null": lambda _, __: st.none(),
    "array": lambda schema, root: st.lists(of_schema(schema.get("items", {}), root), max_size=3),
    "object": _of_object,
}


def _leaves(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        found += _leaves(value, (*at, name))
    return found


def _sections(schema: Mapping[str, Any], root: Mapping[str, Any], at: str = "") -> dict[str, Mapping[str, Any]]:
    """Every dotted key of a schema that has fixed names on its way, with its own schema."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    found: dict[str, Mapping[str, Any]] = {}
    for name, inner in schema.get("properties", {}).items():
        key = f"{at}.{name}" if at else name
        found[key] = inner
        arms = inner.get("anyOf", [inner])
        for arm in arms:
            found.update(_sections(arm, root, key))
    return found


SCHEMA = experiment_schema()
KEYS = _sections(SCHEMA, SCHEMA)
GROUP_KEYS = _sections(SCHEMA["$defs"]["ModelSettings"], SCHEMA)
AGENT_KEYS = _sections(SCHEMA["$defs"]["AgentSettings"], SCHEMA)


@dataclass(frozen=True)
class Example:
    """Files beside each other, the name of the spec among them, and overrides."""

    files: Mapping[str, bytes]
    spec: str
    overrides: tuple[str, ...]


def written(data: Any) -> str:
    """Data as YAML; or as JSON where YAML of ours cannot have it."""
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
    value = draw(of_schema(schema, SCHEMA) if schema is not None and draw(st.integers(0, 7)) else values)
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
    places = _leaves(data)
    way: tuple[Any, ...] = draw(st.sampled_from(places)) if places else ()
    holder: Any = data
    for part in way[:-1]:
        holder = holder[part]
    key = ".".join(map(str, way))
    change = draw(st.sampled_from([0, 1, 2, 2, 2, 2, 3, 4])) if way else 3
    if change == 0:
        del holder[way[-1]]
    elif change == 1 and isinstance(holder, dict):
        holder[draw(texts)] = holder.pop(way[-1])
    elif change == 2 and key in KEYS:
        holder[way[-1]] = draw(of_schema(KEYS[key], SCHEMA))
    elif change == 3:
        name = draw(st.sampled_from(sorted(SCHEMA["properties"])))
        data[name] = draw(mostly(of_schema(SCHEMA["properties"][name], SCHEMA), values, 2))
    else:
        holder[way[-1]] = draw(values)


@st.composite
def mutated_specs(draw: st.DrawFn) -> str:
    """One of the shipped specs, with some of its values, keys or bytes changed."""
    text = (ROOT / "specs" / draw(st.sampled_from(SPECS))).read_text("utf-8")
    if draw(st.integers(0, 11)) == 11:
        at = draw(st.integers(0, len(text)))
        return text[:at] + draw(st.one_of(texts, st.sampled_from(["[", "{", "- ", "\t", "? ", "|\n", "#"]))) + text[at:]
    data = parse_yaml(text, Document("spec", Path())).data
    for _ in range(draw(st.integers(0, 2))):
        _mutate(draw, data)
    return written(data)


@st.composite
def schema_specs(draw: st.DrawFn) -> str:
    """A spec drawn from the schema, most of them over a base that is complete."""
    data = draw(of_schema({**SCHEMA, "required": []}, SCHEMA))
    if isinstance(data, dict):
        kept = draw(st.lists(st.sampled_from(sorted(SCHEMA["properties"])), max_size=2))
        data = {name: value for name, value in data.items() if name in kept}
        data["extends"] = draw(st.sampled_from(["base/offline.yaml", "quickstart.yaml", "expert_iteration.yaml"]))
    return written(data)


@st.composite
def protocols(draw: st.DrawFn) -> str:
    data: Any = draw(of_schema({**protocol_schema(), "required": []}, protocol_schema()))
    if isinstance(data, dict):
        kept = draw(st.lists(st.sampled_from(sorted(protocol_schema()["properties"])), max_size=2))
        data = {name: value for name, value in data.items() if name in kept}
        data["extends"] = draw(st.sampled_from(builtin_names()))
    return written(data)


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
    more = list(draw(st.lists(overrides(), max_size=2)))
    extra = draw(st.integers(0, 5))
    if extra == 0:
        files["data.jsonl"] = draw(datasets())
        more += ["dataset.path=data.jsonl", "dataset.limit=null"]
    elif extra == 1:
        files["rules.yaml"] = draw(protocols()).encode("utf-8", "surrogatepass")
        more.append("protocol.use=rules.yaml")
    elif extra == 2:
        name = draw(st.sampled_from(SPECS))
        return Example(files, name, tuple(more))
    return Example(files, "spec.yaml", tuple(more))


@dataclass
class Reached:
    """How many examples came how deep."""

    examples: int = 0
    steps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))

    def count(self, code: int, said: str) -> None:
        self.examples += 1
        depth = _depth(code, said)
        for step in STEPS[:depth]:
            self.steps[step] += 1

    def lines(self) -> list[str]:
        return [
            f"{step:<10} {n:>7} of {self.examples} ({n / max(self.examples, 1):.0%})" for step, n in self.steps.items()
        ]


AT_THE_YAML = (
    "not valid YAML", "the file is empty", "a mapping (KEY", "OmegaConf cannot", "more than 50000", "nested deeper",
    "a second document", "are not allowed", "a key must be text", "a duplicate key", "write KEY=VALUE",
    "half of a surrogate pair", "means something else in YAML", "no such key to delete", "the key is already set",
    "is not a mapping", "interpolation", "an override has one value", "to delete a key", "a number of", "only ${key}",
    "extends", "cannot read the file", "no such spec file", "not UTF-8", "Interpolation",
)  # fmt: skip
AT_THE_SCHEMA = (
    "unknown key", "belongs here, not", "is not one of", "is too small", "is too large", "must not be empty",
    "missing key", "does not have the form", "not a finite number", "63 bits", "needs at least", "is too long",
    "non-empty", "too many", "expected", "combinations are more",
)  # fmt: skip
AT_THE_NAMES = (
    "no protocol", "no folder", "no file", "no model group", "no such agent", "missing agents", "no agent",
    "no run folder", "no such parameter", "fixes", "always argues", "not an address", "may decide in no round",
    "key of its own", "exactly one agent", "no channel", "more than max_message_rounds", "an address",
    "unknown extension",
    "not a file",
)  # fmt: skip
AT_THE_TEMPLATES = ("template", ".jinja", "variable")
AT_THE_DATASET = ("dataset", "no row", "the file has", "labels must be", "not valid JSON", "no datapoint")


def _depth(code: int, said: str) -> int:
    if code == 0:
        return len(STEPS)
    for depth, words in enumerate((AT_THE_YAML, AT_THE_SCHEMA, AT_THE_NAMES, AT_THE_TEMPLATES, AT_THE_DATASET)):
        if any(word in said for word in words):
            return depth
    return len(STEPS) - 1


class Fault(AssertionError):
    """An example that nip-run has no answer to."""


def try_example(example: Example, folder: Path, reached: Reached) -> None:
    """`nip-run check` on an example; what is no error of the spec is a fault, and so is a folder that was written."""
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
    said = err.getvalue()
    if code not in (0, 2) or "bug in nip-run" in said:
        raise Fault(f"exit {code}: {said[-3000:]}\n{example}")
    if {path.name for path in folder.iterdir()} - {"spec.yaml", "data.jsonl", "rules.yaml"}:
        raise Fault(f"something was written: {sorted(path.name for path in folder.iterdir())}\n{example}")
    for name in ("data.jsonl", "rules.yaml"):
        (folder / name).unlink(missing_ok=True)
    final = "".join(line for line in said.splitlines(keepends=True) if not line.startswith((" ", "Traceback")))
    reached.count(code, final)
