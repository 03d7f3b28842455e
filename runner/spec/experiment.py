"""The keys of a spec, each with its type, default, bounds and description.

The schema, the checks of a spec and the documentation are derived from these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.documents.dataclass_schema import option
from runner.game.prompts.chat_format import ChatFormat
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.schema import Parameters
from runner.models.layers.budget import BudgetSettings
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.training_settings import TrainingSettings

NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
"""Pattern of a spec's name."""

SAVED_SPEC = "spec.yaml"
"""File name of the resolved spec in a run's folder."""

MAX_SWEEP_POINTS = 1000

MAX_RUN_ID_LENGTH = 120
RUN_ID_PATTERN = f"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_RUN_ID_LENGTH - 1}}}$"
"""Pattern of a run's id, which is a folder name and may be longer than the name it starts with."""


_SWEEP_AXES: dict[str, Any] = {
    "propertyNames": {"pattern": "^[^=+~][^=]*$"},
    "additionalProperties": {"type": "array", "minItems": 1},
}
"""JSON schema of a mapping from dotted keys to lists of values."""

_NAMED_SEATS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "swap": {
            "description": "The two seats.",
            "type": "array",
            "items": {"type": "string"},
            "minItems": 2,
            "maxItems": 2,
            "uniqueItems": True,
        }
    },
    "required": ["swap"],
    "additionalProperties": False,
}

DEFAULT_AGENT = "_default"
"""The entry of `agents` with settings for every agent that the spec does not set itself."""


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The model and the settings of one agent."""

    model: str = option("The model group that plays the agent: a key of `models`.", example="strong")
    max_response_words: int = option("The word limit stated in the agent's prompt.", default=150, minimum=1)
    freeze: bool = option("Never train this agent in a training run.", default=False)


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """The number of games, in total and at the same time, and the losses that stop a run."""

    per_datapoint: int = option("Games of each datapoint.", default=1, minimum=1, maximum=2**31 - 1)
    num_responses_per_timestep: int | None = option(
        "Play trees of responses (MALT): this many answers to each step, each continued separately; null: single "
        "games.",
        default=None,
        example=2,
        minimum=1,
        maximum=128,
    )
    max_calls: int = option(
        "Maximum number of calls for trees, without retries; trees grow exponentially with their rounds.",
        default=100_000,
        minimum=1,
    )
    concurrency: int = option("Maximum number of concurrent games and calls.", default=64, minimum=1, maximum=100_000)
    max_transport_failed: float = option(
        "The share of rollouts that may be lost in transport, from 0 to 1. A run that loses more is `incomplete`: "
        "exit code 1, and no rank on the leaderboard.",
        default=0.0,
        example=0.05,
        minimum=0,
        maximum=1,
    )
    max_unusable: float | None = option(
        "Stop the run with exit code 1 once more than this share of the answers is unusable: refused, empty, or in "
        "another format. Checked after 20 answers, over the new answers since the command started; each shard and "
        "each part of a training run has its own count. Repeat the command to resume. null: never.",
        default=None,
        example=0.5,
        minimum=0,
        maximum=1,
    )


MAX_PROCESSES = 1024
MAX_WORKERS = 4096
"""Maximum number of workers in a cluster."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The processes that play the games; they may differ each time a run is resumed."""

    engine: Literal["processes", "ray"] = option(
        "`processes`: games are played by processes of this machine; `ray`: by workers of a Ray cluster (`pip install "
        "'nip-run[ray]'`).",
        default="processes",
    )
    processes: int = option(
        "Number of worker processes on this machine; one more process writes their records and enforces budget and "
        "limits. 1: all in one process.",
        default=1,
        example=4,
        minimum=1,
        maximum=MAX_PROCESSES,
    )
    workers: int | None = option(
        "With `engine: ray`: number of workers in the cluster, each an actor that takes one CPU. Workers without a "
        "free CPU start later.",
        default=None,
        example=64,
        minimum=1,
        maximum=MAX_WORKERS,
    )
    address: str | None = option(
        "With `engine: ray`: the existing cluster as `host:port`, or `auto` for the cluster that this machine is a "
        "node of. null: the cluster in `RAY_ADDRESS`, or else a temporary one on this machine.",
        default=None,
        example="auto",
    )

    @property
    def count(self) -> int:
        """The number of workers that play; 1 if this process plays."""
        return self.processes if self.engine == "processes" else self.workers or 1

    @property
    def by_workers(self) -> bool:
        """Whether workers play instead of this process."""
        return self.engine == "ray" or self.processes > 1


