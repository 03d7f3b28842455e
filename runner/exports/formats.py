"""The formats that a run can be exported in, by name. `nip-run export` chooses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from runner.exports import every_eval_ever, hf_eval_results, inspect_log, scout
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.run_source import RunSource

Write = Callable[[RunSource, ExportOptions, Path], WrittenExport]

EXPORTS: Mapping[str, Write] = {
    every_eval_ever.NAME: every_eval_ever.write,
    hf_eval_results.NAME: hf_eval_results.write,
    inspect_log.NAME: inspect_log.write,
    scout.NAME: scout.write,
}
