"""The `training` section of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.documents.dataclass_schema import option
from runner.models.settings import FineTuneStep
from runner.spec.backend_traits import TRAITS, BackendName, BackendTraits, DatasetFormat

MAX_ITERATIONS = 1000


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The tests of models. A test before an iteration uses the models that play in that iteration."""

    scheme: Literal["none", "all", "last", "first_and_last"] = option(
        "`all`: before each iteration and after the last; `last`: the final models; `first_and_last`: the untrained "
        "and the final ones.",
        default="last",
    )
    split: str = option("The split for tests; none of its datapoints may be trained on.", default="test", minLength=1)
    limit: int | None = option(
        "Maximum number of datapoints, the same in each test: the first in the file, or in the shuffled order with "
        "`dataset.shuffle`; null: all.",
        default=None,
        minimum=1,
        example=100,
    )
    per_datapoint: int = option("Games of each datapoint.", default=1, minimum=1)


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """The rollouts that expert iteration trains on, selected for each agent by its own reward."""

    method: Literal["threshold", "weighted_sampling"] = option(
        "`threshold`: all rollouts with a reward of at least `reward_threshold`. `weighted_sampling`: a random sample, "
        "weighted by reward.",
        default="threshold",
    )
    reward_threshold: float = option("The minimum reward of a selected rollout.", default=0.9)
    sample_size_factor: float = option(
        "Weighted sampling: sample size as a share of the rollouts.",
        default=0.5,
        exclusiveMinimum=0,
        maximum=100,
    )
    minimum: float | None = option(
        "Weighted sampling: rewards up to this have weight 0; null: the smallest reward.",
        default=None,
        example=0.0,
    )
    epsilon: float = option(
        "Weighted sampling: a constant added to each weight, so that low rewards are sampled too.",
        default=0.01,
        minimum=0,
        maximum=100,
    )
    replacement: bool = option("Weighted sampling: sample with replacement.", default=True)


