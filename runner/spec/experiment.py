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
from runner.spec.tournament_settings import TournamentSettings
from runner.spec.training_settings import TrainingSettings

NAME_RULE: Mapping[str, Any] = {
    "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$",
    "patternErrorMessage": "letters, digits, '.', '_' and '-', at most 80, beginning with a letter or digit",
}
"""The form of the names of specs, recipes and analyzers."""

MAX_SWEEP_POINTS = 1000


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

    model: str = option("The model group that plays the agent: the name of an entry of `models`.", example="strong")
    max_response_words: int = option("The word limit stated in the agent's prompt.", default=150, minimum=1)
    freeze: bool = option("Never train this agent in a training run.", default=False)
    selector: str | None = option(
        "The model group that selects among the agent's candidates, if the protocol has `best_of` with `preference` or "
        "`critic`. null: the agent's own.",
        default=None,
        example="small",
    )
    train_scratchpad: bool = option(
        "Include the agent's private notes (`scratchpad` in the protocol) in training data.", default=False
    )

    @property
    def groups(self) -> tuple[str, ...]:
        """The model groups that are called for the agent."""
        return (self.model,) if self.selector is None else (self.model, self.selector)


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """The number of games, in total and at the same time, and the losses that stop a run."""

    per_datapoint: int = option("Number of games about each datapoint.", default=1, minimum=1, maximum=2**31 - 1)
    num_responses_per_timestep: int | None = option(
        "Play trees (for MALT): request this many answers at each step, and continue the game from each answer. null: "
        "play ordinary games.",
        default=None,
        example=2,
        minimum=1,
        maximum=128,
    )
    max_calls: int = option(
        "Maximum number of calls for trees, not counting retries. Trees grow exponentially with the number of rounds.",
        default=100_000,
        minimum=1,
    )
    concurrency: int = option(
        "Maximum number of games at the same time, and of calls at the same time.",
        default=64,
        minimum=1,
        maximum=100_000,
    )
    max_transport_failed: float = option(
        "The share of games, from 0 to 1, that may be lost because their calls failed. A run that loses more is "
        "`incomplete`: it ends with exit code 1 and has no rank on the leaderboard.",
        default=0.0,
        example=0.05,
        minimum=0,
        maximum=1,
    )
    max_unusable: float | None = option(
        "Stop the run with exit code 1 if more than this share of the answers is unusable: refused, empty, or in a "
        "wrong format. nip-run checks this from the 20th answer on, and counts only answers since the command "
        "started. Each shard and each part of a training run has its own count. Repeat the command to resume. null: "
        "never stop.",
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
        "`processes`: processes on this machine play the games. `ray`: workers of a Ray cluster play the games (needs "
        "`nip-run[ray]`).",
        default="processes",
    )
    processes: int = option(
        "Number of processes on this machine that play games. One more process writes their records and enforces "
        "budget and limits. 1: one process does everything.",
        default=1,
        example=4,
        minimum=1,
        maximum=MAX_PROCESSES,
    )
    workers: int | None = option(
        "With `engine: ray`: number of workers in the cluster. Each worker is an actor that needs one CPU, and starts "
        "when a CPU is free.",
        default=None,
        example=64,
        minimum=1,
        maximum=MAX_WORKERS,
    )
    address: str | None = option(
        "With `engine: ray`: the address `host:port` of the cluster, or `auto` if this machine is a node of it. null: "
        "the cluster in the environment variable `RAY_ADDRESS` or, if it is not set, a temporary cluster on this "
        "machine.",
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
        "Stop once the confidence interval of the accuracy is at most this wide, from its lower to its upper end.",
        default=None,
        example=0.1,
        exclusiveMinimum=0,
        exclusiveMaximum=1,
    )
    compare: str | None = option(
        "Stop once it is clear whether this run or an earlier run is more accurate. The value is the earlier run's "
        "id, the start of its id, or its folder. The comparison uses the datapoints of both runs. A run never stops "
        "because there is no difference. If the true difference is 15 points and the runs disagree on a quarter of "
        "the datapoints, this takes about half of the games that `plan --detect 0.15` plans; if they disagree on 45 "
        "%, about as many.",
        default=None,
        example="nip-code-validation-0123456789",
        minLength=1,
    )


