"""The names of toy models, which the `dummy` trainer creates and the `dummy` provider plays."""

from __future__ import annotations

import re

_TRAINED = re.compile(r":dummy-([0-9]{1,9})-[0-9a-f]{8}\Z")
_ANY_TRAINED = re.compile(r"(:dummy(-[0-9]{1,9})?-[0-9a-f]{8})+\Z")
"""Matches names of 0.1.0, too. They have no number of examples, so these models answer like untrained ones."""


def trained_name(base: str, examples: int, digest: str) -> str:
    """Return the name of the model `base` after training on more examples; `digest` has 8 hexadecimal digits."""
    return f"{_ANY_TRAINED.sub('', base)}:dummy-{training_examples(base) + examples}-{digest}"


def training_examples(name: str | None) -> int:
    """Return the number of examples in a toy model's name; 0 for other models."""
    match = _TRAINED.search(name or "")
    return int(match[1]) if match else 0
