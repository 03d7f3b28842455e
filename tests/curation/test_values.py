"""Values of built-in types leave the sandbox unchanged. Other objects become opaque."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from runner.curation.sandbox.values import OpaqueValue, decode_value, encode_value

HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "a", "\ud800"])
    | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    HASHABLE | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(HASHABLE, inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture(scope="module", autouse=True)
def _hypothesis_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


@settings(deadline=None, database=None, max_examples=30)
@given(VALUES)
def test_encoded_value_is_decoded_unchanged(value: object) -> None:
    decoded = decode_value(json.loads(json.dumps(encode_value(value))))
    assert decoded == value
    assert type(decoded) is type(value)


def test_a_subclass_becomes_its_built_in_class() -> None:
    class Point(NamedTuple):
        x: int
        y: int

    values = (Point(1, 2), OrderedDict(a=1), Counter("a"))
    assert [type(decode_value(encode_value(value))) for value in values] == [tuple, dict, dict]


def test_object_of_another_type_is_opaque_and_never_equal() -> None:
    decoded = decode_value(encode_value(range(3)))
    assert isinstance(decoded, OpaqueValue)
    assert decoded.type_name == "range"
    assert decoded != decode_value(encode_value(range(3)))


@pytest.mark.parametrize(
    "data", [{"set": [[]]}, {"int": 3}, {"x": 1}, {"dict": [1]}, {}, {"int": "z"}, {"a": 1, "b": 2}]
)
def test_forged_json_is_refused(data: object) -> None:
    with pytest.raises(ValueError):
        decode_value(data)
