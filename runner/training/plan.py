"""Plans a training run: the datapoints, seeds and tests of its iterations, and the models to train.

The plan calls no model and writes no file. It computes the run's identity, a hash that is equal for two specs of the
same run.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property

from runner.base.hashing import derived_seed, tagged_hash
from runner.documents.dataclass_schema import to_plain
from runner.game.prompts.chat_format import ChatFormat
from runner.models.settings import ModelSettings
from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import PlanWithParts
from runner.runs.tournaments.plan import TournamentPlan
from runner.spec.backend_traits import HYPERPARAMETERS
from runner.spec.datasets.datapoint import Datapoint, group_datapoints
from runner.spec.loader import Spec
from runner.spec.training_settings import MAX_ITERATIONS, TrainerSettings, TrainingSettings
from runner.training.backends.interface import Method

_IDENTITY_KEYS = (*HYPERPARAMETERS, "from_scratch")
"""Keys of a trainer that are part of a training run's identity."""
MUTABLE_TRAINER_KEYS = tuple(field.name for field in fields(TrainerSettings) if field.name not in _IDENTITY_KEYS)
"""Keys of a trainer that may change when a run resumes, because they affect only how the trainer is run."""
MUTABLE_TRAINING_KEYS = ("iterations", *(f"trainers.*.{name}" for name in MUTABLE_TRAINER_KEYS))
"""Keys of `training` that may change when a run resumes."""

FIXED_KEYS = ("rollouts.per_datapoint", "dataset.limit", "dataset.group_by", "agents.*.freeze")
"""Keys that may change when a benchmark resumes, but not when a training run does, because they affect the training."""

Models = Mapping[str, ModelSettings]
"""The settings of each model group in an iteration."""


def part_run_id(run_id: str, iteration: int, kind: str) -> str:
    """Return the run id of a part of a training run: an iteration's games (-i0) or the test before it (-t0)."""
    return f"{run_id}-{'i' if kind == 'training' else 't'}{iteration}"


def plan_of(spec: Spec) -> AnyPlan:
    """Return the plan of a spec: of a training run, a tournament or a benchmark."""
    if spec.experiment.kind == "training":
        return TrainingPlan(spec)
    if spec.experiment.kind == "tournament":
        return TournamentPlan(spec)
    if spec.rejudged is None:
        return Plan(spec)
    from runner.runs.finished.debates import build_games_plan

    return build_games_plan(spec)


