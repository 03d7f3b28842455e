"""Add up all training behind a model: its effort, its datapoints, and which parts of it are unknown.

Boards and `nip-run log` use the class `Lineage`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from runner.registry.lineage.links import EFFORT
from runner.registry.lineage.model_origins import ModelMaker, ModelOrigin, ModelUse, OriginIndex, Proof
from runner.registry.lineage.nodes import LineageNode
from runner.registry.lineage.typed_facts import Effort, Group


@dataclass(frozen=True)
class Total:
    """A sum of training effort. The fields in `at_least` are lower bounds, because some training is unknown."""

    effort: Effort
    at_least: frozenset[str] = frozenset()

    @property
    def is_known(self) -> bool:
        return not self.at_least


@dataclass(frozen=True)
class TrainingOverlap:
    """The overlap of a benchmark run's datapoints with its models' training. JSON has the names of these fields."""

    trained_on: int
    """The number of datapoints in the benchmark run that its models were trained on."""
    datapoints: int
    """The number of datapoints in the benchmark run."""
    at_least: bool
    """Whether `trained_on` is a lower bound, because some training is unknown."""

    def __str__(self) -> str:
        if self.at_least and not self.trained_on:
            return f"trained on an unknown number of its {self.datapoints} datapoints"
        bound = "at least " if self.at_least else ""
        return f"trained on {bound}{self.trained_on} of its {self.datapoints} datapoints"


@dataclass(frozen=True)
class IterationGames:
    """The games of one iteration that a model was trained on."""

    run_id: str
    """The id of the run with these games, which is a part of the training run; empty if unknown."""
    effort: Effort
    owners: frozenset[str | None]
    """The owners of the releases that declare these games. Only their releases may say which datapoints were used."""


@dataclass
class Ancestry:
    """The training behind the models of one run."""

    origins: list[ModelOrigin] = field(default_factory=list)
    """The origins of the models, from the nearest ancestor to the farthest."""
    games: dict[tuple[tuple[str, str], int], IterationGames] = field(default_factory=dict)
    """The games that the models were trained on, by training run and iteration."""
    unknown: list[str] = field(default_factory=list)
    """Descriptions of training that is unknown. If there are any, all sums are lower bounds."""

    @property
    def total(self) -> Total:
        sums: dict[str, int | float] = {}
        at_least = set()
        for name in EFFORT:
            values = [getattr(games.effort, name) for games in self.games.values()]
            sums[name] = sum(value for value in values if value is not None)
            if self.unknown or None in values:
                at_least.add(name)
        return Total(Effort(**sums), frozenset(at_least))  # type: ignore[arg-type]  # counts are whole numbers

    @property
    def runs(self) -> list[str]:
        """The ids of all training runs behind the models."""
        return list(dict.fromkeys(run[0] for run, _ in self.games))


class Lineage(OriginIndex):
    """The training behind the models of any run, found by following origins from run to run."""

    def ancestry(self, node: LineageNode, groups: Sequence[Group] | None = None) -> Ancestry:
        """Return all training behind the models of a run, or of some of its groups. Each iteration counts once.

        The training in the run itself is included.
        """
        ancestry = Ancestry()
        visited: set[tuple[object, ...]] = set()
        pending: deque[ModelUse | ModelMaker] = deque()
        for group in node.groups if groups is None else groups:
            if group.output_models:
                pending.append(ModelMaker(node, group, group.output_models[-1]))
            else:
                pending.append(ModelUse.from_group(node, group))
        while pending:
            source = pending.popleft()
            if isinstance(source, ModelUse):
                pending.extend(self._trace_use(source, ancestry))
            elif (source.node.key, *source.key) not in visited:
                # Read every release of a run, because one release may declare less than another.
                visited.add((source.node.key, *source.key))
                self._count_games(source, ancestry)
                pending.append(_find_training_start(source))
        return ancestry

    def _trace_use(self, use: ModelUse, ancestry: Ancestry) -> Iterator[ModelUse | ModelMaker]:
        """Add the origin of a model to the ancestry, and yield the models to trace next."""
        is_start = use.lineage is use.group.lineage  # False for an ancestor in the declared lineage
        origin = self.origin_of(use.node, use.group) if is_start else self.find_origin(use)
        if origin is None:
            return
        ancestry.origins.append(origin)
        if origin.proof in (Proof.BROKEN, Proof.MISSING):
            ancestry.unknown.append(origin.reason or str(origin.proof))
        elif origin.proof == Proof.CLAIMED and use.has_unique_name:
            ancestry.unknown.append(f"{use.model} is fine-tuned, but the claim about its training is not confirmed")
        if origin.makers:
            yield from origin.makers
        elif use.lineage:
            yield ModelUse(use.node, use.group, use.lineage[-1].from_model, None, use.lineage[:-1])

    def _count_games(self, maker: ModelMaker, ancestry: Ancestry) -> None:
        """Add the games that a model was trained on. If releases disagree, use the largest numbers."""
        for iteration in maker.output_model.game_iterations:
            key = (maker.node.run, iteration)
            run_id, effort = maker.group.games.get(iteration, ("", Effort()))
            owners = frozenset((maker.node.owner,))
            for part in self._parts(run_id, maker.node.run_id, owners):
                effort = _max_effort(effort, Effort.from_facts(part.facts))
            if key in ancestry.games:
                ancestor_games = ancestry.games[key]
                run_id, owners = run_id or ancestor_games.run_id, owners | ancestor_games.owners
                effort = _max_effort(ancestor_games.effort, effort)
            ancestry.games[key] = IterationGames(run_id, effort, owners)

    def training_overlap(self, node: LineageNode, ancestry: Ancestry | None = None) -> TrainingOverlap | None:
        """Return the number of a benchmark run's datapoints that its models were trained on.

        Return None if the run is not a benchmark run, its models were not trained, or its datapoints are unknown.
        """
        training = ancestry or self.ancestry(node)
        if node.kind != "benchmark" or not (training.games or training.unknown):
            return None
        benchmark_datapoints = node.datapoints  # may read the run's inputs from disk
        if not benchmark_datapoints:
            return None
        trained_hashes, at_least = self.training_datapoints(training)
        return TrainingOverlap(len(trained_hashes & benchmark_datapoints), len(benchmark_datapoints), at_least)

    def training_datapoints(self, ancestry: Ancestry) -> tuple[set[str], bool]:
        """Return the content hashes of the datapoints of all training in an ancestry, and whether there may be more."""
        trained_hashes: set[str] = set()
        at_least = bool(ancestry.unknown)
        for (run, _), games in ancestry.games.items():
            parts = self._parts(games.run_id, run[0], games.owners)
            known_datapoints = [part.datapoints for part in parts if part.datapoints is not None]
            at_least |= not known_datapoints
            trained_hashes.update(*known_datapoints)
        return trained_hashes, at_least

    def _parts(self, run_id: str, parent: str, owners: frozenset[str | None]) -> Iterator[LineageNode]:
        """Yield the releases of a run that these owners published as a part of the training run `parent`."""
        for part in self._by_run.get(run_id, ()):
            if part.parent_run_id == parent and part.owner in owners and not part.private:
                yield part


def _find_training_start(maker: ModelMaker) -> ModelUse | ModelMaker:
    """Return the model that a training started from: an earlier one of the same run, or the run's start model."""
    iteration = maker.output_model.from_iteration
    earlier = next((model for model in maker.group.output_models if model.step.iteration == iteration), None)
    if earlier is None:
        return ModelUse.from_group(maker.node, maker.group)
    return ModelMaker(maker.node, maker.group, earlier)


def _max_effort(first: Effort, second: Effort) -> Effort:
    """Return the larger value of each field."""

    def larger(name: str) -> int | float | None:
        values = [value for value in (getattr(first, name), getattr(second, name)) if value is not None]
        return max(values, default=None)

    return Effort(**{item.name: larger(item.name) for item in fields(Effort)})  # type: ignore[arg-type]
