"""Interpolation in documents: only keys of the document, no functions, no cycles, no bombs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.document_layers import list_problems, load_in_process, load_text, write_document


def test_interpolation_resolves_keys_text_lists_and_mappings(tmp_path: Path) -> None:
    text = "n: 3\nt: x${n}y\nl: ['${n}', '${m.k}']\nm: {k: '${..n}', own: '${.k}'}\ncopy: ${m}\nitem: ${l[0]}\n"
    assert load_text(tmp_path, text).data == {
        "n": 3, "t": "x3y", "l": [3, 3], "m": {"k": 3, "own": 3}, "copy": {"k": 3, "own": 3}, "item": 3,
    }  # fmt: skip


def test_interpolation_sees_the_override(tmp_path: Path) -> None:
    assert load_text(tmp_path, "n: 3\nt: ${n}\n", "n=4").data["t"] == 4


def test_every_broken_interpolation_is_reported_at_its_place(tmp_path: Path) -> None:
    messages = list_problems(tmp_path, "a: ${nope}\nm:\n  b: ${a.c.d}\n  c: ${.c}\n")
    assert [m.split(": ")[:2] for m in messages] == [
        ["a.yaml:1:1", "a"], ["a.yaml:3:3", "m.b"], ["a.yaml:4:3", "m.c"],
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["a: ${b}\nb: ${a}\n", "a: ${a}\n", "a: {b: '${a}'}\n"])
def test_circular_interpolation_is_refused(tmp_path: Path, text: str) -> None:
    assert list_problems(tmp_path, text)


@pytest.mark.parametrize(
    "value",
    [
        "${oc.env:HOME}",
        "${oc.env:HOME,default}",
        "${oc.env: HOME}",
        "${ oc.env:HOME }",
        "text ${oc.env:HOME} text",
        "${oc.decode:'${oc.env:HOME}'}",
        "${oc.create:{x: 1}}",
        "${oc.select:n}",
        "${oc.select:n,${oc.env:HOME}}",
        "${oc.dict.keys:n}",
        "${oc.dict.values:n}",
        "${oc.deprecated:n}",
        "${${n}:HOME}",
        "${oc.${n}:HOME}",
        "${oc.env:${n}}",
        "${m.${oc.env:HOME}}",
        "${m[${oc.env:HOME}]}",
        "${anything:1}",
        "\\\\${oc.env:HOME}",
    ],
)
def test_no_interpolation_calls_a_function(tmp_path: Path, value: str) -> None:
    quoted = "'" + value.replace("'", "''") + "'"
    (message,) = list_problems(tmp_path, f"n: env\nm: {{x: 1}}\nl: [0, {quoted}]\n")
    assert message.startswith("a.yaml:3:8: l.1: ")
    assert "only ${key} is allowed" in message
    assert os.environ.get("HOME", "/root") not in message


@pytest.mark.parametrize("value", ["${${n}}", "${m.${n}}", "${m[${n}]}", "${.${n}}", "text ${m.${n}} text"])
def test_the_key_of_an_interpolation_must_be_written_out(tmp_path: Path, value: str) -> None:
    (message,) = list_problems(tmp_path, f"n: x\nx: 1\nm: {{x: 1, t: '{value}'}}\n")
    assert message == f"a.yaml:3:11: m.t: {value!r}: the key of an interpolation must be written out"


def test_an_escaped_interpolation_stays_text(tmp_path: Path) -> None:
    assert load_text(tmp_path, "a: \\${oc.env:HOME}\nb: x \\${a} y\n").data == {"a": "${oc.env:HOME}", "b": "x ${a} y"}


def make_bomb(first: str, reference: str, opening: str = "", closing: str = "", last: int = 9) -> str:
    """Return a document whose keys each contain the previous key ten times. `P` stands for its number."""
    rows = [f"a{i}: {opening}{reference.replace('P', str(i - 1)) * 10}{closing}\n" for i in range(1, last)]
    return first + "".join(rows)


BOMBS = {
    "text": make_bomb("a0: x\n", "${aP}"),
    "spaces": make_bomb("a0: x\n", "${ aP }"),
    "lists": make_bomb("a0: [x]\n", "'${aP}', ", "[", "]"),
    "empty lists": make_bomb("a0: []\n", "'${aP}', ", "[", "]"),
    "empty text": make_bomb("a0: ''\n", "'${aP}', ", "[", "]"),
    "brackets": make_bomb("a0: [x]\n", "${aP[0]}", "['", "']"),
    "number as a key": make_bomb("a0: {'1': x}\n", "${aP.1}", "{'1': '", "'}"),
    "computed names": make_bomb("n: a\na0: x\n", "${${n}P}"),
    "relative": make_bomb("a0: x\n", "${.aP}"),
    "mappings": "a0: {k: x}\n"
    + "".join(f"a{i}:\n" + "".join(f"  k{j}: ${{a{i - 1}}}\n" for j in range(10)) for i in range(1, 9)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", BOMBS)
def test_an_interpolation_bomb_is_refused(tmp_path: Path, name: str) -> None:
    assert "a.yaml:" in load_in_process(5, write_document(tmp_path, "a.yaml", BOMBS[name]))


@pytest.mark.parametrize("name", BOMBS)
def test_small_nested_interpolation_is_accepted(tmp_path: Path, name: str) -> None:
    small = BOMBS[name].split("a3:")[0]
    layered = load_text(tmp_path, small)
    assert name == "computed names" or not layered.problems
