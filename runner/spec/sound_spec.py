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

    def section(self, *keys: str) -> dict[str, Any]:
        """Return the entries of a section that contain no errors; `keys` are the keys on the section's path."""
        value: Any = self.data
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        prefix = ".".join(keys)
        return {
            name: item
            for name, item in (value.items() if isinstance(value, dict) else ())
            if not any(f"{broken_key}.".startswith(f"{prefix}.{name}.") for broken_key in self.broken)
        }

    def mappings(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and content of each mapping in a section such as `models`, without keys that have errors."""
        section: Any = self.data.get(name)
        for entry_name, entry in section.items() if isinstance(section, dict) else ():
            if isinstance(entry, dict):
                yield entry_name, self.section(name, entry_name)
