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
    """When models are tested, and on what. A test before iteration N is of the models that N plays with."""

    scheme: Literal["none", "all", "last", "first_and_last"] = option(
        "`all`: before each iteration and after the last; `last`: the final models; `first_and_last`: the untrained "
        "and the final ones.",
        default="last",
    )
    split: str = option(
        "The split that is tested on; no datapoint of it may be trained on.", default="test", minLength=1
    )
    limit: int | None = option(
        "At most this many datapoints, the same at each test: the first of the file, or of the shuffled order with "
        "`dataset.shuffle`; null: all.",
        default=None,
        minimum=1,
        example=100,
    )
    per_datapoint: int = option("Plays of each datapoint.", default=1, minimum=1)


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """Which rollouts expert iteration trains on, for each agent by its own reward."""

    method: Literal["threshold", "weighted_sampling"] = option(
        "`threshold`: all rollouts of at least `reward_threshold`. `weighted_sampling`: drawn, likelier the more they "
        "earned.",
        default="threshold",
    )
    reward_threshold: float = option("The least reward of a rollout, ties included.", default=0.9)
    sample_size_factor: float = option(
        "Weighted sampling: how many are drawn, as a share of the rollouts.",
        default=0.5,
        exclusiveMinimum=0,
        maximum=100,
    )
    minimum: float | None = option(
        "Weighted sampling: rewards up to this have weight 0; null: the least there is.",
        default=None,
        example=0.0,
    )
    epsilon: float = option(
        "Weighted sampling: the weight of an even chance beside that by reward, so that bad rollouts are drawn too.",
        default=0.01,
        minimum=0,
        maximum=100,
    )
    replacement: bool = option("Weighted sampling: whether a rollout may be drawn again.", default=True)


@dataclass(frozen=True, kw_only=True)
class GuessReplacement:
    """For a share of the rollouts the verifier is trained on the true label instead of its own guess."""

    proportion: float = option("The share of the rollouts, in the first iteration.", default=0.0, minimum=0, maximum=1)
    annealing: Literal["none", "linear", "exponential"] = option(
        "How it shrinks: `linear` by the rate, `exponential` to (1 - rate) of itself, each iteration.", default="none"
    )
    annealing_rate: float = option("The rate of the annealing.", default=0.1, minimum=0, maximum=1)


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Where and how one model group is fine-tuned."""

    backend: BackendName = option(
        "`openai`: jobs of a server with OpenAI's fine-tuning API. `command`: your own trainer. `files`: writes "
        "the files and waits for `--set-model GROUP=NAME`. `dummy`: a toy for dry runs, a new name at once.",
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
        "`command`: files and folders that the trainer reads besides its script, such as modules that it imports, "
        "relative to the current folder of nip-run. They are stored with the run and published with it.",
        default=None,
        example=["trainer_helpers.py"],
        minItems=1,
    )
    load_lora: bool = option(
        "`command`: what it leaves in {output} is a LoRA adapter, which every server of the group is told to load by "
        "vLLM's `/v1/load_lora_adapter` under the new model's name, and to unload when it is played with no more.",
        default=False,
    )
    n_epochs: int | None = option(
        "`openai`: passes over the dataset; null: the provider's default.", default=None, minimum=1, example=3
    )
    batch_size: int | None = option(
        "`openai`: examples a step; null: the provider's default.", default=None, minimum=1, example=8
    )
    learning_rate_multiplier: float | None = option(
        "`openai`: its hyperparameter; null: the provider's default.", default=None, exclusiveMinimum=0, example=1.0
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
        "Seconds from one poll of a job to the next; null: 1 for `command`, else 30.",
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
        """What its backend can do."""
        return TRAITS[self.backend]

    @property
    def dataset_format(self) -> DatasetFormat:
        """The format of the datasets that it gets."""
        return self.format or self.traits.format

    @property
    def seconds_between_polls(self) -> float:
        return self.poll_seconds or self.traits.poll_seconds


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model that a training run has come to."""

    model: str = option("Its name.", example="qwen3-4b-nip-1")
    base_model: str = option("What it began as.", example="Qwen/Qwen3-4B")
    lineage: tuple[FineTuneStep, ...] = option("Fine-tuning lineage, oldest first.", default=())


@dataclass(frozen=True, kw_only=True)
class RerunTests:
    """Whose models are tested again."""

    run: str = option("The training run: its id, the start of it, or its folder.", example="ei-nip-0123456789")
    models: tuple[Mapping[str, TrainedModel], ...] = option(
        "The models after each iteration, by group; written when the spec is loaded.",
        default=(),
        example=[{"verifier": {"model": "qwen3-4b-nip-1", "base_model": "Qwen/Qwen3-4B"}}],
    )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What a training run learns from its rollouts, and how."""

    method: Literal["expert_iteration", "malt"] = option(
        "`expert_iteration`: supervised on the rollouts that paid. `malt`: preferences between the answers of trees "
        "(rollouts.num_responses_per_timestep).",
        example="expert_iteration",
    )
    from_: str | None = option(
        "Go on from the models of another run, each trained group from its own: RUN, RUN@i3 (what iteration 3 plays "
        "with) or a folder that `get` left; or from an installed model, `OWNER/NAME@VERSION`, where one group is "
        "trained. Saved with the run is what this comes to, as of `models.GROUP.from_run` and `models.GROUP.use`.",
        default=None,
        example="ei-nip-0123456789",
        minLength=1,
    )
    iterations: int = option(
        "How often to play, train and switch models.", default=1, minimum=1, maximum=MAX_ITERATIONS
    )
    datapoints_per_iteration: int | None = option(
        "How many datapoints each iteration plays, in a seeded order that starts again when all have been played; "
        "null: all of them.",
        default=None,
        minimum=1,
        example=100,
    )
    test: EvaluationSettings = option("When models are tested, and on what.", factory=EvaluationSettings)
    selection: SelectionSettings = option("Expert iteration: which rollouts are trained on.", factory=SelectionSettings)
    guess_replacement: GuessReplacement = option(
        "Expert iteration: true labels in the place of the verifier's guesses.", factory=GuessReplacement
    )
    on_all_previous_rollouts: bool = option(
        "Train on the rollouts of all iterations so far; false: of the last alone.", default=False
    )
    from_scratch: bool = option(
        "Each job starts from the base model; false: from the last one trained. A trainer may say otherwise.",
        default=False,
    )
    min_examples: int = option(
        "A group with fewer examples is not trained in that iteration, and the run says so; OpenAI asks for 10.",
        default=10,
        minimum=1,
    )
    trainers: Mapping[str, TrainerSettings] = option(
        "The trainer of each model group that is trained.",
        example={"strong": {"backend": "command", "command": ["python", "train.py", "{dataset}", "{model_file}"]}},
    )

    rerun_tests: RerunTests | None = option(
        "Train nothing: test the models of all iterations of a training run again, by this spec's `test.split`, "
        "`test.limit` and `test.per_datapoint`, with its dataset, prompts and protocol. `iterations` is that of the "
        "run. null: train.",
        default=None,
        example={"run": "ei-nip-0123456789"},
    )

    def starts_from_scratch(self, group: str) -> bool:
        """Whether each job of a model group starts from the base model."""
        chosen = self.trainers[group].from_scratch
        return self.from_scratch if chosen is None else chosen
