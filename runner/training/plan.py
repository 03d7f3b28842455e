"""A training spec into its iterations: which datapoints, which seeds, when models are measured, who is trained."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from runner.base.errors import UsageError
from runner.base.hashing import derived_seed, tagged_hash
from runner.documents.dataclass_schema import to_plain
from runner.game.prompts.chat_format import ChatFormat
from runner.models.settings import ModelSettings
from runner.rollouts.plan import Plan
from runner.runs.finished.debates import games_of
from runner.spec.backend_traits import HYPERPARAMETERS
from runner.spec.datasets.datapoint import Datapoint, grouped
from runner.spec.experiment import LONGEST_RUN_ID
from runner.spec.loader import Spec
from runner.spec.training_settings import MAX_ITERATIONS, TrainerSettings, TrainingSettings
from runner.training.backends.interface import Method

_DECIDING = (*HYPERPARAMETERS, "from_scratch")
MUTABLE_TRAINER_KEYS = tuple(field.name for field in fields(TrainerSettings) if field.name not in _DECIDING)
MUTABLE_TRAINING_KEYS = ("iterations", *(f"trainers.*.{name}" for name in MUTABLE_TRAINER_KEYS))
"""Keys of `training` that may change when a run goes on: how long, and by whom it is trained."""

FIXED_KEYS = ("rollouts.per_datapoint", "dataset.limit", "dataset.group_by", "agents.*.freeze")
"""Keys that games may change when they go on, and that decide what is learnt from them."""

Models = Mapping[str, ModelSettings]

MAX_PART_SUFFIX = len(f"-t{MAX_ITERATIONS}")


def part_id(run_id: str, iteration: int, kind: str) -> str:
    """The id of the run that is a part of a training run: an iteration's games, or the test before an iteration."""
    return f"{run_id}-{'i' if kind == 'training' else 't'}{iteration}"


def check_run_id(run_id: str) -> None:
    """See that the parts of a training run can be named after it.

    Raises:
        UsageError: they would be too long.
    """
    max_length = LONGEST_RUN_ID - MAX_PART_SUFFIX
    if len(run_id) > max_length:
        raise UsageError(
            f"--run-id {run_id}: it has {len(run_id)} characters; a training run's may have {max_length}, since its "
            f"iterations are runs of their own, {part_id('ID', 0, 'training')} and so on"
        )


def plan_of(spec: Spec) -> AnyPlan:
    """The plan of a spec's run, of whichever kind it is."""
    return TrainingPlan(spec) if spec.experiment.kind == "training" else games_of(spec)