@dataclass(frozen=True, kw_only=True)
class GuessReplacement:
    """Training of the verifier on the true label instead of its own guess, for a share of the rollouts."""

    proportion: float = option("The share of the rollouts, in the first iteration.", default=0.0, minimum=0, maximum=1)
    annealing: Literal["none", "linear", "exponential"] = option(
        "How the share decreases each iteration: `linear` by the rate, `exponential` by the factor (1 - rate).",
        default="none",
    )
    annealing_rate: float = option("The rate of the annealing.", default=0.1, minimum=0, maximum=1)


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """The fine-tuning of one model group."""

    backend: BackendName = option(
        "`openai`: jobs on a server with OpenAI's fine-tuning API. `command`: your own trainer. `files`: writes "
        "the files and waits for `--set-model GROUP=NAME`. `dummy`: for dry runs, returns a new name at once.",
        example="command",
    )
    format: DatasetFormat | None = option(
        "The format of the dataset; null: `trl` for `command`, else `openai`.", default=None, example="trl"
    )
    command: tuple[str, ...] | None = option(
        "`command`: the program and its arguments. {dataset}, {base_model}, {output} (a folder), {model_file} "
        "(write the new model's name there), {method}, {seed} and {group} are filled in. It runs in the current "
        "folder of nip-run, which relative paths start from.",
        default=None,
        example=["python", "train.py", "--data", "{dataset}", "--model", "{base_model}", "--out", "{output}"],
        minItems=1,
    )
    files: tuple[str, ...] | None = option(
        "`command`: files and folders that the trainer reads in addition to its script, such as imported modules, "
        "relative to the current folder of nip-run. They are stored with the run and published with it.",
        default=None,
        example=["trainer_helpers.py"],
        minItems=1,
    )
    load_lora: bool = option(
        "`command`: the trainer writes a LoRA adapter to {output}. Each server of the group loads it under the new "
        "model's name with vLLM's `/v1/load_lora_adapter`, and unloads it when it is no longer used.",
        default=False,
    )
    n_epochs: int | None = option(
        "`openai`: passes over the dataset; null: the provider's default.", default=None, minimum=1, example=3
    )
    batch_size: int | None = option(
        "`openai`: examples per step; null: the provider's default.", default=None, minimum=1, example=8
    )
    learning_rate_multiplier: float | None = option(
        "`openai`: a hyperparameter; null: the provider's default.", default=None, exclusiveMinimum=0, example=1.0
    )
    beta: float | None = option(
        "`openai`, malt: DPO's weight of staying close to the base model; null: the provider's default.",
        default=None,
        exclusiveMinimum=0,
        maximum=2,
        example=0.1,
    )
    from_scratch: bool | None = option(
        "Whether each job of this group starts from the base model; null: as `training.from_scratch`.",
        default=None,
        example=True,
    )
    suffix: str | None = option(
        "`openai`: part of the new model's name; null: the run's name.",
        default=None,
        example="nip",
        minLength=1,
        maxLength=64,
    )
    poll_seconds: float | None = option(
        "Seconds between two polls of a job; null: 1 for `command`, else 30.",
        default=None,
        exclusiveMinimum=0,
        example=30.0,
    )
    validating_minutes: float = option(
        "`openai`: a job that is still `validating_files` after this long is an error.",
        default=60.0,
        exclusiveMinimum=0,
    )

    @property
    def traits(self) -> BackendTraits:
        """The capabilities of the backend."""
        return TRAITS[self.backend]

    @property
    def dataset_format(self) -> DatasetFormat:
        """The format of the datasets that are written for the trainer."""
        return self.format or self.traits.format

    @property
    def seconds_between_polls(self) -> float:
        return self.poll_seconds or self.traits.poll_seconds


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model that a training run has produced."""

    model: str = option("The model's name.", example="qwen3-4b-nip-1")
    base_model: str = option("The model before any training.", example="Qwen/Qwen3-4B")
    lineage: tuple[FineTuneStep, ...] = option("Fine-tuning lineage, oldest first.", default=())


@dataclass(frozen=True, kw_only=True)
class RerunTests:
    """The training run whose models are tested again."""

    run: str = option("The training run: its id, the start of its id, or its folder.", example="ei-nip-0123456789")
    models: tuple[Mapping[str, TrainedModel], ...] = option(
        "The models after each iteration, by group; written when the spec is loaded.",
        default=(),
        example=[{"verifier": {"model": "qwen3-4b-nip-1", "base_model": "Qwen/Qwen3-4B"}}],
    )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The method of a training run, its iterations, and the trainers of its model groups."""

    method: Literal["expert_iteration", "malt"] = option(
        "`expert_iteration`: supervised training on rollouts with high rewards. `malt`: preferences between answers of "
        "trees (rollouts.num_responses_per_timestep).",
        example="expert_iteration",
    )
    from_: str | None = option(
        "Continue from the models of another run, each trained group from its own: RUN, RUN@i3 (iteration 3) or a "
        "folder written by `get`. If one group is trained, also an installed model, `OWNER/NAME@VERSION`. The run's "
        "saved spec has the resolved models, as with `models.GROUP.from_run` and `models.GROUP.use`.",
        default=None,
        example="ei-nip-0123456789",
        minLength=1,
    )
    iterations: int = option(
        "Number of iterations: play, train, switch models.", default=1, minimum=1, maximum=MAX_ITERATIONS
    )
    datapoints_per_iteration: int | None = option(
        "Datapoints per iteration, in a seeded order that starts again when all have been played; null: all of them.",
        default=None,
        minimum=1,
        example=100,
    )
    test: EvaluationSettings = option("When models are tested, and their test datapoints.", factory=EvaluationSettings)
    selection: SelectionSettings = option("Expert iteration: which rollouts are trained on.", factory=SelectionSettings)
    guess_replacement: GuessReplacement = option(
        "Expert iteration: true labels instead of the verifier's guesses.", factory=GuessReplacement
    )
    on_all_previous_rollouts: bool = option(
        "Train on the rollouts of all iterations so far; false: only of the last one.", default=False
    )
    from_scratch: bool = option(
        "Each job starts from the base model; false: from the last trained model. A trainer can override it.",
        default=False,
    )
    min_examples: int = option(
        "A group with fewer examples is not trained in that iteration, and the run reports it; OpenAI needs 10.",
        default=10,
        minimum=1,
    )
    trainers: Mapping[str, TrainerSettings] = option(
        "The trainer of each trained model group.",
        example={"strong": {"backend": "command", "command": ["python", "train.py", "{dataset}", "{model_file}"]}},
    )

    rerun_tests: RerunTests | None = option(
        "Train nothing: test the models of all iterations of a training run again, with this spec's `test.split`, "
        "`test.limit`, `test.per_datapoint`, dataset, prompts and protocol. `iterations` is taken from the run. "
        "null: train.",
        default=None,
        example={"run": "ei-nip-0123456789"},
    )

    def starts_from_scratch(self, group: str) -> bool:
        """Return whether each job of a model group starts from the base model."""
        setting = self.trainers[group].from_scratch
        return self.from_scratch if setting is None else setting