@dataclass(frozen=True)
class TrainingPlan(PlanWithParts):
    """The plan of a training run, which is known before the run starts."""

    first_suffix = "-i0"
    longest_suffix = f"-t{MAX_ITERATIONS}"

    @property
    def training(self) -> TrainingSettings:
        assert self.spec.experiment.training is not None
        return self.spec.experiment.training

    @property
    def method(self) -> Method:
        """The training method of all jobs."""
        return "dpo" if self.training.method == "malt" else "sft"

    @property
    def chat_format(self) -> ChatFormat | None:
        """The chat format of the datasets; None for the format of the games."""
        fine_tune = self.spec.experiment.fine_tune
        return None if fine_tune is None else fine_tune.chat_format

    @cached_property
    def identity(self) -> str:
        """The hash that identifies a training run."""
        experiment, settings = self.spec.experiment, to_plain(self.training)
        del settings["iterations"], settings["from"]  # the models' own settings have the content of `from`
        if self.training.rerun_tests is None:  # 0.1.0 had no such key
            del settings["rerun_tests"]
        return tagged_hash(
            "training",
            {
                "games": self.games.identity,
                "datapoints": self.spec.dataset.sha256,
                "tested": None if self.spec.test is None else self.spec.test.sha256,
                "per_datapoint": experiment.rollouts.per_datapoint,
                "frozen": sorted(name for name, agent in experiment.agents.items() if agent.freeze),
                "training": {**settings, "trainers": self._hyperparameters()},
                **self._grouping(),
            },
        )

    def _grouping(self) -> dict[str, object]:
        """Return `dataset.group_by` for the identity, if groups affect which datapoints an iteration plays."""
        group_by = self.spec.dataset.group_by
        is_relevant = group_by is not None and self.training.datapoints_per_iteration is not None
        return {"group_by": group_by} if is_relevant else {}

    def _hyperparameters(self) -> dict[str, dict[str, float]]:
        """Return the hyperparameters that the spec sets by group, with `from_scratch` if it differs from the run's."""
        chosen: dict[str, dict[str, float]] = {
            group: {name: value for name in HYPERPARAMETERS if (value := getattr(trainer, name)) is not None}
            for group, trainer in self.training.trainers.items()
        }
        for group, values in chosen.items():
            if (from_scratch := self.training.starts_from_scratch(group)) != self.training.from_scratch:
                values["from_scratch"] = from_scratch
        return {group: values for group, values in chosen.items() if values}

    @property
    def mutable_keys(self) -> tuple[str, ...]:
        """The spec keys that are not part of the identity; `*` matches any name."""
        game_keys = (key for key in self.games.mutable_keys if key not in FIXED_KEYS)
        return (*game_keys, *(f"training.{name}" for name in MUTABLE_TRAINING_KEYS))

    @property
    def trained_groups(self) -> dict[str, list[str]]:
        """The trained model groups with their agents, in the protocol's order."""
        groups: dict[str, list[str]] = {}
        for name in self.spec.protocol.agent_names:
            agent = self.spec.experiment.agents[name]
            if not agent.freeze:
                groups.setdefault(agent.model, []).append(name)
        return groups

    def base_model(self, group: str, models: Models) -> str:
        """Return the name of the model that a group's job starts from; `models` are the models of the iteration."""
        from_scratch = self.training.starts_from_scratch(group)
        return (self.spec.experiment.models if from_scratch else models)[group].name

    def iteration_spec(self, iteration: int, models: Models) -> Spec:
        """Return the spec of the games that an iteration trains on."""
        experiment = replace(
            self.spec.experiment,
            kind="benchmark",
            training=None,
            models=dict(models),
            seed=derived_seed("iteration", self.spec.experiment.seed, iteration),
        )
        dataset = replace(self.spec.dataset, datapoints=self.datapoints(iteration))
        return replace(self.spec, experiment=experiment, dataset=dataset, test=None, resumed_run_id=None)

    def test_spec(self, models: Models) -> Spec:
        """Return the spec of a test of the models. All tests play the same games."""
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
        return replace(self.spec, experiment=experiment, dataset=self.spec.test, test=None, resumed_run_id=None)

    def list_game_plans(self) -> list[Plan]:
        """Return the plans of all iterations and tests, with the untrained models, because others are not known yet."""
        models = self.spec.experiment.models
        iterations = range(self.training.iterations)
        if self.training.rerun_tests is not None:
            return [Plan(self.test_spec(models)) for _ in (*iterations, self.training.iterations)]
        games = [Plan(self.iteration_spec(iteration, models)) for iteration in iterations]
        tests = sum(is_tested_before(self.training, iteration) for iteration in (*iterations, self.training.iterations))
        return [*games, *(Plan(self.test_spec(models)) for _ in range(tests))]

    def datapoints(self, iteration: int) -> tuple[Datapoint, ...]:
        """Return the datapoints of an iteration.

        Iterations take consecutive datapoints in a seeded random order. When all datapoints are used, a new random
        order starts. In each order, the datapoints of a group are consecutive. If a datapoint would occur twice in an
        iteration because a new order starts within it, it is deferred to the next iteration.
        """
        points, size = self.spec.dataset.datapoints, self.training.datapoints_per_iteration
        if size is None:
            return points
        queue: deque[Datapoint] = deque()
        selected: dict[str, Datapoint] = {}
        epoch = 0
        for _ in range(iteration + 1):
            selected, deferred = {}, list[Datapoint]()
            while len(selected) < size:
                if not queue:
                    groups = group_datapoints(points)
                    random.Random(derived_seed("epoch", self.spec.experiment.seed, epoch)).shuffle(groups)
                    queue.extend(point for group in groups for point in group)
                    epoch += 1
                point = queue.popleft()
                if point.id in selected:
                    deferred.append(point)
                else:
                    selected[point.id] = point
            queue.extendleft(reversed(deferred))
        return tuple(selected.values())


AnyPlan = Plan | TrainingPlan | TournamentPlan
"""The plan of a run of games, of a training run or of a tournament."""


def is_tested_before(training: TrainingSettings, iteration: int) -> bool:
    """Return whether the models are tested before an iteration.

    The test after the last iteration counts as before iteration `training.iterations`.
    """
    if training.rerun_tests is not None:
        return True
    scheme = training.test.scheme
    if scheme == "none":
        return False
    is_last = iteration == training.iterations
    return scheme == "all" or is_last or (iteration == 0 and scheme == "first_and_last")
