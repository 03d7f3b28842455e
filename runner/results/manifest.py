"""The manifest of a run: hashes of all it is made of, and what became of it; data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypedDict, Unpack

from runner.base.errors import BudgetExhausted, Interrupted, NipRunError, Waiting
from runner.base.redaction import redacted
from runner.models.prices import PriceBasis
from runner.results.answer_origins import AnswerOrigins
from runner.spec.datasets.shards import Shard


class Status(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    INCOMPLETE = "incomplete"
    """Played to its end, with more rollouts lost in transport than the spec allows."""


COUNTED = ("rollouts", "completions", "prompt_tokens", "completion_tokens", "cached_tokens", "transport_failed")
"""What a manifest counts of a run in whole numbers."""

PLAYED = (Status.DONE, Status.INCOMPLETE)
"""How a run stands whose rows are all written, and have numbers."""


class ReplaySource(NamedTuple):
    """Whose answers a run was played with: all of them, or those of the rounds before `until_round` alone."""

    run_id: str
    until_round: int | None


class RejudgeSource(NamedTuple):
    """Whose debates a run judges: the run, the hash of its journal, and which verdicts are asked for."""

    run_id: str
    journal_sha256: str
    verdict: str


class AgentRow(TypedDict):
    """An agent and its model, as the leaderboard has them."""

    agent: str
    role: str
    model_group: str
    provider: str
    model: str
    base_model: str


class Counts(TypedDict, total=False):
    """What a run has come to. A run that did not finish has but the first four."""

    rollouts: int
    completions: int
    failed_calls: int
    cost_usd: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd_at_most: float | None
    transport_failed: int
    cache_write_tokens: int
    reasoning_tokens: int
    audio_input_tokens: int
    audio_output_tokens: int
    answers_from: Mapping[str, int]


@dataclass(frozen=True)
class TrainingPart:
    """What a run is of the training run that it belongs to."""

    parent_run_id: str
    iteration: int
    kind: str
    """`training`: its games are trained on; `benchmark`: they measure."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A run's manifest, whichever version wrote it.

    Facts with a default were not always recorded, or are not yet known; a null that is written is not known.
    """

    format: int = 0
    """The version of the run folder's format; 0.1.0 wrote none."""
    run_id: str
    name: str
    kind: str
    benchmark: str
    protocol: str
    status: Status
    seed: int
    point: Mapping[str, Any] = field(default_factory=dict)
    """What the sweep sets in this run."""
    identity: str
    game_sha256: str
    spec_sha256: str
    prompts_sha256: Mapping[str, str]
    protocol_sha256: str
    dataset_sha256: str
    dataset_source_sha256: str
    dataset_selection: Mapping[str, Any]
    replayed_sha256: Mapping[str, str] | None = None
    """For each model group that replays a run: the SHA-256 of that run's journal."""
    version: str
    python: str
    git_commit: str | None
    git_dirty: bool | None
    parent_run_id: str | None = None
    iteration: int | None = None
    agents: tuple[AgentRow, ...]
    started_at: str
    finished_at: str | None = None
    replay_of: ReplaySource | None = None
    cache: str | None = None
    """The cache's path from the run's folder."""
    rollouts: int | None = None
    completions: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    failed_calls: int | None = None
    cost_usd: float | None = None
    cost_usd_at_most: float | None = None
    transport_failed: int | None = None
    """How many rollouts ended because no answer came."""
    answers_from: Mapping[str, int] | None = None
    """How many counted verdicts were copied from each other run, by the number of its journal or its id."""
    journal: str | None = None
    """The number of the run's own journal."""
    training: Mapping[str, Any] | None = None
    """What became of each model group's training."""
    rejudge_of: RejudgeSource | None = None
    why_stopped: str | None = None
    """Why the run did not come to its end, where more than its status is known."""
    sources: Mapping[str, Any] | None = None
    """By part (spec, prompts, protocol, dataset): the commit that held it when the run began; see `releases.Source`."""
    components: Mapping[str, Any] | None = None
    """By slot of the spec: the release that was named there, and the hash of its manifest."""
    got_from: Mapping[str, Any] | None = None
    """The release in whose folder, as `get` left it, the spec lies."""
    reproduces: Mapping[str, Any] | None = None
    """The release whose run this one plays again."""
    shard: Shard | None = None
    """Which part of a run this is, where it is one of several."""
    journal_records: int | None = None
    """Of such a part: how many records its journal had when it ended."""
    prices: str | None = None
    """The list that a price comes from, with its version; None if the spec gives every price."""
    cache_write_tokens: int | None = None
    """This and the next three are recorded only if a server reported such tokens."""
    reasoning_tokens: int | None = None
    audio_input_tokens: int | None = None
    audio_output_tokens: int | None = None

    recorded: tuple[str, ...] = ()
    """The facts that are written, null ones too, in their order."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """What a later version has written."""

    def __post_init__(self) -> None:
        known = [name for name, default in _DEFAULTS.items() if getattr(self, name) != default]
        object.__setattr__(self, "recorded", tuple(dict.fromkeys((*self.recorded, *known, *self.unknown))))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """A manifest as it was written.

        Raises:
            TypeError, ValueError: a fact is missing, or is of another type than ours.
        """
        values = {name: value for name, value in data.items() if name in _DEFAULTS}
        for name, value in values.items():
            if type(value) not in _JSON_TYPES[name]:
                raise TypeError(f"{name} cannot be {value!r}")
        for name, made in _TYPES.items():
            if values.get(name) is not None:
                values[name] = made(values[name])
        unknown = {name: value for name, value in data.items() if name not in _DEFAULTS}
        return cls(**values, unknown=unknown, recorded=tuple(data))

    def to_json(self) -> dict[str, Any]:
        """What is written."""
        return {name: self._plain(name) for name in self.recorded}

    def _plain(self, name: str) -> Any:
        value = getattr(self, name) if name in _DEFAULTS else self.unknown[name]
        if isinstance(value, Shard):
            return list(value.pair)
        return list(value) if isinstance(value, tuple) else value

    @property
    def is_training_run(self) -> bool:
        """Whether the run is a training run as a whole, whose games are in runs of their own."""
        return self.kind == "training" and self.parent_run_id is None

    @property
    def price_basis(self) -> PriceBasis:
        """What its calls are priced by; a stranger's manifest may have anything as its date."""
        with suppress(ValueError):
            return PriceBasis(date.fromisoformat(self.started_at[:10]), text_only="prices" not in self.recorded)
        return PriceBasis()

    @property
    def made_from(self) -> Sequence[str]:
        """The runs that it is a part of, or judges: what its name begins with means those."""
        of = (self.parent_run_id, None if self.rejudge_of is None else self.rejudge_of.run_id)
        return [run_id for run_id in of if run_id is not None]

    @property
    def is_whole_replay(self) -> bool:
        """Whether all its answers are another run's: it called nobody, and cost nothing."""
        return self.replay_of is not None and self.replay_of.until_round is None

    @property
    def origins(self) -> AnswerOrigins:
        """The runs that the answers behind its counted verdicts came from; counts of a stranger may be anything."""
        copied = {name: n for name, n in (self.answers_from or {}).items() if type(n) is int and 0 <= n < 1 << 53}
        return AnswerOrigins((self.rollouts or 0) - (self.transport_failed or 0), self.journal, self.run_id, copied)

    @property
    def own_cost_usd(self) -> float | None:
        """What its own calls cost; None where a price is unknown."""
        return 0.0 if self.is_whole_replay else self.cost_usd

    def recording(self, *names: str) -> Self:
        """With these facts written too, even if null."""
        return replace(self, recorded=(*self.recorded, *names))

    def stopped_by(self, error: BaseException | None) -> Self:
        """With what stopped the run, where that says more than that it was interrupted."""
        if isinstance(error, BudgetExhausted) and error.used:
            return replace(self, why_stopped=f"stopped by its budget ({error.used})")
        if isinstance(error, NipRunError) and not isinstance(error, (Interrupted, Waiting)):
            return replace(self, why_stopped=redacted(str(error)))
        return self

    def ended(self, status: Status, **counts: Unpack[Counts]) -> Self:
        """As a run that has come to these counts ends now."""
        return replace(self.recording(*counts), status=status, finished_at=now(), **counts)


