"""The parts of a spec that have no schema errors, so that other checks can use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SoundSpec:
    """The data of a spec, and access to the parts of it that have no schema errors."""

    data: Mapping[str, Any]
    """The whole spec, including values with errors."""
    broken: frozenset[str]
    """The dotted keys that have schema errors."""

    def section(self, *at: str) -> dict[str, Any]:
        """Return the entries of the section at a path of keys, without the entries that contain errors."""
        value: Any = self.data
        for part in at:
            value = value.get(part) if isinstance(value, dict) else None
        prefix = ".".join(at)
        return {
            name: item
            for name, item in (value.items() if isinstance(value, dict) else ())
            if not any(key == f"{prefix}.{name}" or key.startswith(f"{prefix}.{name}.") for key in self.broken)
        }

    def mappings(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each entry of a section whose values are mappings, such as `models`, without keys that have errors."""
        entries: Any = self.data.get(name)
        for entry, value in entries.items() if isinstance(entries, dict) else ():
            if isinstance(value, dict):
                yield entry, self.section(name, entry)
