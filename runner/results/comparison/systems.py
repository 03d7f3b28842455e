"""Runs into systems: the scores of each datapoint over all of a system's rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.base.hashing import tagged_hash
from runner.base.text import comma_join
from runner.results.comparison.scores import scored
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.rows import fixed_verdicts_of, saved_value
from runner.results.manifest import PLAYED, Manifest
from runner.results.metric_table import Metric, compared_metric, option_names
from runner.results.tasks import played_datapoints, template_variables


@dataclass(frozen=True)
class ScoredRollout:
    """One rollout that was not lost in transport, and its score."""

    run_id: str
    rollout_id: str
    correct: bool
    score: float | None


@dataclass
class DatapointScores:
    """A datapoint of a system."""

    id: str
    group: str
    label: int
    contents: Mapping[str, str]
    """The hash of each column that templates use, by name."""
    value: Any
    """Of the column to slice by, as the dataset has it."""
    rollouts: list[ScoredRollout] = field(default_factory=list)

    @property
    def scores(self) -> list[float]:
        return [one.score for one in self.rollouts if one.score is not None]


@dataclass(frozen=True, eq=False)
class System:
    """What is compared: a run, or runs of one game with several seeds, pooled as its repeats."""

    runs: tuple[RunFolder, ...]
    manifests: tuple[Manifest, ...]

    @property
    def name(self) -> str:
        first, *more = (folder.run_id for folder in self.runs)
        return first if not more else f"{first} and {len(more)} more"

    @property
    def agents(self) -> list[str]:
        return [row["agent"] for row in self.manifests[0].agents]

    @property
    def verifier_models(self) -> set[str]:
        """What the verifiers are asked as."""
        return {row["model"] for row in self.manifests[0].agents if row["role"] == "verifier"}

    @property
    def addresses(self) -> dict[str, Any]:
        """The address of each of its agents' model groups, as its first run has it."""
        models = saved_value(self.runs[0], "models") or {}
        groups = sorted({row["model_group"] for row in self.manifests[0].agents})
        return {group: (models.get(group) or {}).get("base_url") for group in groups}

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns of the dataset that the templates use; see `points`."""
        return frozenset(name for one in self.runs for name in _used(one))

    @property
    def verdicts(self) -> int:
        """The rollouts that count."""
        return sum(manifest.origins.verdicts for manifest in self.manifests)

    @property
    def fixed_verdicts(self) -> str | None:
        """The reason why its verdicts say nothing about its verifier's answers; None if they do."""
        return fixed_verdicts_of(self.runs[0])

    def is_tree(self) -> bool:
        """Whether its rollouts are branches of trees."""
        return saved_value(self.runs[0], "rollouts", "num_responses_per_timestep") is not None

    def lost(self) -> int:
        """Rollouts that were lost in transport."""
        return sum(manifest.transport_failed or 0 for manifest in self.manifests)

    def points(self, measures: Sequence[Metric], by: str | None) -> dict[str, list[DatapointScores] | UsageError]:
        """By the name of each measure the datapoints with their rollouts, by id, or why it has none here.

        A datapoint without a rollout that was answered is left out. What all measures need is read once.

        Raises:
            UsageError: no dataset has the column `by`.
            RunError: a file of a run is missing or damaged.
        """
        found = {measure.name: _Points() for measure in measures}
        for folder in self.runs:
            own = {
                point.id: (point, (point.id, point.label, tagged_hash("contents", dict(point.contents))))
                for point in _points(folder, by)
            }
            read = scored(folder, measures)
            if unknown := next((one for one, _, _ in read.rollouts if one not in own), None):
                raise RunError(f"{folder.path} is damaged: inputs/dataset.jsonl lacks its datapoint {unknown!r}")
            for name, points in found.items():
                points.add(folder.run_id, read.rollouts, read.scores[name], own)
        return {name: points.made(self.name, name) for name, points in found.items()}


_Key = tuple[str, int, str]


class _Points:
    """The datapoints of a system with the scores of one measure, over its runs."""

    def __init__(self) -> None:
        self._found: dict[_Key, DatapointScores] = {}
        self._lacking: UsageError | None = None

    def add(
        self,
        run_id: str,
        rollouts: Sequence[tuple[str, str, bool]],
        scores: Sequence[float | None] | UsageError,
        own: Mapping[str, tuple[DatapointScores, _Key]],
    ) -> None:
        if isinstance(scores, UsageError):
            self._lacking = self._lacking or scores
            return
        mine = {id_: self._found.setdefault(key, replace(point, rollouts=[])) for id_, (point, key) in own.items()}
        for (datapoint, rollout, correct), score in zip(rollouts, scores, strict=True):
            mine[datapoint].rollouts.append(ScoredRollout(run_id, rollout, correct, score))

    def made(self, system: str, measure: str) -> list[DatapointScores] | UsageError:
        points = sorted((one for one in self._found.values() if one.rollouts), key=lambda one: (one.id, one.label))
        if self._lacking is None and points and not any(point.scores for point in points):
            return UsageError(f"no rollout of {system} has a score for {measure}")
        return self._lacking or points


