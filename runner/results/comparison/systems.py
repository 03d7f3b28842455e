"""Systems, which are compared with each other: a run or several pooled runs, with the scores of each datapoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.base.hashing import tagged_hash
from runner.base.text import comma_join
from runner.results.comparison.analysis_metrics import AnalysisReader
from runner.results.comparison.scores import GameForm, load_scores
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.rows import fixed_verdicts_of
from runner.results.manifest import PLAYED, Manifest, verifiers_of
from runner.results.metric_definitions import METRICS, Metric, Source, compared_metric, option_names
from runner.results.saved_spec import saved_value
from runner.results.tasks import Task, checker_digest, played_datapoints, verifier_variables


@dataclass(frozen=True)
class ScoredRollout:
    """One rollout that was not lost in transport, and its score."""

    run_id: str
    rollout_id: str
    correct: bool
    decision: int
    """0: reject, 1: accept, 2: none or a listed answer."""
    score: float | None
    bound: float | None
    """P(accept) by log-probabilities if it is only a bound."""
    form: GameForm


@dataclass
class DatapointScores:
    """A datapoint of a system with its rollouts."""

    id: str
    group: str
    label: int | str
    """0 or 1, or the texts of the right answers."""
    contents: Mapping[str, str]
    """The hash of each column that the verifier's templates use, by name."""
    value: Any
    """The value of the column to slice by."""
    rollouts: list[ScoredRollout] = field(default_factory=list)

    @property
    def scores(self) -> list[float]:
        return [rollout.score for rollout in self.rollouts if rollout.score is not None]


@dataclass(frozen=True, eq=False)
class System:
    """A run, or runs of one game with several seeds that are pooled as repeats."""

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
        """The models of its verifiers."""
        return {model for _, model in verifiers_of(self.manifests[0])}

    @property
    def addresses(self) -> dict[str, object]:
        """The address of each model group of its agents in its first run, by name."""
        models = saved_value(self.runs[0], "models") or {}
        groups = sorted({row["model_group"] for row in self.manifests[0].agents})
        return {group: (models.get(group) or {}).get("base_url") for group in groups}

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns of the dataset that the verifier's templates use."""
        return frozenset(name for folder in self.runs for name in _used_columns(folder))

    @cached_property
    def tasks(self) -> Mapping[str, RunFolder]:
        """The first run with each task, by the task's id; usually, all runs have the same task."""
        folders: dict[str, RunFolder] = {}
        for folder in self.runs:
            try:
                folders.setdefault(Task.of_run(folder, saved_value(folder, "dataset", "group_by")).sha256, folder)
            except (OSError, ValueError) as error:
                raise _damaged_inputs(folder, error) from error
        return folders

    @property
    def verdicts(self) -> int:
        """The number of rollouts that were not lost in transport."""
        return sum(manifest.origins.verdicts for manifest in self.manifests)

    @property
    def fixed_verdicts(self) -> str | None:
        """The reason why its verdicts do not measure its verifier; see `fixed_verdicts_of`."""
        return fixed_verdicts_of(self.runs[0])

    @property
    def lists_answers(self) -> bool:
        """Whether its verdicts choose from listed answers."""
        return saved_value(self.runs[0], "dataset", "answers") is not None

    @property
    def lost_rollouts(self) -> int:
        """The number of rollouts that were lost in transport."""
        return sum(manifest.transport_failed or 0 for manifest in self.manifests)

    def points(self, measures: Sequence[Metric], by: str | None) -> dict[str, list[DatapointScores] | UsageError]:
        """Return for each measure, by its name, the datapoints with their rollouts, or why there are no scores.

        Datapoints are sorted by id. Those without an answered rollout are left out. The datapoints of several runs are
        the same if their ids, labels and contents are equal. The files are read once for all measures.

        Raises:
            UsageError: no dataset has the column `by`.
            RunError: a file of a run is missing or damaged.
        """
        points: dict[str, dict[tuple[str, int | str, str], DatapointScores]] = {
            measure.name: {} for measure in measures
        }
        errors: dict[str, UsageError] = {
            m.name: error for m in measures if (error := self._meaning_error(m)) is not None
        }
        for folder in self.runs:
            datapoints = {
                point.id: ((point.id, point.label, tagged_hash("contents", dict(point.contents))), point)
                for point in _load_points(folder, by)
            }
            run_scores = load_scores(folder, measures)
            if unknown := next((id_ for id_, *_ in run_scores.rollouts if id_ not in datapoints), None):
                raise RunError(f"{folder.path} is damaged: inputs/dataset.jsonl lacks the datapoint {unknown!r}")
            for name, scores in run_scores.scores.items():
                if isinstance(scores, UsageError):
                    errors.setdefault(name, scores)
                    continue
                by_id = {
                    id_: points[name].setdefault(key, replace(point, rollouts=[]))
                    for id_, (key, point) in datapoints.items()
                }
                for row, score in zip(run_scores.rollouts, scores, strict=True):
                    id_, rollout_id, correct, decision, bound, form = row
                    by_id[id_].rollouts.append(
                        ScoredRollout(folder.run_id, rollout_id, correct, decision, score, bound, form)
                    )
        return {name: errors.get(name) or self._played(points[name].values(), name) for name in points}

    def _meaning_error(self, measure: Metric) -> UsageError | None:
        """Return an error if a metric has no meaning for the verdicts of this system; else None."""
        if measure.source is Source.CONFIDENCES:  # without a request for probabilities, each game would lack one
            requested = saved_value(self.runs[0], "verdict", "confidence")
            if requested not in (measure.kind, "both"):
                return UsageError(
                    f"{measure.name} has no meaning for {self.name}, whose spec does not request this probability; "
                    f"set verdict.confidence={measure.kind}"
                )
        lists_answers = saved_value(self.runs[0], "dataset", "answers") is not None
        if measure.applies(lists_answers=lists_answers):
            return None
        if not lists_answers:
            return UsageError(f"{measure.name} needs listed answers, but the verdicts of {self.name} accept or reject")
        names = [name for name, metric in METRICS.items() if metric.applies(lists_answers=True) and metric.is_compared]
        return UsageError(
            f"{measure.name} has no meaning for {self.name}, whose verdicts choose from listed answers; compare by "
            f"{comma_join(name for name in names if not METRICS[name].is_per_agent)}"
        )

    def _played(self, points: Iterable[DatapointScores], metric: str) -> list[DatapointScores] | UsageError:
        """Return the datapoints with rollouts, or an error if no rollout has a score."""
        played = sorted((point for point in points if point.rollouts), key=lambda point: (point.id, point.label))
        if any(point.scores for point in played):
            return played
        return UsageError(f"no rollout of {self.name} has a score for {metric}")


