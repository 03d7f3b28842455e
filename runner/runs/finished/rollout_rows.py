"""Lists a run's rollouts for `nip-run show`, from its tables or, for an unfinished run, from its journal."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from runner.base.storage.parquet import read_tables
from runner.base.storage.safe_files import open_to_read
from runner.base.value_class import value_class
from runner.game.protocols.protocol import Decision, verdict_word
from runner.results.folder import RunFolder

if TYPE_CHECKING:
    from runner.rollouts.rollout import Rollout


@value_class(frozen=True)
class RowFilter:
    """A filter for rollouts. If both `wrong` and `undecided` are set, it selects both kinds."""

    wrong: bool = False
    """Select rollouts whose verdict differs from the label."""
    undecided: bool = False
    """Select rollouts without a verdict, for any reason."""
    repeat: int | None = None
    """Select rollouts with this repeat; None for all."""

    def accepts(self, rollout: Rollout) -> bool:
        """Return whether the filter selects a rollout."""
        if self.repeat is not None and rollout.job.repeat != self.repeat:
            return False
        if not (self.wrong or self.undecided):
            return True
        if rollout.decision == Decision.NONE:
            return self.undecided
        return self.wrong and rollout.correct is False

    def sql_condition(self) -> tuple[str, dict[str, object]]:
        """Return the SQL condition on the table `rollouts`, and its parameters."""
        kinds, conditions, parameters = [], [], dict[str, Any]()
        if self.wrong:
            kinds.append("(coalesce(decision <> $none, answer IS NOT NULL) AND NOT correct)")
        if self.undecided:
            kinds.append("coalesce(decision = $none, answer IS NULL)")
        if kinds:
            conditions.append(f"({' OR '.join(kinds)})")
            parameters["none"] = int(Decision.NONE)
        if self.repeat is not None:
            conditions.append("repeat = $repeat")
            parameters["repeat"] = self.repeat
        return " AND ".join(conditions) or "true", parameters


@value_class(frozen=True)
class RolloutRow:
    """One row in a list of rollouts."""

    rollout_id: str
    datapoint_id: str
    repeat: int
    label: int | str | None
    """0, 1, or the letters of the right answers."""
    decision: int | str
    """The number of a verdict, the letter of the chosen answer, or in an analysis its text; `none` without one."""
    correct: bool | None
    outcome: str
    rounds: int
    retries: int
    """The number of answers that were requested because the previous one was unusable."""
    failed_calls: int
    """The number of calls without an answer."""
    stance: int | None = None
    """The stance that all provers argued; None if they argued different ones."""
    swapped: bool | None = None
    """Whether two agents had exchanged their models; None if the spec key `seats` is not set."""
    stances_exchanged: bool | None = None
    """Whether opposed provers had exchanged their stances; None if the run does not exchange stances."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


_ROWS = """
WITH all_rollouts AS (
    SELECT * FROM rollouts
    UNION ALL BY NAME SELECT NULL::BOOLEAN AS swapped, NULL::BOOLEAN AS stances_exchanged, NULL::VARCHAR AS answer,
        NULL::JSON AS right_answers, NULL::JSON AS answer_order WHERE false
), selected AS MATERIALIZED (
    SELECT row_number() OVER () AS place, * FROM (
        SELECT rollout_id, datapoint_id, repeat, {label} AS y, {decision} AS decision, correct, outcome, rounds, stance,
            swapped, stances_exchanged
        FROM all_rollouts
        WHERE {condition} {limit}
    )
), turns AS (
    SELECT rollout_id, coalesce(max(attempt) FILTER (latency_ms IS NOT NULL), 0) AS retries,
        count(*) FILTER (latency_ms IS NULL) AS failed
    FROM completions WHERE rollout_id IN (SELECT rollout_id FROM selected) GROUP BY rollout_id, round, agent
), calls AS (
    SELECT rollout_id, sum(retries)::BIGINT AS retries, sum(failed)::BIGINT AS failed FROM turns GROUP BY rollout_id
)
SELECT
    selected.* EXCLUDE (place, stance, swapped, stances_exchanged), coalesce(retries, 0), coalesce(failed, 0), stance,
    swapped, stances_exchanged, (SELECT count(*) FROM all_rollouts WHERE {condition})
FROM selected LEFT JOIN calls USING (rollout_id) ORDER BY place
"""
"""The query for a list of rollouts from the tables.

A failed call has no latency, and all answers of one call have the same attempt. Tables of earlier versions have no
columns `swapped` and `stances_exchanged`.
"""


