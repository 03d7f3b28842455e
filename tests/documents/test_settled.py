"""Simple documents are parsed without OmegaConf, with the same result. Ambiguous ones are left to OmegaConf."""

from __future__ import annotations

import io
import string
from pathlib import Path
from random import Random

import pytest
import yaml
from omegaconf import OmegaConf

from runner.documents.simple_yaml import is_resolved, read_simple_document
from runner.documents.yaml_reader import Document, parse_yaml

SIMPLE_VALUES = [
    "1", "-7", "0", "1.5", "-0.25", "1.0e-05", "2.5e+10", "true", "false", "null", "~", "", "a", "a b", "???", "'1e5'",
    '"2024-01-02"', "no way", "[1, {a: b}]", "{}", "[]", "|-\n  a\n  b",
]  # fmt: skip
AMBIGUOUS_VALUES = [
    "1e5", "1E-3", "1_000", "0x1f", "0o7", "010", "1:30", ".5", "5.", ".inf", "-.inf", ".nan", "+1", "+1.5", "yes",
    "No", "ON", "True", "NULL", "2024-01-02", "${a.b}", "'\\${x}'", "'${x'", "1.", "1_0.5", "1e+5", "--x",
]  # fmt: skip


def compose_node(text: str) -> yaml.Node:
    node = yaml.compose(text, Loader=yaml.CSafeLoader)
    assert node is not None
    return node


@pytest.mark.parametrize("value", [*SIMPLE_VALUES, *AMBIGUOUS_VALUES])
def test_simple_value_equals_that_of_omegaconf_and_others_are_left_to_it(value: str) -> None:
    text = f"key: {value}\n"
    parsed = read_simple_document(compose_node(text))
    assert (parsed is None) == (value in AMBIGUOUS_VALUES)
    if parsed is not None:
        expected = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
        assert parsed == expected
        assert repr(parsed) == repr(expected)


def test_random_texts_are_parsed_like_omegaconf() -> None:
    rng, parsed_count = Random(7), 0
    for _ in range(150):
        value = "".join(rng.choices("0123456789+-._eExnyoftTNYO~:" + string.ascii_lowercase[:3], k=rng.randint(1, 5)))
        try:
            node = compose_node(f"key: {value}\n")
            parsed = read_simple_document(node)
        except yaml.YAMLError:
            continue
        if parsed is not None and isinstance(node.value[0][1], yaml.ScalarNode):
            parsed_count += 1
            expected = OmegaConf.to_container(OmegaConf.load(io.StringIO(f"key: {value}\n")))
            assert repr(parsed) == repr(expected), value
    assert parsed_count > 25


@pytest.mark.parametrize("key", ["1e5", "-a", "+1", ".x", "'${x}'", "'a${b}'", "[a]"])
def test_document_with_an_ambiguous_key_is_left_to_omegaconf(key: str) -> None:
    assert read_simple_document(compose_node(f"a: {{b: {{? {key}\n : 1}}}}\n")) is None
    assert read_simple_document(compose_node("'1e5': {b: 1, '-': 2}\n")) == {"1e5": {"b": 1, "-": 2}}


@pytest.mark.parametrize("other_value", ["x", "1e3"])
@pytest.mark.parametrize("key", ["1e5", "-2E+1", "1_0e0"])
def test_key_that_looks_like_a_number_is_refused(key: str, other_value: str) -> None:
    (problem,) = parse_yaml(f"a: {{{key}: 1, b: {other_value}}}\n", Document("a", Path())).problems
    assert "put it in quotes" in str(problem)


def test_data_that_is_not_plain_is_left_to_omegaconf() -> None:
    assert is_resolved({"a": [1, 2.5, None, True, {"b": "x"}]})
    for value in ({1: "a"}, (1,), "${a}", Path("x"), [["\\${x}"]], {"a": b"x"}):
        assert not is_resolved(value)


def test_document_with_an_interpolation_has_the_same_other_values() -> None:
    text = "a: {b: [1, 2.5, 'x', null]}\nc: yes it is\n"
    simple = parse_yaml(text, Document("a", Path()))
    with_interpolation = parse_yaml(text + "d: ${a.b}\n", Document("a", Path()))
    assert {**simple.data, "d": "${a.b}"} == with_interpolation.data