@dataclass(frozen=True, kw_only=True)
class Until:
    """A rule that stops a run early, once its result is decided.

    Set one of the two keys. The rule is checked after every game or, if datapoints are grouped or repeated, after all
    games of a group. It uses a 95 % confidence sequence, which stays valid under repeated checks.
    """

    width: float | None = option(
        "Stop once the interval of accuracy is at most this wide, from its lower to its upper end.",
        default=None,
        example=0.1,
        exclusiveMinimum=0,
        exclusiveMaximum=1,
    )
    compare: str | None = option(
        "Stop once it is known which is better: this run, or the run with this id (or start of an id, or folder). "
        "Both are compared on the datapoints that they share. A run never stops because there is no difference. A "
        "difference of 15 points takes about half of the games that `plan --detect 0.15` plans if the two runs "
        "disagree on a quarter of the datapoints, and about as many if they disagree on 45 %.",
        default=None,
        example="nip-code-validation-0123456789",
        minLength=1,
    )


@dataclass(frozen=True, kw_only=True)
class FineTune:
    """The fine-tune files that a run writes to `fine_tune/`."""

    agents: tuple[str, ...] | None = option("Agents with files; null: all.", default=None, example=["verifier"])
    formats: tuple[str, ...] = option(
        "`openai`: chat JSONL. `trl`: TRL's conversational JSONL. `verl`: Parquet, a row for each turn, with rewards.",
        default=("openai",),
        example=["openai", "trl"],
        minItems=1,
        items={"type": "string", "enum": ["openai", "trl", "verl"]},
    )
    chat_format: ChatFormat | None = option(
        "The chat format of the files, see `models`; null: the format that was played.",
        default=None,
        example="alternating",
    )
    ensure_last_message_is_assistant: bool = option("End each example after the agent's last turn.", default=True)
    replace_verifier_guess_with_true_label: bool = option(
        "Replace the verifier's last message by the true label.", default=False
    )
    only_correct: bool = option("Only rollouts with a correct verdict.", default=False)
    min_examples: int = option("A file with fewer examples is not written; OpenAI needs 10.", default=10, minimum=1)
    validation_share: float = option(
        "Share of the datapoints whose examples go to a validation file.", default=0.0, minimum=0, exclusiveMaximum=1
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolUse(Parameters):
    """A protocol by name, and the parameters to change."""

    use: str = option(
        "A built-in protocol (nip, adp, debate, merlin_arthur, mnip, solo_verifier), the path of a protocol's file, or "
        "an installed one: OWNER/NAME@VERSION.",
        example="nip",
    )


@dataclass(frozen=True, kw_only=True)
class Rejudge:
    """Let this spec's verifier judge the debates of another run; no other agent is asked."""

    run: str = option(
        "The folder of the run whose debates are judged. They stay as they are, including the first judge's questions. "
        "Only settings of the verifier may differ from that run's spec.",
        example="../results/runs/my-run",
        path=True,
    )
    verdict: Literal["last", "each"] = option(
        "`last`: one verdict, at the turn of the first judge's verdict or, if there is none, at its last chance. "
        "`each`: a verdict at every turn up to that one when the judge may decide, to see how it changes.",
        default="last",
    )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A nip-run spec: a protocol, prompts, models and a dataset."""

    name: str = option(
        "The run's name; run ids start with it.",
        example="nip-code-validation",
        pattern=NAME_PATTERN,
    )
    description: str = option("A note for readers.", default="", example="A weak verifier questions a strong prover.")
    seed: int = option(
        "The random seed. It determines everything except the models' answers and the clock.", default=0, minimum=0
    )
    kind: Literal["benchmark", "training"] = option(
        "A benchmark measures and changes nothing; training also changes models.", default="benchmark"
    )
    benchmark: str | None = option(
        "The leaderboard that the run's row belongs to; null: the spec's name.",
        default=None,
        example="code-validation/v1",
    )
    dataset: DatasetSettings = option(
        "The dataset, and the selection of its rows.", example={"path": "data/code_validation.jsonl"}
    )
    protocol: ProtocolUse = option(
        "The rules of the game: a protocol and its parameters.", example={"use": "nip", "max_message_rounds": 8}
    )
    prompts: str = option(
        "The folder of Jinja2 templates, one for each agent; or installed templates, OWNER/NAME@VERSION.",
        example="prompts/code_validation/nip",
        path=True,
    )
    models: Mapping[str, ModelSettings] = option(
        "The model groups.",
        example={"small": {"model": "gpt-6-luna"}},
        minProperties=1,
        propertyNames={"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$"},
    )
    agents: Mapping[str, AgentSettings] = option(
        "The agents of the protocol. `_default` sets every agent, and every key of an agent, that is not set here.",
        example={"verifier": {"model": "small"}},
    )
    decision_format: DecisionFormat = option("How a verifier writes a decision.", factory=DecisionFormat)
    verdict: VerdictSettings = option("What is recorded about a verdict.", factory=VerdictSettings)
    votes: int = option(
        "How many times the verifier is asked for a decision, with the same prompt. The majority is the verdict; if "
        "there is a tie, the first vote. Odd numbers avoid ties.",
        default=1,
        example=5,
        minimum=1,
        maximum=1000,
    )
    rejudge: Rejudge | None = option(
        "Judge the debates of another run again; null: play games.",
        default=None,
        example={"run": "../results/runs/my-run", "verdict": "last"},
    )
    retry: Retry = option("How to handle each class of failure.", factory=Retry)
    rollouts: Rollouts = option("The number of games, in total and at the same time.", factory=Rollouts)
    execution: Execution = option(
        "The processes that play the games: one, several, or workers of a Ray cluster.", factory=Execution
    )
    stances: Literal["both"] | None = option(
        "`both`: play each datapoint with each stance, which all provers of the game argue, regardless of "
        "`protocol.randomize_prover_stance`. Opposed provers, as in a debate, exchange their stances instead; name, "
        "prompt, channels and order of speaking stay with the seat. null: the protocol sets the stance.",
        default=None,
        example="both",
    )
    seats: Literal["swap"] | Mapping[str, tuple[str, ...]] | None = option(
        "`swap`: play each datapoint as written, and with the players of two seats exchanged. A player is the model "
        "group and `max_response_words` of an entry of `agents`; name, prompt, channels, stance and rewards stay with "
        "the seat. `{swap: [prover0, prover1]}` names the seats if several pairs differ. With `stances: both` a "
        "datapoint is played four times. null: as written.",
        default=None,
        example={"swap": ["prover0", "prover1"]},
        anyOf=[{"type": ["string", "null"], "enum": ["swap", None]}, _NAMED_SEATS],
    )
    until: Until | None = option(
        "Stop early once the result is decided; the seed sets the order of the datapoints. null: play all of them.",
        default=None,
        example={"width": 0.1},
    )
    budget: BudgetSettings = option("Limits on what the run may spend, including its sweep.", factory=BudgetSettings)
    cache: str | None = option(
        "A file of completions shared between runs; null: none.",
        default=None,
        example="../results/cache.sqlite",
        path=True,
    )
    fine_tune: FineTune | None = option(
        "Which fine-tune files to build; null: none.", default=None, example={"agents": ["verifier"]}
    )
    training: TrainingSettings | None = option(
        "How models are trained on the rollouts; only for `kind: training`.",
        default=None,
        example={"method": "expert_iteration", "trainers": {"strong": {"backend": "files"}}},
    )
    sweep: Mapping[str, tuple[Any, ...] | Mapping[str, tuple[Any, ...]]] | tuple[Mapping[str, Any], ...] = option(
        "A grid: dotted keys, each with a list of values; every combination is a separate run. Lists under `zip` have "
        "the same length and advance together. Or a list of points, each a mapping of dotted keys to values.",
        factory=dict,
        example={"agents.verifier.model": ["small", "strong"]},
        type=["object", "array"],
        properties={"zip": {"type": "object", "minProperties": 1, **_SWEEP_AXES}},
        minItems=1,
        items={"type": "object", "minProperties": 1, "propertyNames": _SWEEP_AXES["propertyNames"]},
        **_SWEEP_AXES,
    )
    max_sweep_points: int = option("Maximum number of points of a sweep.", default=MAX_SWEEP_POINTS, minimum=1)


RENAMED_KEYS: Mapping[str, str] = {"rollouts.most_calls": "rollouts.max_calls"}
"""Old names of keys that still work in this version, each with its new name in the same section."""