class SystemReader:
    """Reads systems and caches their scores. `metrics` are read together with the first measure of a system.

    `by` is the column to slice by. `analyses` reads metrics of analyses.
    """

    def __init__(
        self, by: str | None = None, metrics: Sequence[str] = (), analyses: AnalysisReader | None = None
    ) -> None:
        self._by, self._metrics, self.analyses = by, metrics, analyses
        self._systems: dict[RunFolder, System] = {}
        self._points: dict[tuple[System, str], list[DatapointScores] | UsageError] = {}

    def system(self, folder: RunFolder) -> System:
        """Return the system of one run, the same object each time. Raises the same errors as `load_system`."""
        if folder not in self._systems:
            self._systems[folder] = load_system([folder.path], Results.of(folder))
        return self._systems[folder]

    def points(self, system: System, measure: Metric) -> list[DatapointScores]:
        """Return the datapoints of a system with its scores by a metric.

        Raises:
            UsageError: the dataset lacks the column `by`, or no rollout has a score.
            RunError: a file of a run is missing or damaged.
        """
        if (system, measure.name) not in self._points:
            further = [
                compared_metric(name, system.agents)
                for name in self._metrics
                if name in option_names(system.agents, compared=True)
            ]
            unread = {m.name: m for m in (measure, *further) if (system, m.name) not in self._points}
            points_by_metric = system.points(list(unread.values()), self._by)
            self._points |= {(system, name): points for name, points in points_by_metric.items()}
        points_or_error = self._points[system, measure.name]
        if isinstance(points_or_error, UsageError):
            raise points_or_error
        return points_or_error


