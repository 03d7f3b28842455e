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
        "When models are tested. `all`: before each iteration and after the last. `last`: only after the last. "
        "`first_and_last`: before the first iteration and after the last. `none`: never.",
        default="last",
    )
    split: str = option(
        "The dataset's split for tests. Training uses none of its datapoints.", default="test", minLength=1
    )
    limit: int | None = option(
        "Maximum number of datapoints, the same datapoints in each test: the first in the file or, with "
        "`dataset.shuffle`, in the shuffled order. null: all.",
        default=None,
        minimum=1,
        example=100,
    )
    per_datapoint: int = option("Number of games about each datapoint.", default=1, minimum=1)


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """The rollouts that expert iteration trains on, selected for each agent by its own reward."""

    method: Literal["threshold", "weighted_sampling"] = option(
        "`threshold`: train on all games with a reward of at least `reward_threshold`. `weighted_sampling`: train on "
        "a random sample of games, weighted by reward.",
        default="threshold",
    )
    reward_threshold: float = option("For `threshold`: the minimum reward of a selected game.", default=0.9)
    sample_size_factor: float = option(
        "For `weighted_sampling`: the size of the sample, as a share of the games.",
        default=0.5,
        exclusiveMinimum=0,
        maximum=100,
    )
    minimum: float | None = option(
        "For `weighted_sampling`: games with at most this reward have weight 0; null: the smallest reward.",
        default=None,
        example=0.0,
    )
    epsilon: float = option(
        "For `weighted_sampling`: a constant that is added to each weight, so that games with low rewards are sampled "
        "too.",
        default=0.01,
        minimum=0,
        maximum=100,
    )
    replacement: bool = option("For `weighted_sampling`: sample with replacement.", default=True)


@dataclass(frozen=True, kw_only=True)
class GuessReplacement:
    """Training of the verifier on the true label instead of its own guess, for a share of the rollouts."""

    proportion: float = option("The share of the games in the first iteration.", default=0.0, minimum=0, maximum=1)
    annealing: Literal["none", "linear", "exponential"] = option(
        "How `proportion` decreases after each iteration. `linear`: by `annealing_rate`. `exponential`: by the factor "
        "1 - `annealing_rate`.",
        default="none",
    )
    annealing_rate: float = option("See `annealing`.", default=0.1, minimum=0, maximum=1)


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """The fine-tuning of one model group."""

    backend: BackendName = option(
        "The trainer. `openai`: a server with OpenAI's fine-tuning API. `command`: your own program. `files`: you, by "
        "hand; nip-run writes the files and stops until you name the model with `--set-model GROUP=NAME`. `dummy`: no "
        "training, to try a spec.",
        example="command",
    )
    format: DatasetFormat | None = option(
        "The format of the fine-tuning file; null: `trl` for `command`, otherwise `openai`.",
        default=None,
        example="trl",
    )
    command: tuple[str, ...] | None = option(
        "For `command`: the program and its arguments. nip-run replaces {dataset} (path of the fine-tuning file), "
        "{base_model}, {output} (a folder for the weights), {model_file} (the file for the new model's name), "
        "{method}, {seed} and {group}. The program runs in the folder where you started nip-run.",
        default=None,
        example=["python", "train.py", "--data", "{dataset}", "--model", "{base_model}", "--out", "{output}"],
        minItems=1,
    )
    files: tuple[str, ...] | None = option(
        "For `command`: files and folders that the program reads in addition to its script, such as imported modules, "
        "relative to the folder where you started nip-run. nip-run stores and publishes them with the run.",
        default=None,
        example=["trainer_helpers.py"],
        minItems=1,
    )
    load_lora: bool = option(
        "For `command`: the program writes a LoRA adapter to {output}. nip-run makes each server of the model group "
        "load the adapter under the new model's name (with vLLM's `/v1/load_lora_adapter`), and unload it when it is "
        "no longer used.",
        default=False,
    )
    n_epochs: int | None = option(
        "For `openai`: the number of passes over the file; null: the provider's default.",
        default=None,
        minimum=1,
        example=3,
    )
    batch_size: int | None = option(
        "For `openai`: the number of examples per step; null: the provider's default.",
        default=None,
        minimum=1,
        example=8,
    )
    learning_rate_multiplier: float | None = option(
        "For `openai`: the parameter of the same name in OpenAI's API; null: the provider's default.",
        default=None,
        exclusiveMinimum=0,
        example=1.0,
    )
    beta: float | None = option(
        "For `openai` with MALT: DPO's beta, the weight of staying close to the base model; null: the provider's "
        "default.",
        default=None,
        exclusiveMinimum=0,
        maximum=2,
        example=0.1,
    )
    from_scratch: bool | None = option(
        "Whether each job of this model group starts from the base model; null: the value of `training.from_scratch`.",
        default=None,
        example=True,
    )
    suffix: str | None = option(
        "For `openai`: a part of the new model's name; null: the spec's name.",
        default=None,
        example="nip",
        minLength=1,
        maxLength=64,
    )
    poll_seconds: float | None = option(
        "Seconds between two checks of whether a job is done; null: 1 for `command`, otherwise 30.",
        default=None,
        exclusiveMinimum=0,
        example=30.0,
    )
    validating_minutes: float = option(
        "For `openai`: report an error if a job has the status `validating_files` for more than this number of "
        "minutes.",
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
        "The models after each iteration, by model group. nip-run sets this key when it loads the spec.",
        default=(),
        example=[{"verifier": {"model": "qwen3-4b-nip-1", "base_model": "Qwen/Qwen3-4B"}}],
    )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The method of a training run, its iterations, and the trainers of its model groups."""

    method: Literal["expert_iteration", "malt"] = option(
        "`expert_iteration`: supervised fine-tuning on games with high rewards. `malt`: DPO on pairs of a better and "
        "a worse answer to the same step (needs `rollouts.num_responses_per_timestep`).",
        example="expert_iteration",
    )
    from_: str | None = option(
        "Start from the models of another training run: RUN (its final models), RUN@i3 (the models that its iteration "
        "3 plays with), or a folder that `nip-run get` wrote. If only one model group is trained, also an installed "
        "model `OWNER/NAME@VERSION`.",
        default=None,
        example="ei-nip-0123456789",
        minLength=1,
    )
    iterations: int = option(
        "Number of iterations. In each, nip-run plays games, trains the models on them, and continues with the new "
        "models.",
        default=1,
        minimum=1,
        maximum=MAX_ITERATIONS,
    )
    datapoints_per_iteration: int | None = option(
        "Number of datapoints per iteration, in an order that the seed determines. After the last datapoint, the "
        "first follows again. null: all datapoints.",
        default=None,
        minimum=1,
        example=100,
    )
    test: EvaluationSettings = option("The tests of models.", factory=EvaluationSettings)
    selection: SelectionSettings = option(
        "For `expert_iteration`: the games that models are trained on.", factory=SelectionSettings
    )
    guess_replacement: GuessReplacement = option(
        "For `expert_iteration`: train the verifier on the true label instead of its own verdict, in a share of the "
        "games.",
        factory=GuessReplacement,
    )
    on_all_previous_rollouts: bool = option(
        "Train on the games of all iterations so far; false: only on those of the current iteration.", default=False
    )
    from_scratch: bool = option(
        "Start each fine-tuning job from the base model; false: from the last trained model. `from_scratch` of a "
        "trainer overrides this key.",
        default=False,
    )
    min_examples: int = option(
        "If a model group has fewer examples in an iteration, do not train it and report this; OpenAI needs at least "
        "10.",
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