class SystemReader:
    """What was read of systems, each once for all the measures that are asked for with the first of them."""

    def __init__(self, by: str | None = None, metrics: Sequence[str] = ()) -> None:
        self._by, self._metrics = by, metrics
        self._systems: dict[RunFolder, System] = {}
        self._found: dict[tuple[System, str], list[DatapointScores] | UsageError] = {}

    def system(self, folder: RunFolder) -> System:
        """The system of one run; the same one again. Raises as `system_of`."""
        if folder not in self._systems:
            self._systems[folder] = system_of([folder.path], Results.of(folder))
        return self._systems[folder]

    def points(self, system: System, measure: Metric) -> list[DatapointScores]:
        """The datapoints of a system with its scores.

        Raises:
            UsageError: no dataset has the column, or no rollout a score.
            RunError: a file of a run is missing or damaged.
        """
        if (system, measure.name) not in self._found:
            also = [
                compared_metric(name, system.agents)
                for name in self._metrics
                if name in option_names(system.agents, compared=True)
            ]
            wanted = {one.name: one for one in (measure, *also) if (system, one.name) not in self._found}
            read = system.points(list(wanted.values()), self._by)
            self._found |= {(system, name): points for name, points in read.items()}
        found = self._found[system, measure.name]
        if isinstance(found, UsageError):
            raise found
        return found


def system_of(names: Sequence[str | Path], results: Results) -> System:
    """The system of some runs, by their names; see `Results.find`.

    Raises:
        UsageError: one is not there, not finished, or a training run; or the runs are not of one game.
    """
    folders = tuple({folder.path.resolve(): folder for folder in (results.find(str(name)) for name in names)}.values())
    manifests = tuple(folder.manifest() for folder in folders)
    for folder, manifest in zip(folders, manifests, strict=True):
        _check(folder, manifest)
    others = [one.run_id for one in manifests if one.game_sha256 != manifests[0].game_sha256]
    if others:
        raise UsageError(
            f"runs of one system differ in nothing but their seed and their datapoints; {comma_join(others)} play "
            f"another game than {manifests[0].run_id}: another protocol, prompt, model or setting. Give them as "
            "systems of their own, with a space between"
        )
    return System(folders, manifests)


def _check(folder: RunFolder, manifest: Manifest) -> None:
    if manifest.is_training_run:
        parts = [one.run_id for one in Results.of(folder).parts_of(folder.run_id)]
        raise UsageError(
            f"{folder.run_id} is a training run; compare its games or tests: {comma_join(parts[-4:]) or 'none yet'}"
        )
    if manifest.status not in PLAYED:
        raise UsageError(f"run {folder.run_id} is {manifest.status}; it can be compared once it is done")
    if not folder.table("rollouts").is_file():
        raise RunError(
            f"{folder.table('rollouts')} is missing, though the run is {manifest.status}; put it back, or remove "
            f"{folder.manifest_path} to have the run made again from its journal by its own command"
        )


def _used(folder: RunFolder) -> frozenset[str]:
    """The columns of its datapoints that a run's templates use."""
    try:
        used = template_variables(folder)
        first = next(played_datapoints(folder, None), None)
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from error
    return frozenset() if first is None else used & first.columns.keys()


def _points(folder: RunFolder, by: str | None) -> Iterator[DatapointScores]:
    used, hashes = _used(folder), []
    try:
        for one in played_datapoints(folder, saved_value(folder, "dataset", "group_by")):
            if one.label is None:
                raise UsageError(
                    f"{folder.run_id} has no labels: the owner of its dataset keeps them, and nothing here says which "
                    "of its verdicts are right"
                )
            contents = {name: tagged_hash("column", one.columns[name]) for name in used if name in one.columns}
            hashes.append(one.sha256)
            yield DatapointScores(one.id, one.group, one.label, contents, _value(one.columns, one.label, by, folder))
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(folder, error) from error
    if tagged_hash("dataset", hashes) != folder.manifest().dataset_sha256:
        raise RunError(f"{folder.path}: inputs/dataset.jsonl is not what was played; put it back, and compare then")


def _value(columns: Mapping[str, Any], label: int, by: str | None, folder: RunFolder) -> Any:
    if by is None:
        return None
    if by == "label":
        return label
    if by not in columns:
        raise UsageError(
            f"the dataset of {folder.run_id} has no column {by!r}; it has: {comma_join(['label', *sorted(columns)])}"
        )
    return columns[by]


def _damaged(folder: RunFolder, error: Exception) -> RunError:
    return RunError(f"the inputs of {folder.path} cannot be read: {error}")
