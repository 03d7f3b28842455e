"""The functions that export a run for `nip-run export`, by format name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner.base.plugins import ExtensibleTable
from runner.exports import every_eval_ever, hf_eval_results, inspect_log, inspect_scores, scout, scout_results
from runner.exports.export_file import EXPORT_PLUGINS, ExportOptions, WrittenExport
from runner.exports.run_source import RunSource

Export = Callable[[RunSource, ExportOptions, Path], WrittenExport]
"""Writes a run to files in a folder."""


def _export_of_plugin(name: str) -> Export:
    """Import a plugin, and return its function."""
    plugin, write = EXPORT_PLUGINS.load(name)

    def write_by_plugin(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:
        with plugin.reported_errors():
            written: WrittenExport = write(source, options, target)
        plugin.check_result(written, "files", "omitted", "not_carried")
        return written

    return write_by_plugin


EXPORTS = ExtensibleTable[Export](
    {
        every_eval_ever.NAME: every_eval_ever.write,
        hf_eval_results.NAME: hf_eval_results.write,
        inspect_log.NAME: inspect_log.write,
        inspect_scores.NAME: inspect_scores.write,
        scout.NAME: scout.write,
        scout_results.NAME: scout_results.write,
    },
    _export_of_plugin,
)