def load_system(names: Sequence[str | Path], results: Results) -> System:
    """Return the system of some runs, given by their names; see `Results.find`.

    Raises:
        UsageError: a run does not exist, is not finished or is a training run; or the runs are of different games.
    """
    folders = tuple({folder.path.resolve(): folder for folder in (results.find(str(name)) for name in names)}.values())
    manifests = tuple(folder.manifest() for folder in folders)
    for folder, manifest in zip(folders, manifests, strict=True):
        _check_comparable(folder, manifest)
    different_games = [manifest.run_id for manifest in manifests if manifest.game_sha256 != manifests[0].game_sha256]
    if different_games:
        raise UsageError(
            f"runs of one system may differ only in their seed and datapoints; {comma_join(different_games)} play "
            f"another game than {manifests[0].run_id}: another protocol, prompt, model or setting. Give them as "
            "separate systems, with a space between them"
        )
    return System(folders, manifests)


def _check_comparable(folder: RunFolder, manifest: Manifest) -> None:
    if manifest.has_parts:
        parts = [part.run_id for part in Results.of(folder).parts_of(folder.run_id)]
        players = "two of its players with `--players A B`, or the runs of its games"
        what = players if manifest.is_tournament else "its games or tests"
        raise UsageError(
            f"{folder.run_id} is {manifest.kind_name}; compare {what}: {comma_join(parts[-4:]) or 'none yet'}"
        )
    if manifest.status not in PLAYED:
        raise UsageError(f"run {folder.run_id} is {manifest.status}; compare it once it is done")
    if not folder.table("rollouts").is_file():
        raise RunError(
            f"{folder.table('rollouts')} is missing, though the run is {manifest.status}; restore it, or remove "
            f"{folder.manifest_path} and repeat the command that played the run to rebuild it"
        )


def _used_columns(folder: RunFolder) -> frozenset[str]:
    """Return the columns of its datapoints that a run's verifier sees."""
    try:
        used = verifier_variables(folder)
        first_point = next(played_datapoints(folder, None), None)
    except (OSError, ValueError) as error:
        raise _damaged_inputs(folder, error) from error
    return frozenset() if first_point is None else used & first_point.columns.keys()


def _load_points(folder: RunFolder, by: str | None) -> Iterator[DatapointScores]:
    """Yield the datapoints of a run without rollouts.

    Raises:
        UsageError: the dataset has no labels, or lacks the column `by`.
        RunError: the saved inputs are damaged.
    """
    used, hashes = _used_columns(folder), []
    try:
        checker = checker_digest(folder)
        for point in played_datapoints(folder, saved_value(folder, "dataset", "group_by")):
            label = point.shown_label if checker is None else f"by checker {checker[:8]}"
            if label is None and (analyzed_run := folder.manifest().analysis_of) is not None:
                raise UsageError(
                    f"{folder.run_id} is an analysis of {analyzed_run}, which has no right answers; to compare runs by "
                    "their answers, add --metric analysis:ANALYZER"
                )
            if label is None:
                raise UsageError(
                    f"{folder.run_id} has no labels, as the owner of its dataset withholds them; it is unknown which "
                    "of its verdicts are right"
                )
            contents = {name: tagged_hash("column", point.columns[name]) for name in used if name in point.columns}
            hashes.append(point.sha256)
            value = _slice_value(point.columns, label, by, folder)
            yield DatapointScores(point.id, point.group, label, contents, value)
    except (OSError, ValueError, KeyError) as error:
        raise _damaged_inputs(folder, error) from error
    if tagged_hash("dataset", hashes) != folder.manifest().dataset_sha256:
        raise RunError(f"{folder.path}: inputs/dataset.jsonl is not what was played; restore the file")


def _slice_value(columns: Mapping[str, object], label: int | str, by: str | None, folder: RunFolder) -> Any:
    if by is None:
        return None
    if by == "label":
        return label
    if by not in columns:
        raise UsageError(
            f"the dataset of {folder.run_id} has no column {by!r}; it has: {comma_join(['label', *sorted(columns)])}"
        )
    return columns[by]


def _damaged_inputs(folder: RunFolder, error: Exception) -> RunError:
    return RunError(f"the inputs of {folder.path} cannot be read: {error}")
