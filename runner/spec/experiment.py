"""The keys of a spec, each with its type, default, bounds and meaning: the one source of all of them."""

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
"""The form of a spec's name."""

SAVED_SPEC = "spec.yaml"
"""The resolved spec of a run, in its folder."""

MAX_SWEEP_POINTS = 1000

LONGEST_RUN_ID = 120
RUN_ID_PATTERN = f"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_RUN_ID - 1}}}$"
"""The form of a run's id: it is the name of a folder, and longer than the name that it begins with."""


_SWEPT: dict[str, Any] = {
    "propertyNames": {"pattern": "^[^=+~][^=]*$"},
    "additionalProperties": {"type": "array", "minItems": 1},
}
"""Dotted keys, each with a list."""

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
"""The entry of `agents` whose settings every seat has that the spec does not give itself."""


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The model and the settings of one agent."""

    model: str = option("The model group that plays it: a key of `models`.", example="strong")
    max_response_words: int = option("The word limit its prompt tells it.", default=150, minimum=1)
    freeze: bool = option("Never train it, in a training run.", default=False)


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """How many games, and how many at once."""

    per_datapoint: int = option("Plays of each datapoint.", default=1, minimum=1, maximum=2**31 - 1)
    num_responses_per_timestep: int | None = option(
        "Play trees of responses (MALT): this many answers to each step, and the game goes on from each; null: "
        "single games.",
        default=None,
        example=2,
        minimum=1,
        maximum=128,
    )
    max_calls: int = option(
        "For trees, which grow exponentially with their rounds: more calls than this, without retries, are an error.",
        default=100_000,
        minimum=1,
    )
    concurrency: int = option("Games, and calls, in flight at once.", default=64, minimum=1, maximum=100_000)
    max_transport_failed: float = option(
        "The share of rollouts that may be lost in transport, from 0 to 1. A run that lost more is `incomplete`: "
        "exit code 1, and no rank on the leaderboard.",
        default=0.0,
        example=0.05,
        minimum=0,
        maximum=1,
    )
    max_unusable: float | None = option(
        "Stop the run, with exit code 1, once more than this share of the answers cannot be used: refused, empty, or "
        "in another format. Judged after 20 answers, over the new answers since the command started; each shard and "
        "each part of a training run counts its own. The same command resumes. null: never.",
        default=None,
        example=0.5,
        minimum=0,
        maximum=1,
    )


MAX_PROCESSES = 1024
MAX_WORKERS = 4096
"""Of a cluster."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What plays the games; of a run that goes on, it may be something else each time."""

    engine: Literal["processes", "ray"] = option(
        "Where the games are played: by processes of this machine, or by workers of a Ray cluster (`pip install "
        "'nip-run[ray]'`).",
        default="processes",
    )
    processes: int = option(
        "Worker processes of this machine that play the games, where one core is not enough; one more writes what they "
        "send, and holds budget and limits. 1: all in one process.",
        default=1,
        example=4,
        minimum=1,
        maximum=MAX_PROCESSES,
    )
    workers: int | None = option(
        "With `engine: ray`: workers in the cluster, each an actor that takes one CPU. Those that there is no room for "
        "begin once there is.",
        default=None,
        example=64,
        minimum=1,
        maximum=MAX_WORKERS,
    )
    address: str | None = option(
        "With `engine: ray`: the cluster that is there, as `host:port`, or `auto` for the one that this machine is a "
        "node of. null: the cluster of `RAY_ADDRESS`, or else one on this machine alone that begins and ends with the "
        "command.",
        default=None,
        example="auto",
    )

    @property
    def count(self) -> int:
        """How many workers play; 1 of the engine `processes`: this process does."""
        return self.processes if self.engine == "processes" else self.workers or 1

    @property
    def by_workers(self) -> bool:
        """Whether others than this process play."""
        return self.engine == "ray" or self.processes > 1


@dataclass(frozen=True, kw_only=True)
class Until:
    """When a run is decided: it stops there, and need not play all of its datapoints.

    Give one of the two. It is looked at after every game, or where datapoints are in groups or repeated, whenever all
    games of a group are in, by a 95 % confidence sequence, which may be looked at so often.
    """

    width: float | None = option(
        "Once the interval of accuracy is at most this wide, from its lower end to its upper one.",
        default=None,
        example=0.1,
        exclusiveMinimum=0,
        exclusiveMaximum=1,
    )
    compare: str | None = option(
        "Once it is known which is better, this run or that one: a run's id, the start of one, or its folder. Both are "
        "compared on the datapoints that they share. Runs that are alike play all: none stops because there is no "
        "difference. A difference of 15 points takes about half of the games that `plan --detect 0.15` says where the "
        "two disagree on a quarter of the datapoints, and about as many where they disagree on 45 %.",
        default=None,
        example="nip-code-validation-0123456789",
        minLength=1,
    )


