"""The columns of a run's tables."""

from __future__ import annotations

from collections.abc import Mapping

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "rollouts": {
        "run_id": "VARCHAR", "rollout_id": "VARCHAR", "datapoint_id": "VARCHAR", "repeat": "INTEGER",
        "seed": "BIGINT", "y": "TINYINT", "stance": "TINYINT", "decision": "TINYINT", "correct": "BOOLEAN",
        "outcome": "VARCHAR", "rounds": "INTEGER", "rewards": "JSON", "error": "VARCHAR",
        "swapped": "BOOLEAN",
        "confidence_stated": "DOUBLE", "confidence_logprob": "DOUBLE", "confidence_note": "VARCHAR",
        "votes": "JSON", "verdicts": "JSON", "stances_exchanged": "BOOLEAN", "panel": "JSON",
        "answer": "VARCHAR", "right_answers": "JSON", "answer_order": "JSON", "argued_answers": "JSON",
        "answer_scores": "JSON", "p_right": "DOUBLE", "answer_brier": "DOUBLE",
        "judged_text": "VARCHAR", "statements": "JSON", "plugin_metrics": "JSON",
    },
    "messages": {
        "run_id": "VARCHAR", "rollout_id": "VARCHAR", "round": "INTEGER", "channel": "VARCHAR", "agent": "VARCHAR",
        "content": "VARCHAR", "words": "INTEGER", "removed_words": "INTEGER", "verified_quotes": "INTEGER",
        "unverified_quotes": "INTEGER", "over_limit_quotes": "INTEGER", "quoted_words": "INTEGER",
    },
    "completions": {
        "run_id": "VARCHAR", "rollout_id": "VARCHAR", "round": "INTEGER", "agent": "VARCHAR", "attempt": "INTEGER",
        "model": "VARCHAR", "finish_reason": "VARCHAR", "raw_message": "VARCHAR", "prompt_tokens": "BIGINT",
        "completion_tokens": "BIGINT", "cached_tokens": "BIGINT", "latency_ms": "DOUBLE", "error": "VARCHAR",
        "reasoning": "VARCHAR", "verdict_logprobs": "JSON", "vote": "INTEGER",
        "cache_write_tokens": "BIGINT", "reasoning_tokens": "BIGINT", "audio_input_tokens": "BIGINT",
        "audio_output_tokens": "BIGINT", "service_tier": "VARCHAR", "usage_estimated": "BOOLEAN",
        "selected": "BOOLEAN", "score": "DOUBLE",
    },
}  # fmt: skip
"""The columns of each table with their SQL types. This is a stable format."""

OPTIONAL_COLUMNS = frozenset((
    "panel", "answer", "right_answers", "answer_order", "argued_answers", "answer_scores", "p_right", "answer_brier",
    "words", "removed_words", "verified_quotes", "unverified_quotes", "over_limit_quotes", "quoted_words",
    "selected", "score", "judged_text", "statements",
    "plugin_metrics",
))  # fmt: skip
"""Columns that earlier versions did not write. A row without such a column has no value for it."""

ANALYSES = "analyses"
"""The subfolder of a run with the results of analyses: a Parquet file for each instrument."""

ANALYSIS_COLUMNS = {
    "run_id": "VARCHAR", "analyzer": "VARCHAR", "analyzer_sha256": "VARCHAR", "question_sha256": "VARCHAR",
    "instrument": "VARCHAR", "model": "VARCHAR", "analysis_run_id": "VARCHAR", "unit_id": "VARCHAR", "unit": "VARCHAR",
    "rollout_id": "VARCHAR", "datapoint_id": "VARCHAR", "group": "VARCHAR", "agent": "VARCHAR", "channel": "VARCHAR",
    "round": "INTEGER", "status": "VARCHAR", "answer": "VARCHAR", "value": "DOUBLE", "reason": "VARCHAR",
    "spans": "JSON", "votes": "JSON", "answers": "JSON", "answer_values": "JSON",
}  # fmt: skip
"""The columns of a table of results of an analysis, with their SQL types."""

LABEL_COLUMNS = {
    "run_id": "VARCHAR", "analyzer": "VARCHAR", "analyzer_sha256": "VARCHAR", "question_sha256": "VARCHAR",
    "unit_id": "VARCHAR", "reader": "VARCHAR", "answer": "VARCHAR", "time": "VARCHAR", "seconds": "DOUBLE",
    "stratum": "VARCHAR", "stratified_by": "VARCHAR", "drawn": "INTEGER", "probability": "DOUBLE",
}  # fmt: skip
"""The columns of the table `labels` with their SQL types."""

VALIDATION_COLUMNS = {
    "run_id": "VARCHAR", "analyzer": "VARCHAR", "question_sha256": "VARCHAR", "instrument": "VARCHAR",
    "labeled_units": "INTEGER", "readers": "INTEGER", "raw": "DOUBLE", "kappa": "DOUBLE", "kappa_low": "DOUBLE",
    "kappa_high": "DOUBLE", "alpha": "DOUBLE", "time": "VARCHAR",
}  # fmt: skip
"""The columns of the table `validations` with their SQL types."""

NOTE_COLUMNS = {
    "run_id": "VARCHAR", "id": "VARCHAR", "written_at": "VARCHAR", "writer": "VARCHAR", "rollout_id": "VARCHAR",
    "tags": "VARCHAR[]", "text": "VARCHAR",
}  # fmt: skip
"""The columns of the table `notes` with their SQL types. `written_at` and `writer` are `at` and `by` in `notes.jsonl`,
but these are SQL keywords."""
