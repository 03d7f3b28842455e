"""Overrides set, add or delete keys of a document. Errors quote the override."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.base.problems import Place
from tests.support.document_layers import list_problems, load_text

BASE = "a: 1\nb: {c: 2, d: [1, 2]}\n"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("a=2", "a", 2),
        ("a=2.5", "a", 2.5),
        ("a=1e3", "a", 1000.0),
        ("a=true", "a", True),
        ("a=null", "a", None),
        ("a=", "a", None),
        ("a=text", "a", "text"),
        ("a='2'", "a", "2"),
        ('a="x: y"', "a", "x: y"),
        ("a=x=y", "a", "x=y"),
        ("a=é😀", "a", "é😀"),
        ("a=[1, {x: y}]", "a", [1, {"x": "y"}]),
        ("a={x: 1}", "a", {"x": 1}),
        ("b.c=3", "b", {"c": 3, "d": [1, 2]}),
        ("b.d=[9]", "b", {"c": 2, "d": [9]}),
        ("b={e: 1}", "b", {"e": 1}),
        ("b.new=3", "b", {"c": 2, "d": [1, 2], "new": 3}),
        ("+b.new=3", "b", {"c": 2, "d": [1, 2], "new": 3}),
        ("q.r.s=1", "q", {"r": {"s": 1}}),
        ("+q.r=1", "q", {"r": 1}),
        ("~b.c", "b", {"d": [1, 2]}),
        ("a=${b.c}", "a", 2),
    ],
)
def test_an_override_sets_adds_or_deletes(tmp_path: Path, override: str, key: str, value: Any) -> None:
    layered = load_text(tmp_path, BASE, override)
    assert not layered.problems
    assert layered.data[key] == value


def test_delete_override_removes_a_key(tmp_path: Path) -> None:
    assert load_text(tmp_path, BASE, "~b").data == {"a": 1}


def test_overrides_are_applied_in_order(tmp_path: Path) -> None:
    assert load_text(tmp_path, BASE, "a=2", "a=3", "~b.c", "+b.c=4").data == {"a": 3, "b": {"c": 4, "d": [1, 2]}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+a=2", "a: the key is already set; write a=... to change it"),
        ("~b.cc", "b.cc: no such key to delete; did you mean 'c'?"),
        ("~nope.x", "nope.x: no such key to delete; remove the override"),
        ("~a=1", "a: to delete a key, write ~KEY without a value"),
        ("a", "a: write KEY=VALUE, +KEY=VALUE or ~KEY"),
        ("+", "write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys"),
        ("=1", "write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys"),
        ("b..c=1", "b..c: write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys"),
        ("a.b=1", "a: 1 is not a mapping; 'a.b' cannot be set in this value"),
        ("b.d.0=9", "b.d: [1, 2] is not a mapping; 'b.d.0' cannot be set in this value"),
        ("a=[1", "a: the [ that opens here is not closed; add ] where it ends"),
        ("a=x: y", "a: a second colon in one line; write 'a=\"...\"'"),
        ("a=!!binary aGk=", "a: explicit YAML tags (tag:yaml.org,2002:binary) are not allowed; remove the tag"),
        ("a=&x 1", "a: anchors (&x) are not allowed; use ${...} or extends"),
        ("a={x: 1, x: 2}", "a: a duplicate key, which is already set in line 1; remove one of the two"),
        ("a={on: 1}", "a: a key must be text, but YAML reads this one as bool; put it in quotes"),
    ],
)
def test_error_quotes_a_malformed_override(tmp_path: Path, override: str, message: str) -> None:
    (problem,) = list_problems(tmp_path, BASE, override)
    assert problem == f"override {override!r}:1:1: {message}"


def test_two_line_override_is_refused_or_stays_one_value(tmp_path: Path) -> None:
    layered = load_text(tmp_path, BASE, "a=1\nz: 2")
    assert layered.problems or "z" in str(layered.data["a"])


def test_all_bad_overrides_are_reported_at_once(tmp_path: Path) -> None:
    assert len(list_problems(tmp_path, BASE, "a.b=1", "nope", "~zz")) == 3


def test_place_of_an_overridden_value_is_the_override(tmp_path: Path) -> None:
    layered = load_text(tmp_path, BASE, "b.c=3", "b.d=[7]")
    assert layered.place(("b", "c")).file == "override 'b.c=3'"
    assert layered.place(("b", "d", 0)).file == "override 'b.d=[7]'"
    assert layered.place(("b",)) == Place("a.yaml", 2, 1)


def test_override_cannot_call_functions(tmp_path: Path) -> None:
    (message,) = list_problems(tmp_path, BASE, "a=${oc.env:HOME}")
    assert "only ${key} is allowed" in message
