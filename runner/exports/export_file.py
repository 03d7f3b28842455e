"""Options and results that all export formats share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.base.plugins import PluginKind
from runner.exports.format_names import FORMAT_NAMES

EXPORT_PLUGINS = PluginKind(
    "nip_run.exports",
    "export",
    "a function that takes a RunSource, ExportOptions and a folder, and returns a WrittenExport",
    lambda: FORMAT_NAMES,
)

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Facts that a format needs but the run does not contain."""

    subject: str | None = None
    """The agent whose model a record describes, for formats that hold one model."""
    organization: str | None = None
    """The organization that ran the evaluation."""
    relationship: str | None = None
    """The evaluator's relationship to the model's developer: one of `RELATIONSHIPS`."""
    hf_dataset: str | None = None
    """The id of a benchmark's dataset on the Hugging Face Hub."""
    task_id: str | None = None
    """The id of the benchmark's task in `hf_dataset`."""
    source_url: str | None = None
    """The URL where the result can be read."""
    log: Path | None = None
    """The log, or the folder of logs, that the run judged."""


@dataclass
class WrittenExport:
    """The files of an export, and the parts of the run that the format cannot represent."""

    files: dict[Path, int] = field(default_factory=dict)
    """Number of rollouts or transcripts in each file."""
    omitted: Counter[str] = field(default_factory=Counter)
    """Number of rollouts that the export leaves out, by reason."""
    not_carried: list[str] = field(default_factory=list)
    """Kinds of data that the format cannot represent, as phrases."""

    def as_json(self) -> Mapping[str, object]:
        return {
            "files": [{"file": str(path), "rows": rows} for path, rows in self.files.items()],
            "left_out": dict(self.omitted),
            "not_carried": self.not_carried,
        }
