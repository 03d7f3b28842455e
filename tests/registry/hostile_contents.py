"""A table of hostile contents of complete releases.

Each row is a folder of a fetched release: a spec with the files that it names. Reading it as a command would do is
refused with a message; nothing is built, rendered or sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

BASE = """\
name: x
dataset: {path: data.jsonl}
protocol: {use: nip}
prompts: prompts/code_validation/nip
models: {m: {provider: dummy}}
agents: {prover: {model: m}, verifier: {model: m}}
"""
DATA = "".join(json.dumps({"id": f"p{n}", "label": n % 2, "question": "q", "solution": "s"}) + "\n" for n in range(4))
GOOD: Mapping[str, bytes] = {"spec.yaml": BASE.encode(), "data.jsonl": DATA.encode()}


@dataclass(frozen=True)
class HostileContent:
    name: str
    files: Mapping[str, bytes]
    """Files that replace or extend those of a valid spec."""
    message: str


def _to_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _with(line: str) -> str:
    """Return the valid spec with this line instead of the one with the same key."""
    remaining = [existing for existing in BASE.splitlines() if not existing.startswith(line.partition(":")[0] + ":")]
    return "\n".join([*remaining, line, ""])


ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 26))
NO_FUNCTION = "only ${key} is allowed, no function"
TAGS = "explicit YAML tags"
DEEP = "nested deeper than 24 levels"

YAML: tuple[tuple[str, str | bytes, str], ...] = (
    ("aliases that multiply", ALIASES, "anchors (&a0) are not allowed"),
    ("merge keys that multiply", MERGES, "anchors (&a0) are not allowed"),
    ("an alias of nothing", BASE + "x: *y\n", "aliases (*y) are not allowed"),
    ("an anchor on itself", BASE + "x: &a [*a]\n", "anchors (&a) are not allowed"),
    ("100,000 brackets", "[" * 100_000, DEEP),
    ("50,000 braces", "{a: " * 50_000, DEEP),
    ("25 levels", BASE + "x: " + "[" * 25 + "]" * 25, DEEP),
    ("a tag of Python's", BASE + "x: !!python/object/apply:os.system [id]\n", TAGS),
    ("a tag of a path", BASE + "x: !!python/object/apply:pathlib.PosixPath [/etc/passwd]\n", TAGS),
    ("a tag of a name", BASE + "x: !!python/name:os.system\n", TAGS),
    ("a tag of bytes", BASE + "x: !!binary aGk=\n", TAGS),
    ("a tag of its own", BASE + "x: !include /etc/passwd\n", TAGS),
    ("a tag of an environment", BASE + "x: !ENV ${HOME}\n", TAGS),
    ("a set", BASE + "x: !!set {a, b}\n", TAGS),
    ("300 KiB", BASE + "# " + "x" * (300 << 10), "larger than 256 KiB"),
    ("60,000 nodes", "".join(f"k{i}: 1\n" for i in range(25_100)), "more than 50000 nodes"),
    ("two documents", BASE + "---\nx: 1\n", "a second document starts here"),
    ("a key twice", BASE + "name: y\n", "a duplicate key"),
    ("a key that is a list", BASE + "? [a, b]\n: 1\n", "a key must be text"),
    ("a number of 100,000 digits", BASE + f"seed: {'9' * 100_000}\n", "a number of 100000 characters"),
    ("a number beyond 64 bits", BASE + "seed: 99999999999999999999\n", "seed"),
    ("a flag as a name", _with("name: no"), "name"),
    ("UTF-16", BASE.encode("utf-16"), "UTF-16"),
    ("bytes that are no UTF-8", BASE.encode() + b"x: \xff\n", "not UTF-8"),
    ("binary", b"\x00\x01\x02" * 100, "the file is binary"),
    ("empty", "", "the file is empty"),
    ("a list", "- a\n", "a mapping"),
    ("a text", "just text\n", "a mapping"),
    ("an unknown key", BASE + "hooks: {after: sh}\n", "hooks"),
    ("a control character", BASE + 'x: "a\x07b"\n', "a control character (U+0007)"),
    ("the environment", _with('description: "${oc.env:OPENAI_API_KEY}"'), NO_FUNCTION),
    ("the environment with a default", _with('description: "${oc.env:HOME,x}"'), NO_FUNCTION),
    ("decode", _with('description: "${oc.decode:\'{a: 1}\'}"'), NO_FUNCTION),
    ("create", _with('description: "${oc.create:{a: 1}}"'), NO_FUNCTION),
    ("select", _with('description: "${oc.select:models.m.api_key}"'), NO_FUNCTION),
    ("a function in a function", _with('description: "${oc.decode:${oc.env:HOME}}"'), NO_FUNCTION),
    ("a name that is computed", _with('description: "${${name}}"'), "must be written out"),
    ("a function in the address", _with('models: {m: {provider: openai, model: x, base_url: "${oc.env:HOME}"}}'),
     NO_FUNCTION),
    ("a function in a list", _with('tags: ["${oc.env:HOME}"]'), NO_FUNCTION),
    ("a broken interpolation", _with('description: "${"'), "is not a valid interpolation"),
    ("an interpolation in a circle", _with('description: "${description}"'), "description"),
    ("a circle of extends", BASE + "extends: spec.yaml\n", "extends"),
    ("an extension that is not there", BASE + "extends: no.yaml\n", "no.yaml"),
    ("an extension that is a folder", BASE + "extends: .\n", "Is a directory"),
    ("an address with a user",
     _with('models: {m: {provider: openai, model: x, base_url: "https://api.openai.com@evil.example/v1"}}'),
     "base_url"),
    ("an address of a file", _with('models: {m: {provider: openai, model: x, base_url: "file:///etc/passwd"}}'),
     "base_url"),
    ("an address with a line end",
     _with('models: {m: {provider: openai, model: x, base_url: "https://a/\\r\\nx: y"}}'),
     "base_url"),
    ("an unknown provider", _with("models: {m: {provider: os.system}}"), "provider"),
    ("a key in the spec", _with("models: {m: {provider: openai, model: x, api_key: sk-x}}"), "api_key"),
    ("a million rollouts of a datapoint", BASE + "rollouts: {per_datapoint: 100000000000000000000}\n", "per_datapoint"),
    ("a protocol that is a class", _with("protocol: {use: os.system}"), "protocol"),
    ("prompts that are not there", _with("prompts: no/such"), "prompts"),
    ("a dataset that is not there", _with("dataset: {path: no.jsonl}"), "no.jsonl"),
    ("a filter that reads files",
     _with("dataset: {path: data.jsonl, filter: \"(SELECT count(*) FROM read_csv('/etc/passwd')) > 0\"}"),
     "dataset.filter"),
    ("a filter that writes files",
     _with("dataset: {path: data.jsonl, filter: \"true); COPY (SELECT 1) TO 'evil'; --\"}"),
     "dataset.filter"),
    ("a filter with a query of its own",
     _with("dataset: {path: data.jsonl, filter: \"EXISTS (SELECT * FROM glob('/*'))\"}"),
     "dataset.filter"),
)  # fmt: skip

TEMPLATES: tuple[tuple[str, str | bytes], ...] = (
    ("globals", "{{ lipsum.__globals__ }}"), ("format by attr", "{{ ('{0.__class__}'|attr('format'))(question) }}"),
    ("a class", "{{ question.__class__ }}"), ("a class by item", "{{ question['__class__'] }}"),
    ("a class by attr", "{{ question|attr('__class__') }}"),
    ("join by attribute", "{{ h|join(attribute='__class__') }}"),
    ("map by attr", "{{ question|map('attr', '__class__') }}"), ("a method", "{{ question.upper() }}"),
    ("a format", "{{ question.format(1) }}"), ("a format by filter", "{{ question|format(1) }}"),
    ("itself", "{{ self }}"), ("its blocks", "{{ self.x }}"), ("a cycler", "{{ cycler.__init__.__globals__ }}"),
    ("a joiner", "{{ joiner() }}"), ("a namespace", "{{ namespace() }}"), ("a dict", "{{ dict() }}"),
    ("a caller", "{{ caller }}"), ("config", "{{ config.items() }}"), ("request", "{{ request.application }}"),
    ("an include", "{% include '/etc/passwd' %}"), ("an include of itself", "{% include 'verifier.jinja' %}"),
    ("an include that is computed", "{% include question %}"), ("an import", "{% import 'x' as y %}"),
    ("a part of an import", "{% from 'x' import y %}"), ("an extension", "{% extends 'x' %}"),
    ("a macro on itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    ("a block", "{% block b %}{% endblock %}"),
    ("a call", "{% call m() %}{% endcall %}"), ("a filter block", "{% filter upper %}x{% endfilter %}"),
    ("an assignment", "{% set x = 'a' %}"), ("a with", "{% with a=1 %}{% endwith %}"), ("a do", "{% do question %}"),
    ("a text times 10**9", "{{ 'a'*10**9 }}"), ("a power", "{{ 7**10**8 }}"), ("a width", "{{ '%999999999d'%1 }}"),
    ("a division", "{{ 1/0 }}"),
    ("ranges in ranges", "{% for a in range(10**5) %}{% for b in range(10**5) %}x{% endfor %}{% endfor %}"),
    ("lorem ipsum", "{{ lipsum(n=10000) }}"), ("an indent of 10**8", "{{ 'x'|indent(10**8) }}"),
    ("a centre of 10**9", "{{ 'x'|center(1000000000) }}"), ("a replacement", "{{ 'x'|replace('x', question) }}"),
    ("loops in loops", "{% for x in question %}{% for y in question %}a{% endfor %}{% endfor %}"),
    ("a loop on itself", "{% for x in question recursive %}{{ loop(question) }}{% endfor %}"),
    ("5,000 brackets", "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}"),
    ("3,000 conditions", "{% if 1 %}" * 3_000 + "{% endif %}" * 3_000), ("4,000 sums", "{{ 1" + "+1" * 4_000 + " }}"),
    ("70,000 characters", "x" * 70_000), ("an open bracket", "{{ question"), ("bytes that are no UTF-8", b"\xff\xfe"),
    ("an undeclared name", "{{ api_key }}"), ("the label", "{{ label }}"), ("debug", "{% debug %}"),
    ("a translation", "{% trans %}x{% endtrans %}"), ("an attribute of a name", "{{ agent.api_key }}"),
    ("a hidden item", "{{ question['_x'] }}"), ("pprint", "{{ question|pprint }}"), ("safe", "{{ question|safe }}"),
)  # fmt: skip

PROTOCOLS: tuple[tuple[str, str | bytes, str], ...] = (
    ("a tag", "name: !!python/name:os.system\n", TAGS),
    ("aliases", "a: &a [1]\nb: *a\n", "anchors"),
    ("brackets", "[" * 100_000, DEEP),
    ("a function", 'name: "${oc.env:HOME}"\n', NO_FUNCTION),
    ("a class", "name: x\nclass: os.system\n", "class"),
    ("empty", "", "the file is empty"),
    ("binary", b"\x00" * 100, "the file is binary"),
    ("300 KiB", "# " + "x" * (300 << 10), "larger than 256 KiB"),
    ("on itself", "extends: protocol.yaml\n", "extends"),
)

_ROW = '{"id": "a", "label": 0, "question": "q", "solution": "s"}\n'
DATASETS: tuple[tuple[str, str | bytes, str], ...] = (
    ("no JSON", "x\n", "data.jsonl"),
    ("a row cut", _ROW + '{"id": "b", "lab', "data.jsonl"),
    ("a list", "[1, 2]\n", "data.jsonl"),
    ("no rows", "", "the file has no rows"),
    ("a label of 2", _ROW.replace("0", "2"), "label"),
    ("a label that is a text", _ROW.replace("0", '"yes; DROP TABLE runs"'), "label"),
    ("no label", '{"id": "a", "question": "q", "solution": "s"}\n', "label"),
    ("no id", '{"label": 0, "question": "q", "solution": "s"}\n', "id"),
    ("an id twice", _ROW + _ROW, "a"),
    ("no question", '{"id": "a", "label": 0, "solution": "s"}\n', "question"),
    ("bytes that are no UTF-8", b"\xff\xfe\x00" + _ROW.encode(), "data.jsonl"),
    ("100,000 brackets", '{"id": "a", "label": 0, "question": ' + "[" * 100_000 + "\n", "data.jsonl"),
    ("NaN", _ROW.replace('"q"', "NaN"), "data.jsonl"),
)

JOURNALS: tuple[tuple[str, bytes, str], ...] = (
    ("no journal of ours", b"x\n" * 10, "journal"),
    ("binary", b"\xff\xfe\n" * 1_000, "journal"),
    ("a record without its checksum", b'{"kind": "begun"}\n', "journal"),
    ("100,000 brackets", b"00000000 " + b"[" * 100_000 + b"\n", "journal"),
    ("a line of a megabyte", b"00000000 " + b"x" * (1 << 20) + b"\n", "journal"),
)

ROWS = (
    *(HostileContent(f"spec: {name}", {"spec.yaml": _to_bytes(text)}, message) for name, text, message in YAML),
    *(
        HostileContent(f"template: {name}", {"prompts/verifier.jinja": _to_bytes(text)}, "verifier.jinja")
        for name, text in TEMPLATES
    ),
    *(
        HostileContent(f"protocol: {name}", {"protocol.yaml": _to_bytes(text)}, message)
        for name, text, message in PROTOCOLS
    ),
    *(HostileContent(f"dataset: {name}", {"data.jsonl": _to_bytes(text)}, message) for name, text, message in DATASETS),
    *(HostileContent(f"journal: {name}", {"journal.jsonl": text}, message) for name, text, message in JOURNALS),
)
