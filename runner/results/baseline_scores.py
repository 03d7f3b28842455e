"""The scores of the run that `until.compare` names, saved when the comparing run started.

The scores are in the inputs of the comparing run. So a resumed run stops at the same game, even if the other run has
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from runner.base.errors import RunError
from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.results.folder import RunFolder
from runner.results.tasks import verifier_columns
from runner.spec.datasets.datapoint import Datapoint

if TYPE_CHECKING:
    from runner.spec.assembly import Spec

FILE = "compared.json"
ID = "id"
"""The entry of `BaselineScores.columns` for the datapoint's id. No other column has this name."""


@dataclass(frozen=True)
class BaselineScores:
    """The scores of the run that `until.compare` names ("the other run")."""

    run_id: str
    """The id of the other run."""
    asked: str
    """The text of `until.compare` in the spec."""
    columns: tuple[str, ...]
    """The columns that identify a datapoint in both runs; files of earlier versions name the columns of all agents."""
    scores: Mapping[str, tuple[int, int]]
    """The number of right verdicts, and of games that were not lost in transport, by `datapoint_key`."""

    def score(self, point: Datapoint) -> float | None:
        """Return the run's score on a datapoint; None if it did not play the datapoint."""
        right, games = self.scores.get(datapoint_key(point, self.columns), (0, 0))
        return right / games if games else None

    def notes(self, points: Sequence[Datapoint]) -> list[str]:
        """Return a note if the other run lacks some of these datapoints."""
        missing = [point.id for point in points if self.score(point) is None]
        if not missing:
            return []
        played = f"{len(points) - len(missing)} of {len(points)} datapoints"
        return [f"until.compare: run {self.run_id} played {played}; others, such as {missing[0]!r}, are not compared"]

    def write(self, folder: RunFolder) -> None:
        """Save the scores with the inputs of the comparing run."""
        atomic_write(folder.make("inputs") / FILE, orjson.dumps(asdict(self)))


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


def shared_columns(first: Spec, second: Spec) -> tuple[str, ...]:
    """Return the columns that identify a datapoint in two specs: the columns that both verifiers see.

    As in `match_systems`, the id counts too if these columns may not identify a datapoint.
    """
    first_columns, second_columns = verifier_columns(first), verifier_columns(second)
    columns = tuple(sorted(first_columns & second_columns))
    if columns and first_columns == second_columns:
        return columns
    keys = [[datapoint_key(point, columns) for point in spec.dataset.datapoints] for spec in (first, second)]
    return columns if columns and all(len(set(each)) == len(each) for each in keys) else (*columns, ID)


def datapoint_key(point: Datapoint, columns: tuple[str, ...]) -> str:
    """Return a hash of a datapoint's label and these columns, which identifies the datapoint in both runs."""
    content = {name: point.columns[name] for name in columns if name in point.columns}
    if ID in columns:
        content[ID] = point.id
    return tagged_hash("compared", [point.saved_label, content])
