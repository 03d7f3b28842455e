"""The results of analyses: a table in the folder of the analysed run for each analyzer, version of it and model.

The file is `analyses/NAME-INSTRUMENT.parquet`. An instrument is an analyzer with everything that its answers depend on:
its file, its function, the model with its parameters, and the parser. Another prompt, model or sampling parameter makes
another instrument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ANALYSES = "analyses"
"""The subfolder of a run with the results of analyses."""

Status = Literal["answered", "no_answer", "not_applicable", "failed"]
"""`no_answer`: the model gave none of the answers in any attempt. `failed`: the calls failed, so nothing is known."""

COLUMNS = {
    "run_id": "VARCHAR", "analyzer": "VARCHAR", "analyzer_sha256": "VARCHAR", "question_sha256": "VARCHAR",
    "instrument": "VARCHAR", "model": "VARCHAR", "analysis_run_id": "VARCHAR", "unit_id": "VARCHAR", "unit": "VARCHAR",
    "rollout_id": "VARCHAR", "datapoint_id": "VARCHAR", "group": "VARCHAR", "agent": "VARCHAR", "channel": "VARCHAR",
    "round": "INTEGER", "status": "VARCHAR", "answer": "VARCHAR", "value": "DOUBLE", "reason": "VARCHAR",
    "spans": "JSON", "votes": "JSON",
}  # fmt: skip
"""The columns of a table of results. `model` is `code` where a function answered. `spans` is a list of
`{agent, channel, round, start, end}`, parts of messages that the answer is about."""


@dataclass(frozen=True)
class UnitResult:
    """The answer for one unit."""

    unit_id: str
    rollout_id: str
    datapoint_id: str
    group: str
    agent: str | None
    channel: str | None
    round: int | None
    status: Status
    answer: str | None
    value: float | None
    """The number that the answer stands for; None without an answer, and for labels."""
    reason: str | None
    """The model's or the function's reason."""
    model: str


@dataclass(frozen=True)
class AnalysisTable:
    """All results of one instrument on one run, in the order of the units."""

    run_id: str
    analyzer: str
    analyzer_sha256: str
    question_sha256: str
    instrument: str
    """The first 10 digits of the instrument's hash."""
    analysis_run_id: str | None
    """The run that asked the model; None if a function answered for every unit."""
    results: tuple[UnitResult, ...]