@dataclass(frozen=True, kw_only=True)
class FineTune:
    """The fine-tuning files that a run writes to `fine_tune/`."""

    agents: tuple[str, ...] | None = option(
        "The agents to write files for; null: all agents.", default=None, example=["verifier"]
    )
    formats: tuple[str, ...] = option(
        "`openai`: JSONL with chats, for OpenAI. `trl`: JSONL in TRL's conversational format. `verl`: Parquet with a "
        "row for each turn and its reward.",
        default=("openai",),
        example=["openai", "trl"],
        minItems=1,
        items={"type": "string", "enum": ["openai", "trl", "verl"]},
    )
    chat_format: ChatFormat | None = option(
        "The chat format of the files (see `models.GROUP.chat_format`); null: the format of the chats that were sent.",
        default=None,
        example="alternating",
    )
    ensure_last_message_is_assistant: bool = option("End each example after the agent's last turn.", default=True)
    replace_verifier_guess_with_true_label: bool = option(
        "Replace the verifier's last message by the true label.", default=False
    )
    only_correct: bool = option("Use only games with a right verdict.", default=False)
    min_examples: int = option(
        "Do not write a file with fewer examples; OpenAI needs at least 10.", default=10, minimum=1
    )
    validation_share: float = option(
        "The share of the datapoints whose examples are written to a validation file.",
        default=0.0,
        minimum=0,
        exclusiveMaximum=1,
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolUse(Parameters):
    """A protocol by name, and the parameters to change."""

    use: str = option(
        "A built-in protocol (nip, adp, debate, merlin_arthur, mnip, solo_verifier or another one), the path of a "
        "protocol file, or an installed protocol OWNER/NAME@VERSION.",
        example="nip",
    )


@dataclass(frozen=True, kw_only=True)
class Rejudge:
    """Let this spec's verifier judge the debates of another run; no other agent is asked."""

    run: str = option(
        "The folder of the run whose debates are judged again. The provers' messages and the first judge's questions "
        "stay the same. Only settings of the verifier may differ from that run's spec.",
        example="../results/runs/my-run",
        path=True,
    )
    verdict: Literal["last", "each"] = option(
        "`last`: one verdict, at the turn where the first judge decided or, if it never decided, at its last turn. "
        "`each`: a verdict at each turn of the judge up to that turn, to see how the verdict changes.",
        default="last",
    )


@dataclass(frozen=True, kw_only=True)
class AnalysisSource:
    """The run whose transcripts this spec asks a question about. `nip-run analyze` writes it."""

    run_id: str = option("The id of the analyzed run.", example="my-run-0123456789")
    journal: str = option("The number of the run's journal, which identifies its answers.", example="9f86d081884c7d65")
    journal_sha256: str = option("The SHA-256 of the journal when the analysis was planned.", example="9f86d0818...")
    analyzer: str = option("The analyzer's name.", example="role_conformance")
    analyzer_sha256: str = option("The hash of the analyzer.", example="4e07408562be...")
    question_sha256: str = option("The hash of the question, which people may answer, too.", example="4b2277770...")
    answers: tuple[str, ...] = option(
        "The analyzer's answers. In the line with the model's verdict, only the text of the answer may follow its "
        "letter; otherwise the model is asked again.",
        default=(),
        example=["yes", "no"],
    )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A nip-run spec: a protocol, prompts, models and a dataset."""

    name: str = option(
        "The experiment's name. The ids of its runs start with this name.",
        example="nip-code-validation",
        **NAME_RULE,
    )
    description: str = option("A note for readers.", default="", example="A weak verifier questions a strong prover.")
    seed: int = option(
        "The random seed. It determines all random choices except for the models' answers.", default=0, minimum=0
    )
    kind: Literal["benchmark", "training", "tournament"] = option(
        "`benchmark`: measure models without changing them. `training`: also train models. `tournament`: rate players "
        "who play against each other.",
        default="benchmark",
    )
    benchmark: str | None = option(
        "The name of the leaderboard that lists the run; null: the spec's name.",
        default=None,
        example="code-validation/v1",
    )
    dataset: DatasetSettings = option(
        "The dataset, and the selection of its rows.", example={"path": "data/code_validation.jsonl"}
    )
    protocol: ProtocolUse = option(
        "The rules of the game: a protocol, and parameters that replace its defaults.",
        example={"use": "nip", "max_message_rounds": 8},
    )
    prompts: str = option(
        "The folder of Jinja2 templates, one for each agent, or installed prompts OWNER/NAME@VERSION.",
        example="prompts/code_validation/nip",
        path=True,
    )
    models: Mapping[str, ModelSettings] = option(
        "The models. An entry is a model group: a model, its server and its parameters. Agents with the same model "
        "group share the model and are fine-tuned together.",
        example={"small": {"model": "gpt-6-luna"}},
        minProperties=1,
        propertyNames={
            "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$",
            "patternErrorMessage": "letters, digits, '_' and '-', beginning with a letter or digit",
        },
    )
    agents: Mapping[str, AgentSettings] = option(
        "The model and settings of each agent of the protocol. The entry `_default` applies to agents without an "
        "entry, and to keys that an entry does not set.",
        example={"verifier": {"model": "small"}},
    )
    decision_format: DecisionFormat = option("The texts that give a verdict.", factory=DecisionFormat)
    verdict: VerdictSettings = option("What nip-run records with a verdict.", factory=VerdictSettings)
    votes: int = option(
        "How many times nip-run asks the verifier for its verdict, with the same prompt. The majority is the verdict "
        "or, in a tie, the first vote.",
        default=1,
        example=5,
        minimum=1,
        maximum=1000,
    )
    rejudge: Rejudge | None = option(
        "Let another verifier judge the debates of an earlier run; null: play games.",
        default=None,
        example={"run": "../results/runs/my-run", "verdict": "last"},
    )
    analysis: AnalysisSource | None = option(
        "The run and the analyzer of an analysis. `nip-run analyze` writes this key.",
        default=None,
        example={
            "run_id": "my-run-0123456789",
            "journal": "9f86d081884c7d65",
            "journal_sha256": "9f86d081884c7d65...",
            "analyzer": "role_conformance",
            "analyzer_sha256": "4e07408562be...",
            "question_sha256": "4b2277770...",
        },
    )
    retry: Retry = option("What nip-run does after each kind of failure.", factory=Retry)
    rollouts: Rollouts = option("The number of games, in total and at the same time.", factory=Rollouts)
    execution: Execution = option(
        "The processes that play the games: one, several, or workers of a Ray cluster.", factory=Execution
    )
    stances: Literal["both"] | None = option(
        "`both`: play two games about each datapoint. If all provers argue for the same verdict, they argue for "
        "accept in one game and for reject in the other. If provers have opposite stances, as in a debate, they "
        "exchange stances in the second game, but keep their names, prompts, channels and speaking order. null: play "
        "one game, with the stances that the protocol sets.",
        default=None,
        example="both",
    )
    seats: Literal["swap"] | Mapping[str, tuple[str, ...]] | None = option(
        "`swap`: play two games about each datapoint, the second with exchanged players. A player is the model group "
        "and `max_response_words` of an entry of `agents`. The names, prompts, channels, stances and rewards are not "
        "exchanged. If more than two players differ, name the two agents: `{swap: [prover0, prover1]}`. With "
        "`stances: both`, there are four games about each datapoint. null: exchange nothing.",
        default=None,
        example={"swap": ["prover0", "prover1"]},
        anyOf=[{"type": ["string", "null"], "enum": ["swap", None]}, _NAMED_SEATS],
    )
    until: Until | None = option(
        "Stop the run early once its result is clear. The seed determines the order of the datapoints. null: play all "
        "datapoints.",
        default=None,
        example={"width": 0.1},
    )
    budget: BudgetSettings = option(
        "Limits on what a run, or all runs of a sweep together, may spend.", factory=BudgetSettings
    )
    metrics: tuple[str, ...] = option(
        "Metrics of plugins to compute, in addition to the built-in metrics, which need no entry. "
        "`nip-run plugins` lists the installed plugins.",
        default=(),
        example=["words"],
        items={"type": "string", "minLength": 1},
        uniqueItems=True,
    )
    cache: str | None = option(
        "A file of answers that runs share. If it has an answer to exactly the same request, nip-run does not call "
        "the model. null: no cache.",
        default=None,
        example="../results/cache.sqlite",
        path=True,
    )
    fine_tune: FineTune | None = option(
        "The fine-tuning files that the run writes; null: none.", default=None, example={"agents": ["verifier"]}
    )
    training: TrainingSettings | None = option(
        "How models are trained on the rollouts; only for `kind: training`.",
        default=None,
        example={"method": "expert_iteration", "trainers": {"strong": {"backend": "files"}}},
    )
    tournament: TournamentSettings | None = option(
        "The players and pairings of a tournament; only for `kind: tournament`.",
        default=None,
        example={"players": {"strong": {"model": "strong"}, "small": {"model": "small"}}},
    )
    sweep: Mapping[str, tuple[Any, ...] | Mapping[str, tuple[Any, ...]]] | tuple[Mapping[str, Any], ...] = option(
        "Several runs from one spec. Either a mapping of dotted keys, such as `models.small.temperature`, to lists of "
        "values: nip-run plays a run for every combination of values. Lists under `zip` have the same length and "
        "advance together. Or a list of mappings of dotted keys to values: nip-run plays a run for each mapping.",
        factory=dict,
        example={"agents.verifier.model": ["small", "strong"]},
        type=["object", "array"],
        properties={
            "zip": {"description": "Keys whose lists advance together.", "type": "object", "minProperties": 1}
            | _SWEEP_AXES
        },
        minItems=1,
        items={"type": "object", "minProperties": 1, "propertyNames": _SWEEP_AXES["propertyNames"]},
        **_SWEEP_AXES,
    )
    max_sweep_points: int = option("Maximum number of runs of a sweep.", default=MAX_SWEEP_POINTS, minimum=1)


RENAMED_KEYS: Mapping[str, str] = {"rollouts.most_calls": "rollouts.max_calls"}
"""Old names of keys that still work in this version, each with its new name in the same section."""
