"""The scores of the run that `until.compare` names, as they were when the comparing run began.

They are written beside its other inputs: it decides the same when it goes on, whatever has become of that other run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from runner.base.errors import RunError
from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.results.folder import RunFolder
from runner.spec.datasets.datapoint import Datapoint

FILE = "compared.json"


@dataclass(frozen=True)
class BaselineScores:
    """Another run's scores, by what identifies a datapoint in both runs: its label and the columns that are shown."""

    run_id: str
    asked: str
    """How the spec names the run."""
    columns: tuple[str, ...]
    """The columns that the templates of either run use."""
    scores: Mapping[str, tuple[int, int]]
    """For each datapoint, the right verdicts and all games that were not lost."""

    def score(self, point: Datapoint) -> float | None:
        """The run's score on a datapoint; None where it did not play it."""
        right, games = self.scores.get(key_of(point, self.columns), (0, 0))
        return right / games if games else None

    def notes(self, points: Sequence[Datapoint]) -> list[str]:
        """What is to be said where the other run lacks some of these datapoints."""
        found = self.shared(points)
        if found == len(points):
            return []
        return [
            f"until.compare: run {self.run_id} played {found} of {len(points)} datapoints; the others decide nothing"
        ]

    def write(self, folder: RunFolder) -> None:
        """Save the scores with the inputs of the run that compares itself."""
        atomic_write(folder.make("inputs") / FILE, orjson.dumps(asdict(self)))

    def shared(self, points: Iterable[Datapoint]) -> int:
        """How many of these datapoints the other run has played."""
        return sum(self.score(point) is not None for point in points)


def frozen(path: Path) -> BaselineScores | None:
    """The scores that were saved, if they were.

    Raises:
        RunError: they are damaged.
    """
    if not path.is_file():
        return None
    data = read_json(path)
    try:
        scores = {str(key): (int(right), int(games)) for key, (right, games) in data["scores"].items()}
        return BaselineScores(str(data["run_id"]), str(data["asked"]), tuple(map(str, data["columns"])), scores)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it, and the same command makes it again") from error


def key_of(point: Datapoint, columns: tuple[str, ...]) -> str:
    """What identifies a datapoint in both runs: its label, and these columns."""
    content = {name: point.columns[name] for name in columns if name in point.columns}
    return tagged_hash("compared", [point.label, content])