_VERDICTS = {
    "label": """CASE WHEN answer_order IS NULL THEN to_json(y)
            ELSE to_json(array_to_string(right_answers::VARCHAR[], ', ')) END""",
    "decision": "CASE WHEN answer_order IS NULL THEN to_json(decision) ELSE to_json(coalesce(answer, 'none')) END",
}
"""SQL for the label and the decision as JSON: numbers, or letters of listed answers."""

_ANSWER_TEXT = "to_json(coalesce(($texts::VARCHAR[])[(answer_order::INT[])[ord(answer) - 64]], 'none'))"
"""SQL for the decision of an analysis as JSON. `$texts` has the answers in the order of the dataset."""


@dataclass
class RolloutList:
    """The rollouts of a run that a filter selects, in the order of the plan, at most `limit` of them."""

    folder: RunFolder
    row_filter: RowFilter
    limit: int | None
    further_count: int | None = field(default=0, init=False)
    """The number of selected rollouts beyond `limit`, set after the last row; None if it is above 0 but unknown."""

    def rows(self) -> Iterator[RolloutRow]:
        """Read the run's files, and yield a row for each selected rollout.

        Raises:
            RunError, JournalError, SpecError: a file of the run is missing or damaged.
        """
        if all(self.folder.table(name).is_file() for name in ("rollouts", "completions")):
            yield from self._from_tables()
        elif self.folder.journal.is_file():
            with closing(_from_journal(self.folder, self.row_filter)) as rows:
                yield from islice(rows, self.limit)
                self.further_count = 0 if next(rows, None) is None else None

    def _from_tables(self) -> Iterator[RolloutRow]:
        tables = {name: self.folder.intact_table(name) for name in ("rollouts", "completions")}
        condition, parameters = self.row_filter.sql_condition()
        columns, answers = _VERDICTS, {}
        if texts := _analysis_answers(self.folder):
            columns, answers = {**_VERDICTS, "decision": _ANSWER_TEXT}, {"texts": texts}
        limit = "" if self.limit is None else f"LIMIT {self.limit:d}"
        count = total = 0
        query = _ROWS.format(condition=condition, limit=limit, **columns)
        for row in read_tables(query, tables, {**parameters, **answers}):
            label = None if row[3] is None else json.loads(row[3])  # listed answers with hidden labels have no JSON
            decision = json.loads(row[4])
            values = (*row[:3], label, decision, *row[5:-1])
            yield RolloutRow(*values)
            count, total = count + 1, row[-1]
        if self.limit == 0:
            count_query = f"SELECT count(*) FROM rollouts WHERE {condition}"
            ((total,),) = read_tables(count_query, {"rollouts": tables["rollouts"]}, parameters)
        self.further_count = total - count


def _analysis_answers(folder: RunFolder) -> list[str] | None:
    """Return the answers of an analysis, which are the same for all its units; None for a run without them."""
    path = folder.path / "inputs" / "dataset.jsonl"
    if folder.manifest().analysis_of is None or not path.is_file():
        return None
    from runner.results.tasks import MAX_LINE

    with open_to_read(path) as file:
        answers: list[str] = json.loads(file.readline(MAX_LINE))["answers"]
    return answers


def _from_journal(folder: RunFolder, row_filter: RowFilter) -> Generator[RolloutRow]:
    from runner.runs.finished.reconstruction import Reconstructor, played_plan

    plan = played_plan(folder)
    is_analysis = plan.spec.experiment.analysis is not None
    with closing(Reconstructor(folder, plan)) as reconstructor:
        for rollout in reconstructor.rollouts():
            if row_filter.accepts(rollout):
                yield _row(rollout, len(reconstructor.failures(rollout.job)), is_analysis=is_analysis)


def _row(rollout: Rollout, failures: int, *, is_analysis: bool) -> RolloutRow:
    from runner.rollouts.transcript import shown_label

    job = rollout.job
    answers = {(call.round, call.agent, call.attempt) for call in rollout.calls if call.is_answer}
    turns = {(round_, agent) for round_, agent, _ in answers}
    return RolloutRow(
        job.rollout_id, job.datapoint.id, job.repeat, shown_label(rollout),
        _shown_decision(rollout, is_analysis=is_analysis), rollout.correct,
        rollout.outcome, len(rollout.rounds), len(answers) - len(turns), failures, rollout.stance, job.swapped,
        job.stances_exchanged,
    )  # fmt: skip


def _shown_decision(rollout: Rollout, *, is_analysis: bool) -> int | str:
    if rollout.answers is None:
        return int(rollout.decision)
    return (rollout.answers.chosen_text if is_analysis else None) or verdict_word(rollout.decision)
