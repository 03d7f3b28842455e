"""Merged data with `${key}` in it into data without, or every interpolation that cannot be resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.base.errors import Problem
from runner.base.text import did_you_mean
from runner.documents.layered_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.plain_yaml import is_settled

MAX_RESOLVED = 1 << 20
MAX_CHAIN = 60
"""How deep values may refer to each other, with the levels that they stand in: OmegaConf recurses."""
REFERENCE = re.compile(r"(?<!\\)\$\{\s*([^{}]*?)\s*\}")
"""An interpolation; its group is the key that it refers to."""


def resolve(layered: LayeredData) -> None:
    """Replace every `${key}`; what would grow without bound, or refers to itself, is refused before."""
    layered.note_mixed()
    try:
        size = _Sizes(layered.data).total()
    except _TooDeep as deep:
        message = f"the interpolations refer to each other more than {MAX_CHAIN} levels deep"
        layered.problems.append(Problem(layered.place(deep.at), ".".join(map(str, deep.at)), message))
        return
    if size > MAX_RESOLVED:
        message = f"the interpolations grow to more than {MAX_RESOLVED >> 20} MiB"
        layered.problems.append(Problem(layered.place(()), "", message))
        return
    if is_settled(layered.data):
        return
    config = OmegaConf.create(layered.data)
    assert isinstance(config, DictConfig)
    layered.data = {str(name): _resolved(config, name, (str(name),), layered) for name in config}


def target(reference: str, at: KeyPath) -> KeyPath:
    """The key that the `${reference}` of a text at a key means; leading dots are relative to its section."""
    name = reference.lstrip(".")
    dots = len(reference) - len(name)
    base = at[: len(at) - dots] if dots else ()
    parts = [part for part in re.split(r"[.\[\]]", name) if part]
    return (*base, *parts)


class _TooDeep(Exception):
    """The key from which interpolations refer to each other without an end in sight."""

    def __init__(self, at: KeyPath) -> None:
        super().__init__(at)
        self.at = at


class _Sizes:
    """How large data is once its interpolations are resolved, without resolving them: characters and nodes.

    What refers to itself counts nothing here: OmegaConf reports it.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self._known: dict[KeyPath, int] = {}

    def total(self) -> int:
        return self._size((), ())

    def _size(self, at: KeyPath, under: tuple[KeyPath, ...]) -> int:
        if at in under:
            return 0
        if len(under) > MAX_CHAIN:
            raise _TooDeep(under[1] if len(under) > 1 else at)
        if at not in self._known:
            self._known[at] = self._fresh_size(at, (*under, at))
        return self._known[at]

    def _fresh_size(self, at: KeyPath, under: tuple[KeyPath, ...]) -> int:
        value: Any = self._data
        for part in at:
            try:
                value = value[int(part)] if isinstance(value, list) else value[str(part)]
            except (KeyError, IndexError, TypeError, ValueError):
                return 0  # a key that is not there is OmegaConf's to report
        if isinstance(value, (dict, list)):
            names = value if isinstance(value, dict) else range(len(value))
            return 1 + sum(self._size((*at, name), under) for name in names)
        size = 1 + len(str(value))
        for found in REFERENCE.finditer(value if isinstance(value, str) else ""):
            size += self._size(target(found[1], at), under)
        return size


def _plain(said: str, layered: LayeredData) -> str:
    """What OmegaConf says of an interpolation, in words of ours."""
    missing = re.fullmatch(r"Interpolation key '(.*)' not found", said)
    if missing is not None:
        parts = missing[1].split(".")
        hint = (
            did_you_mean(missing[1], _dotted(layered.data)) or "; write out the whole key, as in ${models.NAME.model}"
        )
        return f"no such key for ${{{missing[1]}}}{hint}" if all(parts) else said
    if "Recursive interpolation" in said:
        return "the value refers to itself by way of its ${...}; write one of them out"
    return said


def _dotted(value: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a mapping and those below it."""
    for name, item in value.items() if isinstance(value, dict) else ():
        yield f"{prefix}{name}"
        yield from _dotted(item, f"{prefix}{name}.")


def _resolved(config: Any, key: Any, at: KeyPath, layered: LayeredData) -> Any:
    """Node by node, so that every broken interpolation is reported and not the first alone."""
    if OmegaConf.is_missing(config, key):
        return "???"  # OmegaConf's mark for a missing value is a text like any other here
    try:
        value = config[key]
    except OmegaConfBaseException as error:
        message = _plain(str(error).splitlines()[0], layered)
        layered.problems.append(Problem(layered.place(at), ".".join(map(str, at)), message))
        return None
    if OmegaConf.is_dict(value):
        return {str(name): _resolved(value, name, (*at, str(name)), layered) for name in value}
    if OmegaConf.is_list(value):
        return [_resolved(value, index, (*at, index), layered) for index in range(len(value))]
    return value