@dataclass(frozen=True)
class TrainingPlan:
    """Everything about a training run that is known before it starts."""

    spec: Spec

    def with_spec(self, spec: Spec) -> Self:
        """The plan of another spec that trains."""
        return replace(self, spec=spec)

    @cached_property
    def games(self) -> Plan:
        """The games of the untrained models, on all datapoints."""
        return Plan(self.spec)

    @property
    def training(self) -> TrainingSettings:
        assert self.spec.experiment.training is not None
        return self.spec.experiment.training

    @property
    def method(self) -> Method:
        return "dpo" if self.training.method == "malt" else "sft"

    @property
    def chat_format(self) -> ChatFormat | None:
        """Of the datasets; None: as the games were played."""
        fine_tune = self.spec.experiment.fine_tune
        return None if fine_tune is None else fine_tune.chat_format

    @cached_property
    def identity(self) -> str:
        """The hash that tells training runs apart."""
        experiment, learnt = self.spec.experiment, to_plain(self.training)
        del learnt["iterations"], learnt["from"]  # which the models say
        if self.training.rerun_tests is None:  # as 0.1.0 had it, which knew no such key
            del learnt["rerun_tests"]
        return tagged_hash(
            "training",
            {
                "games": self.games.identity,
                "datapoints": self.spec.dataset.sha256,
                "tested": None if self.spec.test is None else self.spec.test.sha256,
                "per_datapoint": experiment.rollouts.per_datapoint,
                "frozen": sorted(name for name, agent in experiment.agents.items() if agent.freeze),
                "training": {**learnt, "trainers": self._hyperparameters()},
                **self._groups(),
            },
        )

    def _groups(self) -> dict[str, Any]:
        """By what the datapoints are grouped, where that decides which of them an iteration plays."""
        group_by = self.spec.dataset.group_by
        decides = group_by is not None and self.training.datapoints_per_iteration is not None
        return {"group_by": group_by} if decides else {}

    def _hyperparameters(self) -> dict[str, dict[str, float]]:
        """Those that are set, by model group; `from_scratch` where it is another than all groups'."""
        chosen: dict[str, dict[str, float]] = {
            group: {name: value for name in HYPERPARAMETERS if (value := getattr(trainer, name)) is not None}
            for group, trainer in self.training.trainers.items()
        }
        for group, values in chosen.items():
            if (own := self.training.starts_from_scratch(group)) != self.training.from_scratch:
                values["from_scratch"] = own
        return {group: values for group, values in chosen.items() if values}

    @property
    def mutable_keys(self) -> tuple[str, ...]:
        """The keys that are not in the identity; `*` is any one name."""
        of_games = (key for key in self.games.mutable_keys if key not in FIXED_KEYS)
        return (*of_games, *(f"training.{name}" for name in MUTABLE_TRAINING_KEYS))

    @property
    def run_id(self) -> str:
        return self.spec.begun_as or f"{self.spec.experiment.name}-{self.identity[:10]}"

    @property
    def trained(self) -> dict[str, list[str]]:
        """The agents of each model group that is trained, both in the protocol's order."""
        groups: dict[str, list[str]] = {}
        for name in self.spec.protocol.agent_names:
            agent = self.spec.experiment.agents[name]
            if not agent.freeze:
                groups.setdefault(agent.model, []).append(name)
        return groups

    def base_model(self, group: str, models: Models) -> str:
        """The model that a group's next job starts from; `models` are those of the iteration."""
        from_scratch = self.training.starts_from_scratch(group)
        return (self.spec.experiment.models if from_scratch else models)[group].name

    def tests_before(self, iteration: int) -> bool:
        """Whether the models are measured with which an iteration plays; the one after the last trains no more."""
        return tests_before(self.training, iteration)

    def iteration_spec(self, iteration: int, models: Models) -> Spec:
        """The spec of the games that an iteration is trained on."""
        experiment = replace(
            self.spec.experiment,
            kind="benchmark",
            training=None,
            models=dict(models),
            seed=derived_seed("iteration", self.spec.experiment.seed, iteration),
        )
        dataset = replace(self.spec.dataset, datapoints=self.datapoints(iteration))
        return replace(self.spec, experiment=experiment, dataset=dataset, test=None, begun_as=None)

    def test_spec(self, models: Models) -> Spec:
        """The spec of the games that the models are measured by: the same games at each test."""
        assert self.spec.test is not None
        experiment, test = self.spec.experiment, self.training.test
        experiment = replace(
            experiment,
            kind="benchmark",
            training=None,
            fine_tune=None,
            models=dict(models),
            dataset=replace(experiment.dataset, split=test.split, limit=test.limit),
            rollouts=replace(experiment.rollouts, per_datapoint=test.per_datapoint, num_responses_per_timestep=None),
        )
        return replace(self.spec, experiment=experiment, dataset=self.spec.test, test=None, begun_as=None)

    def all_games(self) -> list[Plan]:
        """The games of all iterations and tests, as far as they can be known before: played by the untrained models."""
        models = self.spec.experiment.models
        iterations = range(self.training.iterations)
        if self.training.rerun_tests is not None:
            return [Plan(self.test_spec(models)) for _ in (*iterations, self.training.iterations)]
        played = [Plan(self.iteration_spec(iteration, models)) for iteration in iterations]
        tests = sum(self.tests_before(iteration) for iteration in (*iterations, self.training.iterations))
        return [*played, *(Plan(self.test_spec(models)) for _ in range(tests))]

    def datapoints(self, iteration: int) -> tuple[Datapoint, ...]:
        """What an iteration plays: the next ones of a seeded order, which starts over when all have been played.

        A group stands together in an order. None is skipped: one that comes twice in an iteration, at the turn of an
        order, waits for the next.
        """
        points, size = self.spec.dataset.datapoints, self.training.datapoints_per_iteration
        if size is None:
            return points
        waiting: list[Datapoint] = []
        taken: list[Datapoint] = []
        twice: list[Datapoint] = []
        epoch = 0
        for _ in range(iteration + 1):
            taken, twice = [], []
            while len(taken) < size:
                if not waiting:
                    groups = grouped(points)
                    random.Random(derived_seed("epoch", self.spec.experiment.seed, epoch)).shuffle(groups)
                    waiting = [point for group in groups for point in group]
                    epoch += 1
                point = waiting.pop(0)
                (twice if point in taken else taken).append(point)
            waiting = [*twice, *waiting]
        return tuple(taken)


AnyPlan = Plan | TrainingPlan
"""The plan of a run of either kind."""


def tests_before(training: TrainingSettings, iteration: int) -> bool:
    """`TrainingPlan.tests_before`, of the settings alone."""
    if training.rerun_tests is not None:
        return True
    last, scheme = iteration == training.iterations, training.test.scheme
    return scheme == "all" or (last and scheme != "none") or (iteration == 0 and scheme == "first_and_last")
