"""Names of toy models, which the `dummy` trainer creates and the `dummy` provider plays."""

from __future__ import annotations

import re

_TRAINED = re.compile(r":dummy-([0-9]{1,9})-[0-9a-f]{8}\Z")
_ANY_TRAINED = re.compile(r"(:dummy(-[0-9]{1,9})?-[0-9a-f]{8})+\Z")
"""Matches the names of 0.1.0 too, which hold no number: those models answer like untrained ones."""


def trained_name(base: str, examples: int, digest: str) -> str:
    """Return the name of `base` after training on more examples; `digest` has 8 hexadecimal digits."""
    return f"{_ANY_TRAINED.sub('', base)}:dummy-{training_examples(base) + examples}-{digest}"


def training_examples(name: str | None) -> int:
    """Return the number of examples that a toy model was trained on, from its name."""
    match = _TRAINED.search(name or "")
    return int(match[1]) if match else 0
