"""The scores of the run that `until.compare` names, saved when the comparing run started.

The scores are in the inputs of the comparing run. So a resumed run stops at the same game, even if the other run has
changed.
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
    """The scores of the other run, by `datapoint_key`."""

    run_id: str
    asked: str
    """The text of `until.compare` in the spec."""
    columns: tuple[str, ...]
    """The columns that the templates of either run use."""
    scores: Mapping[str, tuple[int, int]]
    """For each datapoint, the number of right verdicts and of games that were not lost in transport."""

    def score(self, point: Datapoint) -> float | None:
        """Return the run's score on a datapoint; None if it did not play the datapoint."""
        right, games = self.scores.get(datapoint_key(point, self.columns), (0, 0))
        return right / games if games else None

    def notes(self, points: Sequence[Datapoint]) -> list[str]:
        """Return a note if the other run lacks some of these datapoints."""
        shared = self.count_shared(points)
        if shared == len(points):
            return []
        return [
            f"until.compare: run {self.run_id} played {shared} of {len(points)} datapoints; others are not compared"
        ]

    def write(self, folder: RunFolder) -> None:
        """Save the scores with the inputs of the comparing run."""
        atomic_write(folder.make("inputs") / FILE, orjson.dumps(asdict(self)))

    def count_shared(self, points: Iterable[Datapoint]) -> int:
        """Count the datapoints that the other run has played."""
        return sum(self.score(point) is not None for point in points)


def read_baseline(folder: Path) -> BaselineScores | None:
    """Return the scores saved in a run's folder, or None.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / "inputs" / FILE
    if not path.is_file():
        return None
    data = read_json(path)
    try:
        scores = {str(key): (int(right), int(games)) for key, (right, games) in data["scores"].items()}
        return BaselineScores(str(data["run_id"]), str(data["asked"]), tuple(map(str, data["columns"])), scores)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{path} is damaged: {error}; remove the file and repeat the command to rebuild the file"
        ) from error


def datapoint_key(point: Datapoint, columns: tuple[str, ...]) -> str:
    """Return a hash of a datapoint's label and these columns, which identifies the datapoint in both runs."""
    content = {name: point.columns[name] for name in columns if name in point.columns}
    return tagged_hash("compared", [point.label, content])
