"""Replacing single values in a YAML text."""

from __future__ import annotations

import pytest

from runner.documents.plain_values import KeyPath
from runner.registry.components.freeze import replace_texts


def replace_value(key_path: KeyPath, text: str) -> str | None:
    return f"{'.'.join(map(str, key_path))}!" if text.startswith("x") else None


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("a: x1   # why\nb: y\n", 'a: "a!"   # why\nb: y\n'),
        ("a: 'x1'\r\nb: [y, \"x2\"]\r\n", 'a: "a!"\r\nb: [y, "b.1!"]\r\n'),
        ("\ufeffä: {b: x1}  # é\nc: x2", '\ufeffä: {b: "ä.b!"}  # é\nc: "c!"'),
        ("a:\n  - x1\n  # between\n  - y\n", 'a:\n  - "a.0!"\n  # between\n  - y\n'),
        ("# nothing\n", "# nothing\n"),
        ("a: y\n", "a: y\n"),
    ],
)
def test_replacing_values_keeps_the_rest_of_the_text(text: str, new: str) -> None:
    assert replace_texts(text, replace_value) == new