@dataclass(frozen=True, kw_only=True)
class FineTune:
    """Which fine-tune files a run leaves in `fine_tune/`."""

    agents: tuple[str, ...] | None = option("For these agents; null: all.", default=None, example=["verifier"])
    formats: tuple[str, ...] = option(
        "`openai`: chat JSONL. `trl`: TRL's conversational JSONL. `verl`: Parquet, a row for each turn, with rewards.",
        default=("openai",),
        example=["openai", "trl"],
        minItems=1,
        items={"type": "string", "enum": ["openai", "trl", "verl"]},
    )
    chat_format: ChatFormat | None = option(
        "Write the chats in this format, see `models`; null: as they were played.",
        default=None,
        example="alternating",
    )
    ensure_last_message_is_assistant: bool = option("Cut each example after the agent's last turn.", default=True)
    replace_verifier_guess_with_true_label: bool = option(
        "Put the true label in the place of the verifier's last message.", default=False
    )
    only_correct: bool = option("Only rollouts with a right verdict.", default=False)
    min_examples: int = option("A file of fewer examples is not written; OpenAI asks for 10.", default=10, minimum=1)
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
    """Have the debates of another run judged by this spec's verifier; nobody else is asked."""

    run: str = option(
        "The folder of the run whose debates are judged: what was said stands, the first judge's questions included. "
        "Only what concerns the verifier may differ from that run's spec.",
        example="../results/runs/my-run",
        path=True,
    )
    verdict: Literal["last", "each"] = option(
        "`last`: one verdict, where the first judge gave its own, or for want of one had its last chance to. `each`: "
        "a verdict at every turn in which the judge may decide up to there, to see how it moves.",
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
        "The random seed: everything but the models' answers and the clock follows from it.", default=0, minimum=0
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
        "The dataset, and which of its rows are played.", example={"path": "data/code_validation.jsonl"}
    )
    protocol: ProtocolUse = option(
        "The rules of the game: a protocol and its parameters.", example={"use": "nip", "max_message_rounds": 8}
    )
    prompts: str = option(
        "The folder of Jinja2 templates, one for each agent; or installed ones, OWNER/NAME@VERSION.",
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
        "The agents of the protocol. `_default` fills every agent, and every key of an agent, that is not given here.",
        example={"verifier": {"model": "small"}},
    )
    decision_format: DecisionFormat = option("How a verifier writes a decision.", factory=DecisionFormat)
    verdict: VerdictSettings = option("What is recorded of a verdict.", factory=VerdictSettings)
    votes: int = option(
        "Where the verifier decides, ask it so often in all, at the same prompt; the majority is the verdict, and "
        "where as many are for the other, the first vote. Odd numbers have no such ties.",
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
    retry: Retry = option("What to do about each class of failure.", factory=Retry)
    rollouts: Rollouts = option("How many games, and how many at once.", factory=Rollouts)
    execution: Execution = option(
        "What plays the games: one process, several, or workers of a Ray cluster.", factory=Execution
    )
    stances: Literal["both"] | None = option(
        "`both`: play each datapoint with each stance, every prover arguing the play's, whatever "
        "`protocol.randomize_prover_stance` says. Provers who oppose each other, as in a debate, exchange theirs "
        "instead; name, prompt, channels and order of speaking stay with the seat. null: the stance is the protocol's.",
        default=None,
        example="both",
    )
    seats: Literal["swap"] | Mapping[str, tuple[str, ...]] | None = option(
        "`swap`: play each datapoint as written, and with the players of two seats exchanged. A player is the model "
        "group and `max_response_words` of an entry of `agents`; name, prompt, channels, stance and rewards stay with "
        "the seat. `{swap: [prover0, prover1]}` names the seats, where several pairs differ. With `stances: both` a "
        "datapoint is played four times. null: as written.",
        default=None,
        example={"swap": ["prover0", "prover1"]},
        anyOf=[{"type": ["string", "null"], "enum": ["swap", None]}, _NAMED_SEATS],
    )
    until: Until | None = option(
        "Stop once it is decided, with the datapoints in an order that the seed gives; null: play all of them.",
        default=None,
        example={"width": 0.1},
    )
    budget: BudgetSettings = option("The most the run may spend, its sweep included.", factory=BudgetSettings)
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
        "A grid: dotted keys, each with a list of values; every combination is a run of its own. Lists under `zip` "
        "have one length and advance together. Or a list of points, each a mapping of dotted keys to values.",
        factory=dict,
        example={"agents.verifier.model": ["small", "strong"]},
        type=["object", "array"],
        properties={"zip": {"type": "object", "minProperties": 1, **_SWEPT}},
        minItems=1,
        items={"type": "object", "minProperties": 1, "propertyNames": _SWEPT["propertyNames"]},
        **_SWEPT,
    )
    max_sweep_points: int = option("A sweep of more points is an error.", default=MAX_SWEEP_POINTS, minimum=1)


RENAMED_KEYS: Mapping[str, str] = {"rollouts.most_calls": "rollouts.max_calls"}
"""Old names of keys that still work in this version, each with the new one in the same section."""
