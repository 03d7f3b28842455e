"""The functions that export a run for `nip-run export`, by format name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from runner.exports import every_eval_ever, hf_eval_results, inspect_log, inspect_scores, scout, scout_results
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.run_source import RunSource

EXPORTS: Mapping[str, Callable[[RunSource, ExportOptions, Path], WrittenExport]] = {
    every_eval_ever.NAME: every_eval_ever.write,
    hf_eval_results.NAME: hf_eval_results.write,
    inspect_log.NAME: inspect_log.write,
    inspect_scores.NAME: inspect_scores.write,
    scout.NAME: scout.write,
    scout_results.NAME: scout_results.write,
}
