"""What every export needs to write: its choices, its files, and what it had to leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What a format cannot know from the run."""

    subject: str | None = None
    """The agent whose model a record of one model is of."""
    organization: str | None = None
    """Who ran the evaluation."""
    relationship: str | None = None
    """Of who ran it to who made the model: one of `RELATIONSHIPS`."""
    hf_dataset: str | None = None
    """The id of a benchmark's dataset on the Hugging Face Hub."""
    task_id: str | None = None
    """The task of that benchmark."""
    source_url: str | None = None
    """Where the result can be read."""


@dataclass
class WrittenExport:
    """What was written, and what the format could not hold."""

    files: dict[Path, int] = field(default_factory=dict)
    """With how many rollouts, or transcripts, each holds."""
    left_out: Counter[str] = field(default_factory=Counter)
    not_carried: list[str] = field(default_factory=list)

    def as_json(self) -> Mapping[str, Any]:
        return {
            "files": [{"file": str(path), "rows": rows} for path, rows in self.files.items()],
            "left_out": dict(self.left_out),
            "not_carried": self.not_carried,
        }
