"""Resolve every `${key}` in merged data, and report each one that cannot be resolved.

`runner.documents.layer_loading` calls it after all files are merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from runner.base.text import did_you_mean
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.simple_yaml import is_resolved

MAX_RESOLVED = 1 << 20
MAX_CHAIN = 60
"""Maximum length of a chain of references, including levels of nesting, because OmegaConf recurses."""
REFERENCE = re.compile(r"(?<!\\)\$\{\s*([^{}]*?)\s*\}")
"""Matches an interpolation; group 1 is the key that it refers to."""


def resolve_interpolations(layered: LayeredData) -> None:
    """Replace every `${key}` in `layered.data` by its value. If the data would be too large, add a problem instead."""
    layered.find_foreign_keys()
    try:
        size = _ResolvedSizes(layered.data).total()
    except _TooDeep as deep:
        message = f"the interpolations refer to each other more than {MAX_CHAIN} levels deep; write some values out"
        layered.problems.append(layered.problem_at(deep.key_path, message))
        return
    if size > MAX_RESOLVED:
        message = f"the interpolations grow to more than {MAX_RESOLVED >> 20} MiB; remove some of the ${{...}}"
        layered.problems.append(layered.problem_at((), message))
        return
    if is_resolved(layered.data):
        return
    from omegaconf import OmegaConf  # not at the top, since most specs have no interpolation

    config = OmegaConf.create(layered.data)
    layered.data = {str(name): _resolve_value(config, name, (str(name),), layered) for name in config}


def referenced_key(reference: str, key_path: KeyPath) -> KeyPath:
    """Return the key that `${reference}` means in the text of `key_path`; leading dots make it relative."""
    name = reference.lstrip(".")
    dots = len(reference) - len(name)
    base = key_path[: len(key_path) - dots] if dots else ()
    parts = [part for part in re.split(r"[.\[\]]", name) if part]
    return (*base, *parts)


class _TooDeep(Exception):
    """Raised with the key where a chain of references longer than `MAX_CHAIN` begins."""

    def __init__(self, key_path: KeyPath) -> None:
        super().__init__(key_path)
        self.key_path = key_path


class _ResolvedSizes:
    """Computes the size of resolved data (characters plus nodes) without resolving it.

    A value that refers to itself has size 0, because OmegaConf reports it later.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self._sizes: dict[KeyPath, int] = {}

    def total(self) -> int:
        return self._size((), ())

    def _size(self, key_path: KeyPath, parents: tuple[KeyPath, ...]) -> int:
        if key_path in parents:
            return 0
        if len(parents) > MAX_CHAIN:
            raise _TooDeep(parents[1] if len(parents) > 1 else key_path)
        if key_path not in self._sizes:
            self._sizes[key_path] = self._compute_size(key_path, (*parents, key_path))
        return self._sizes[key_path]

    def _compute_size(self, key_path: KeyPath, parents: tuple[KeyPath, ...]) -> int:
        """Return the size of a value, including the values that its interpolations refer to."""
        value: Any = self._data
        for part in key_path:
            try:
                value = value[int(part)] if isinstance(value, list) else value[str(part)]
            except (KeyError, IndexError, TypeError, ValueError):
                return 0  # OmegaConf reports missing keys
        if isinstance(value, (dict, list)):
            names = value if isinstance(value, dict) else range(len(value))
            return 1 + sum(self._size((*key_path, name), parents) for name in names)
        size = 1 + len(str(value))
        for match in REFERENCE.finditer(value if isinstance(value, str) else ""):
            size += self._size(referenced_key(match[1], key_path), parents)
        return size


def _reword_error(omegaconf_message: str, layered: LayeredData) -> str:
    """Return OmegaConf's message about an interpolation in other words, with a hint."""
    missing = re.fullmatch(r"Interpolation key '(.*)' not found", omegaconf_message)
    if missing is not None:
        parts = missing[1].split(".")
        hint = (
            did_you_mean(missing[1], _dotted_keys(layered.data))
            or "; use a key that the spec sets, written out as in ${models.NAME.model}"
        )
        return f"no such key for ${{{missing[1]}}}{hint}" if all(parts) else omegaconf_message
    if "Recursive interpolation" in omegaconf_message:
        return "the value refers to itself through a ${...}; replace a ${...} by a value"
    return omegaconf_message


def _dotted_keys(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted form of every key in nested mappings."""
    for name, item in value.items() if isinstance(value, dict) else ():
        yield f"{prefix}{name}"
        yield from _dotted_keys(item, f"{prefix}{name}.")


def _resolve_value(config: Any, key: Any, key_path: KeyPath, layered: LayeredData) -> Any:
    """Return the resolved value of one key. Each value below is resolved alone, to report all broken interpolations."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if OmegaConf.is_missing(config, key):
        return "???"  # OmegaConf's mark for a missing value is a normal text in a spec
    try:
        value = config[key]
    except OmegaConfBaseException as error:
        message = _reword_error(str(error).splitlines()[0], layered)
        layered.problems.append(layered.problem_at(key_path, message))
        return None
    if OmegaConf.is_dict(value):
        return {str(name): _resolve_value(value, name, (*key_path, str(name)), layered) for name in value}
    if OmegaConf.is_list(value):
        return [_resolve_value(value, index, (*key_path, index), layered) for index in range(len(value))]
    return value
