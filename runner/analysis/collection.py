"""Collect the results of an analysis: the answers of functions, and those of the run that asked the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from runner.analysis.planning import PlannedAnalysis
from runner.analysis.results import AnalysisTable, Status, UnitResult
from runner.analysis.units import Unit
from runner.base.errors import InvalidDecisionError
from runner.game.protocols.answer_verdicts import check_letter_alone, display_marker
from runner.game.protocols.ballot import answer_position
from runner.game.protocols.confidence import lenient_pattern
from runner.results.folder import RunFolder
from runner.rollouts.rollout import Outcome, Rollout
from runner.runs.finished.reconstruction import Reconstructor, played_plan

MARKER = "decision:"

_STATUSES: dict[Outcome, Status] = {
    Outcome.DECIDED: "answered",
    Outcome.NO_DECISION: "no_answer",
    Outcome.INVALID_RESPONSE: "no_answer",
    Outcome.REFUSED: "no_answer",
    Outcome.CONTEXT_EXCEEDED: "failed",
    Outcome.TRANSPORT_FAILED: "failed",
}


class UnitAnswer(NamedTuple):
    """The answer about one unit, of a model or a function, or the status without one."""

    status: Status
    answer: str | None = None
    reason: str | None = None
    votes: tuple[str | None, ...] | None = None


def collect_results(planned: PlannedAnalysis, run: RunFolder | None) -> AnalysisTable:
    """Return the results of an analysis. `run` is the finished run that asked the model, if there is one.

    Raises:
        RunError: the records of the run cannot be read.
    """
    answers = {} if run is None else dict(_model_answers(run))
    results = tuple(_result(planned, unit, answers) for unit in planned.decided.units)
    analyzer = planned.analyzer
    return AnalysisTable(
        planned.folder.run_id, analyzer.name, analyzer.sha256, analyzer.question_sha256, planned.instrument,
        None if run is None else run.run_id, results, analyzer.file.unit, analyzer.file.answers,
        analyzer.answer_values,
    )  # fmt: skip


def _result(planned: PlannedAnalysis, unit: Unit, answers: dict[str, UnitAnswer]) -> UnitResult:
    by_code, reason = planned.decided.answers.get(unit.id), planned.decided.reasons.get(unit.id)
    spans = () if by_code is None else by_code.spans
    model = planned.model
    if reason is not None:
        unit_answer = UnitAnswer("not_applicable", reason=reason)
    elif by_code is not None:
        unit_answer, model = UnitAnswer("answered", by_code.answer, by_code.reason), "code"
    else:
        unit_answer = answers.get(unit.id, UnitAnswer("failed", reason="no answer is recorded"))
    return UnitResult(
        unit.id, unit.rollout_id, unit.datapoint_id, unit.group, unit.agent, unit.channel, unit.round,
        unit_answer.status, unit_answer.answer, planned.analyzer.value_of(unit_answer.answer), unit_answer.reason,
        model, spans, unit_answer.votes,
    )  # fmt: skip


def _model_answers(run: RunFolder) -> Iterator[tuple[str, UnitAnswer]]:
    """Yield the id of each unit with the model's answer."""
    with closing(Reconstructor(run, played_plan(run, trusts_manifest=True))) as reconstructor:
        for rollout in reconstructor.rollouts():
            yield rollout.job.datapoint.id, _read_answer(rollout)


def _read_answer(rollout: Rollout) -> UnitAnswer:
    status = _STATUSES[rollout.outcome]
    raw = next((text for played in rollout.rounds for text in played.raw.values()), None)
    if status != "answered":
        return UnitAnswer(status, reason=rollout.error or raw, votes=_votes(rollout))
    answer = _answer(rollout, rollout.decision)
    try:
        # While the game was played, shuffled answers could only be compared with the texts of all answers.
        check_letter_alone(raw or "", MARKER, [answer or ""])
    except InvalidDecisionError:
        return UnitAnswer("no_answer", reason=raw, votes=_votes(rollout))
    return UnitAnswer(status, answer, _reason(raw or ""), _votes(rollout))


def _answer(rollout: Rollout, decision: int) -> str | None:
    position = answer_position(decision)
    assert rollout.answers is not None
    return None if position is None else rollout.answers.ballot.texts[position]


def _votes(rollout: Rollout) -> tuple[str | None, ...] | None:
    return None if rollout.votes is None else tuple(_answer(rollout, vote) for vote in rollout.votes)


def _reason(raw: str) -> str | None:
    """Return the reason in an answer: the key `reason` of JSON, or the text before the last line with the answer."""
    try:
        data = json.loads(raw)
        text = str(data["reason"])
    except (ValueError, TypeError, KeyError):
        matches = list(lenient_pattern(display_marker(MARKER), whole_words=False).finditer(raw))
        text = raw[: matches[-1].start()] if matches else raw
    return text.strip(" \t\n*_`") or None
