"""Options and results that all export formats share, and the loading of a format's function."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import RunError
from runner.base.plugins import Plugin, PluginKind
from runner.exports.formats import EXPORTS, FORMAT_NAMES

if TYPE_CHECKING:
    from runner.exports.run_source import RunSource

EXPORT_PLUGINS = PluginKind(
    "nip_run.exports",
    "export",
    "a function that takes a RunSource, ExportOptions and a folder, and returns a WrittenExport",
    lambda: FORMAT_NAMES,
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Facts that a format needs but the run does not contain."""

    subject: str | None = None
    """The agent whose model a record describes, for formats that hold one model."""
    organization: str | None = None
    """The organization that ran the evaluation."""
    relationship: str | None = None
    """The evaluator's relationship to the model's developer: one of `runner.exports.formats.RELATIONSHIPS`."""
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


Export = Callable[["RunSource", ExportOptions, Path], WrittenExport]
"""Writes a run to files in a folder."""


def load_export(name: str) -> Export:
    """Import the module or the plugin of a format, and return its function.

    Raises:
        UsageError: the format is not built in, and no plugin has it, or the plugin cannot be used.
    """
    if name in EXPORTS:
        write: Export = importlib.import_module(f"runner.exports.{EXPORTS[name]}").write
        return write
    plugin, write_by_plugin = EXPORT_PLUGINS.load(name)

    def write_and_check(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:
        with plugin.reported_errors():
            written: WrittenExport = write_by_plugin(source, options, target)
        plugin.check_result(written, "files", "omitted", "not_carried")
        check_files(plugin, written, target)
        return written

    return write_and_check


def check_files(plugin: Plugin, written: WrittenExport, target: Path) -> None:
    """Check that the files of a plugin's export exist below the folder that it was given.

    Raises:
        RunError: a file is missing or elsewhere; the message names the plugin.
    """
    with plugin.reported_errors():
        for path in map(Path, written.files):
            is_below = path.resolve().is_relative_to(target.resolve())
            if not is_below or not path.exists():
                problem = "does not exist" if is_below else f"is not in {target}"
                raise RunError(f"{plugin} returned the file {path}, which {problem}; see docs/how-to/write-a-plugin.md")
