"""What is read without OmegaConf: just what it would have read, and nothing where there is a doubt."""

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

READ = [
    "1", "-7", "0", "1.5", "-0.25", "1.0e-05", "2.5e+10", "true", "false", "null", "~", "", "a", "a b", "???", "'1e5'",
    '"2024-01-02"', "no way", "[1, {a: b}]", "{}", "[]", "|-\n  a\n  b",
]  # fmt: skip
DOUBTFUL = [
    "1e5", "1E-3", "1_000", "0x1f", "0o7", "010", "1:30", ".5", "5.", ".inf", "-.inf", ".nan", "+1", "+1.5", "yes",
    "No", "ON", "True", "NULL", "2024-01-02", "${a.b}", "'\\${x}'", "'${x'", "1.", "1_0.5", "1e+5", "--x",
]  # fmt: skip


def node_of(text: str) -> yaml.Node:
    found = yaml.compose(text, Loader=yaml.CSafeLoader)
    assert found is not None
    return found


@pytest.mark.parametrize("value", [*READ, *DOUBTFUL])
def test_a_value_is_what_omegaconf_reads_or_left_to_it(value: str) -> None:
    text = f"key: {value}\n"
    found = read_simple_document(node_of(text))
    assert (found is None) == (value in DOUBTFUL)
    if found is not None:
        asked = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
        assert found == asked
        assert repr(found) == repr(asked)


def test_texts_of_any_characters_are_read_as_omegaconf_reads_them() -> None:
    rng, settled = Random(7), 0
    for _ in range(150):
        word = "".join(rng.choices("0123456789+-._eExnyoftTNYO~:" + string.ascii_lowercase[:3], k=rng.randint(1, 5)))
        try:
            node = node_of(f"key: {word}\n")
            found = read_simple_document(node)
        except yaml.YAMLError:
            continue
        if found is not None and isinstance(node.value[0][1], yaml.ScalarNode):
            settled += 1
            asked = OmegaConf.to_container(OmegaConf.load(io.StringIO(f"key: {word}\n")))
            assert repr(found) == repr(asked), word
    assert settled > 25


@pytest.mark.parametrize("key", ["1e5", "-a", "+1", ".x", "'${x}'", "'a${b}'", "[a]"])
def test_a_document_with_a_key_that_is_not_plainly_text_is_left_to_omegaconf(key: str) -> None:
    assert read_simple_document(node_of(f"a: {{b: {{? {key}\n : 1}}}}\n")) is None
    assert read_simple_document(node_of("'1e5': {b: 1, '-': 2}\n")) == {"1e5": {"b": 1, "-": 2}}


@pytest.mark.parametrize("beside", ["x", "1e3"])
@pytest.mark.parametrize("key", ["1e5", "-2E+1", "1_0e0"])
def test_a_key_that_may_be_a_number_is_refused_whatever_stands_beside(key: str, beside: str) -> None:
    (said,) = parse_yaml(f"a: {{{key}: 1, b: {beside}}}\n", Document("a", Path())).problems
    assert "put it in quotes" in str(said)


def test_what_is_no_plain_data_is_left_to_omegaconf() -> None:
    assert is_resolved({"a": [1, 2.5, None, True, {"b": "x"}]})
    for value in ({1: "a"}, (1,), "${a}", Path("x"), [["\\${x}"]], {"a": b"x"}):
        assert not is_resolved(value)


def test_a_document_says_the_same_with_one_value_left_to_omegaconf() -> None:
    text = "a: {b: [1, 2.5, 'x', null]}\nc: yes it is\n"
    alone = parse_yaml(text, Document("a", Path()))
    beside = parse_yaml(text + "d: ${a.b}\n", Document("a", Path()))
    assert {**alone.data, "d": "${a.b}"} == beside.data
