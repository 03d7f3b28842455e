"""The parts of a spec without schema errors, which further checks look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SoundSpec:
    """The data of a spec, without the keys that have schema errors."""

    data: Mapping[str, Any]
    broken: frozenset[str]

    def section(self, *at: str) -> dict[str, Any]:
        """Return a section's entries without any that have errors in them."""
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
        """Yield each entry of a section of mappings, such as `models`, without keys that have errors."""
        entries: Any = self.data.get(name)
        for entry, value in entries.items() if isinstance(entries, dict) else ():
            if isinstance(value, dict):
                yield entry, self.section(name, entry)
