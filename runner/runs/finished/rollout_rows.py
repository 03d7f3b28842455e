"""The rollouts of a run, a row for each: from its tables, or of a run that is not finished from its journal."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from runner.base.storage.parquet import read_tables
from runner.game.protocols.protocol import Decision
from runner.results.folder import RunFolder
from runner.rollouts.rollout import Rollout
from runner.runs.finished.reconstruction import Reconstructor, played_plan


@dataclass(frozen=True)
class RowFilter:
    """Which rollouts are meant. `wrong` and `undecided` together: those of both kinds."""

    wrong: bool = False
    """Those with a verdict that is not the label."""
    undecided: bool = False
    """Those without a verdict, whatever the reason."""
    repeat: int | None = None

    def takes(self, rollout: Rollout) -> bool:
        if self.repeat is not None and rollout.job.repeat != self.repeat:
            return False
        undecided = rollout.decision == Decision.NONE
        wrong = not undecided and rollout.correct is False
        return (self.wrong and wrong) or (self.undecided and undecided) or not (self.wrong or self.undecided)

    @property
    def _sql(self) -> str:
        kinds = [
            *(["(decision <> $none AND NOT correct)"] if self.wrong else []),
            *(["decision = $none"] if self.undecided else []),
        ]
        chosen = [f"({' OR '.join(kinds)})"] if kinds else []
        return " AND ".join([*chosen, *(["repeat = $repeat"] if self.repeat is not None else [])]) or "true"

    def question(self) -> tuple[str, dict[str, Any]]:
        """The condition in SQL, over the table `rollouts`, and its parameters."""
        sql = self._sql
        parameters = {"none": int(Decision.NONE), "repeat": self.repeat}
        return sql, {name: value for name, value in parameters.items() if f"${name}" in sql}


@dataclass(frozen=True)
class RolloutRow:
    """One rollout of a list."""

    rollout_id: str
    datapoint_id: str
    repeat: int
    label: int | None
    decision: int
    correct: bool | None
    outcome: str
    rounds: int
    retries: int
    """Answers that were asked for again, since the one before could not be used; as in `retries_per_round`."""
    failed_calls: int
    """Calls that got no answer."""
    stance: int | None = None
    """What all provers argued; None where they did not argue the same."""
    swapped: bool | None = None
    """Whether two seats had exchanged their players, where each datapoint is played both ways."""
    stances_exchanged: bool | None = None
    """Whether opposed provers had exchanged their stances, where each datapoint is played both ways."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


_ROWS = """
WITH known AS (
    SELECT * FROM rollouts
    UNION ALL BY NAME SELECT NULL::BOOLEAN AS swapped, NULL::BOOLEAN AS stances_exchanged WHERE false
), shown AS MATERIALIZED (
    SELECT row_number() OVER () AS place, * FROM (
        SELECT rollout_id, datapoint_id, repeat, y, decision, correct, outcome, rounds, stance, swapped,
            stances_exchanged
        FROM known
        WHERE {condition} {limit}
    )
), turns AS (
    SELECT rollout_id, coalesce(max(attempt) FILTER (latency_ms IS NOT NULL), 0) AS retries,
        count(*) FILTER (latency_ms IS NULL) AS failed
    FROM completions WHERE rollout_id IN (SELECT rollout_id FROM shown) GROUP BY rollout_id, round, agent
), asked AS (
    SELECT rollout_id, sum(retries)::BIGINT AS retries, sum(failed)::BIGINT AS failed FROM turns GROUP BY rollout_id
)
SELECT
    shown.* EXCLUDE (place, stance, swapped, stances_exchanged), coalesce(retries, 0), coalesce(failed, 0), stance,
    swapped, stances_exchanged
FROM shown LEFT JOIN asked USING (rollout_id) ORDER BY place
"""
"""A call that fails has no latency; an answer has, and where one call gave several they are of one attempt. Tables of
earlier versions have no column `swapped`."""


@dataclass
class RolloutList:
    """The rollouts of a run that are meant, in the order of its plan, `limit` of them at most."""

    folder: RunFolder
    wanted: RowFilter
    limit: int | None
    more: int | None = field(default=0, init=False)
    """Once `rows` are read: how many more there are; None where there are some, not counted."""

    def rows(self) -> Iterator[RolloutRow]:
        """A row for each, as it is read.

        Raises:
            RunError, JournalError, SpecError: a file of the run is gone or damaged.
        """
        if all(self.folder.table(name).is_file() for name in ("rollouts", "completions")):
            yield from self._from_tables()
        elif self.folder.journal.is_file():
            with closing(_from_journal(self.folder, self.wanted)) as found:
                yield from islice(found, self.limit)
                self.more = 0 if next(found, None) is None else None

    def _from_tables(self) -> Iterator[RolloutRow]:
        tables = {name: self.folder.intact_table(name) for name in ("rollouts", "completions")}
        condition, parameters = self.wanted.question()
        limit = "" if self.limit is None else f"LIMIT {self.limit:d}"
        shown = 0
        for row in read_tables(_ROWS.format(condition=condition, limit=limit), tables, parameters):
            yield RolloutRow(*row)
            shown += 1
        if shown == self.limit:
            count = f"SELECT count(*) FROM rollouts WHERE {condition}"
            ((total,),) = read_tables(count, {"rollouts": tables["rollouts"]}, parameters)
            self.more = total - shown


def _from_journal(folder: RunFolder, wanted: RowFilter) -> Generator[RolloutRow]:
    reconstructor = Reconstructor(folder, played_plan(folder))
    try:
        for rollout in reconstructor.rollouts():
            if wanted.takes(rollout):
                yield _row(rollout, len(reconstructor.failures(rollout.job)))
    finally:
        reconstructor.close()


def _row(rollout: Rollout, failures: int) -> RolloutRow:
    job = rollout.job
    asked = {(call.round, call.agent, call.attempt) for call in rollout.calls if call.is_answer}
    turns = {(round_, agent) for round_, agent, _ in asked}
    return RolloutRow(
        job.rollout_id, job.datapoint.id, job.repeat, job.datapoint.label, int(rollout.decision), rollout.correct,
        rollout.outcome, len(rollout.rounds), len(asked) - len(turns), failures, rollout.stance, job.swapped,
        job.stances_exchanged,
    )  # fmt: skip