_FACTS = [one for one in fields(Manifest) if one.name not in ("recorded", "unknown")]
_DEFAULTS: Mapping[str, Any] = {one.name: {} if one.default_factory is not MISSING else one.default for one in _FACTS}
"""Every fact in the order in which a new manifest has it, and what it is where it was not recorded."""

INITIAL_FACTS = tuple(_DEFAULTS)[: list(_DEFAULTS).index("finished_at") + 1]
"""What every manifest has written from the start."""

_JSON_NAMES: Mapping[str, type] = {
    "int": int, "str": str, "float": float, "bool": bool, "None": type(None), "Status": str, "ReplaySource": list,
    "RejudgeSource": list, "Shard": list, "tuple[AgentRow, ...]": list, "Mapping[str, str]": dict,
    "Mapping[str, int]": dict,
    "Mapping[str, Any]": dict,
}  # fmt: skip
_JSON_TYPES: Mapping[str, frozenset[type]] = {
    one.name: frozenset(_JSON_NAMES[kind.strip()] for kind in str(one.type).split("|"))
    | ({int} if "float" in str(one.type) else set())
    for one in _FACTS
}
"""What JSON may have for each fact: a whole number of dollars has no point."""


def _agents(rows: Sequence[Any]) -> tuple[AgentRow, ...]:
    for row in rows:
        if not isinstance(row, dict) or not AgentRow.__required_keys__ <= row.keys():
            raise TypeError(f"an agent cannot be {row!r}")
    return tuple(rows)


_TYPES: Mapping[str, Any] = {
    "status": Status,
    "agents": _agents,
    "replay_of": lambda source: ReplaySource(*source),
    "rejudge_of": lambda source: RejudgeSource(*source),
    "shard": lambda pair: Shard.parse("/".join(map(str, pair))),
}


def verifiers_of(manifest: Manifest) -> list[tuple[str, str]]:
    """The provider and the model of each agent that gives verdicts."""
    return [(row["provider"], row["model"]) for row in manifest.agents if row["role"] == "verifier"]


def is_allowed_loss(lost: int, rollouts: int, share: float) -> bool:
    """Whether no more than this share of a run's rollouts was lost in transport."""
    return lost <= share * rollouts * (1 + 1e-9)  # 0.07 of 100 is a little less than 7


def now() -> str:
    """The time in UTC, to the second, as the tables have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
