"""The runs that a run's answers were copied from, and the number of answers that two runs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AnswerOrigins:
    """The origins of a run's verdicts: the run itself, or other runs whose answers were copied."""

    verdicts: int
    journal: str | None
    """The random number that identifies the run's journal; None if an earlier version started the run."""
    run_id: str | None = None
    """The run's id, which caches of earlier versions store instead of the journal's number; None if it is ambiguous."""
    copied: Mapping[str, int] = field(default_factory=dict)
    """The number of verdicts copied from each run, by journal number or run id; see `Completion.origin`."""

    @property
    def own(self) -> int:
        """The number of verdicts from answers that the run requested itself."""
        return max(self.verdicts - sum(self.copied.values()), 0)

    @property
    def names(self) -> set[str]:
        """The runs that the answers come from, by journal number and id. Runs without a common name share none."""
        return {*self.copied, *filter(None, (self.journal, self.run_id))}

    def shared_with(self, other: AnswerOrigins) -> int:
        """Return how many verdicts of the two runs come from the same answers; if both copied a third run, at most."""
        from_third_runs = sum(min(count, other.copied.get(name, 0)) for name, count in self.copied.items())
        has_same_journal = self.journal is not None and self.journal == other.journal
        from_same_journal = min(self.own, other.own) if has_same_journal else 0
        from_each_other = self._count_copied_by(other) + other._count_copied_by(self)
        return min(from_third_runs + from_same_journal + from_each_other, self.verdicts)

    def _count_copied_by(self, other: AnswerOrigins) -> int:
        """Return the number of this run's own answers that the other run copied."""
        names = {self.journal, self.run_id} - {None}
        return min(self.own, sum(count for name, count in other.copied.items() if name in names))
