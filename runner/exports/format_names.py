"""The names of the formats of `nip-run export`. Importing the formats themselves takes long."""

from __future__ import annotations

FINE_TUNING_FORMATS = ("openai", "trl", "verl")
EXPORT_NAMES = ("every-eval-ever", "hf-eval-results", "inspect", "inspect-scores", "scout", "scout-results")
MLFLOW = "mlflow"
FORMAT_NAMES = (*FINE_TUNING_FORMATS, *EXPORT_NAMES, MLFLOW)
