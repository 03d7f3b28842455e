"""The table of the formats of `nip-run export`. Help imports it, so it imports nothing itself.

A new format is one entry in `EXPORTS` and its module, which `runner.exports.export_file.load_export` imports.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPORTS: Mapping[str, str] = {
    "every-eval-ever": "every_eval_ever",
    "hf-eval-results": "hf_eval_results",
    "inspect": "inspect_log",
    "inspect-scores": "inspect_scores",
    "scout": "scout",
    "scout-results": "scout_results",
}
"""The module in `runner.exports` of each format of whole runs. The function `write` of the module exports a run."""
FINE_TUNING_FORMATS = ("openai", "trl", "verl")
MLFLOW = "mlflow"
FORMAT_NAMES = (*FINE_TUNING_FORMATS, *EXPORTS, MLFLOW)

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")
"""The relationships of an evaluator to a model's developer, for every-eval-ever."""
