"""The runs that the answers behind a run's verdicts came from: by that, two runs are found to share answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AnswerOrigins:
    """The number of counted verdicts of a run, and the number of those copied from each other run."""

    verdicts: int
    journal: str | None
    """The number of the run's own journal; None: an earlier version began it."""
    run_id: str | None = None
    """The run's id, which caches of earlier versions store instead of the number; None if ids are not unique."""
    copied: Mapping[str, int] = field(default_factory=dict)
    """Counts by journal number or run id, see `Completion.origin`."""

    @property
    def own(self) -> int:
        """The verdicts whose answers the run asked for itself."""
        return max(self.verdicts - sum(self.copied.values()), 0)

    def shared_with(self, other: AnswerOrigins) -> int:
        """Count the verdicts that come from the same answers: at most so many, if both runs copied a third one."""
        both = sum(min(count, other.copied.get(name, 0)) for name, count in self.copied.items())
        is_same = self.journal is not None and self.journal == other.journal
        same = min(self.own, other.own) if is_same else 0
        return min(both + same + self._given_to(other) + other._given_to(self), self.verdicts)

    def _given_to(self, other: AnswerOrigins) -> int:
        names = {self.journal, self.run_id} - {None}
        return min(self.own, sum(count for name, count in other.copied.items() if name in names))
