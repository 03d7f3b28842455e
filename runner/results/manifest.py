"""The manifest of a run: the hashes of its inputs, its counts and its status. This module has only data classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict, Unpack

from runner.base.errors import BudgetExhausted, Interrupted, NipRunError, Waiting
from runner.base.redaction import redacted
from runner.results.answer_origins import AnswerOrigins
from runner.spec.datasets.shards import Shard

if TYPE_CHECKING:
    from runner.models.prices import PriceBasis


class Status(StrEnum):
    """The status of a run."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    INCOMPLETE = "incomplete"
    """The run finished, but lost more rollouts in transport than the spec allows."""


COUNTED = ("rollouts", "completions", "prompt_tokens", "completion_tokens", "cached_tokens", "transport_failed")
"""The whole-number counts of a manifest."""

PLAYED = (Status.DONE, Status.INCOMPLETE)
"""The statuses of runs that have played all their games, so that they have tables and metrics."""


class ReplaySource(NamedTuple):
    """The run that another run replays: all its answers, or only the answers of rounds before `until_round`."""

    run_id: str
    until_round: int | None


class RejudgeSource(NamedTuple):
    """The run whose debates are judged again, the hash of its journal, and the kind of verdict."""

    run_id: str
    journal_sha256: str
    verdict: str


class AgentRow(TypedDict):
    """An agent and its model, with the columns of the leaderboard."""

    agent: str
    role: str
    model_group: str
    provider: str
    model: str
    base_model: str


class Counts(TypedDict, total=False):
    """The counts of a run, as in `Manifest`. A run that did not finish has only the first five."""

    rollouts: int
    completions: int
    failed_calls: int
    cost_usd: float | None
    cost_usd_at_most: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    transport_failed: int
    cache_write_tokens: int
    reasoning_tokens: int
    audio_input_tokens: int
    audio_output_tokens: int
    answers_from: Mapping[str, int]


@dataclass(frozen=True)
class TrainingPart:
    """The training run or tournament that a run is a part of, its iteration or pairing, and its kind."""

    parent_run_id: str
    iteration: int
    kind: str
    """`training`: its games are trained on; `benchmark`: its games measure the model."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A run's manifest, written by any version of nip-run.

    A field with a default is missing in manifests of some versions, or is set only later. Null means unknown.
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
    """The keys that the sweep sets in this run, with their values."""
    identity: str
    game_sha256: str
    spec_sha256: str
    prompts_sha256: Mapping[str, str]
    protocol_sha256: str
    dataset_sha256: str
    dataset_source_sha256: str
    dataset_selection: Mapping[str, Any]
    replayed_sha256: Mapping[str, str] | None = None
    """The SHA-256 of the replayed run's journal, for each model group that replays one."""
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
    """The number of rollouts that were lost because a server did not answer."""
    answers_from: Mapping[str, int] | None = None
    """The number of verdicts copied from each other run, by the random number of its journal or by its id."""
    journal: str | None = None
    """The random number that identifies the run's journal."""
    training: Mapping[str, Any] | None = None
    """The result of each model group's training."""
    rejudge_of: RejudgeSource | None = None
    analysis_of: str | None = None
    """The run whose transcripts this run asks a question about; see `nip-run analyze`."""
    why_stopped: str | None = None
    """The reason why the run did not finish, if the status does not tell."""
    sources: Mapping[str, Any] | None = None
    """The commit of each part (spec, prompts, protocol, dataset) when the run started; see `releases.Source`."""
    components: Mapping[str, Any] | None = None
    """The release named in each slot of the spec, and the hash of its manifest."""
    got_from: Mapping[str, Any] | None = None
    """The fetched release whose folder has the spec."""
    reproduces: Mapping[str, Any] | None = None
    """The release whose run this one reproduces."""
    shard: Shard | None = None
    """The shard, if this is the manifest of one shard of a run."""
    journal_records: int | None = None
    """The number of records in the journal of a shard when it ended."""
    plugins: Mapping[str, Any] | None = None
    """The distribution, version and hash of each plugin that the run uses, by `GROUP:NAME`; None without plugins."""
    prices: str | None = None
    """The price list with its version; None if the spec gives every price."""
    cache_write_tokens: int | None = None
    """This and the next three fields are recorded only if a server reported such tokens."""
    reasoning_tokens: int | None = None
    audio_input_tokens: int | None = None
    audio_output_tokens: int | None = None

    recorded: tuple[str, ...] = ()
    """The names of the fields that the file has or will have, including null fields, in order."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """The values of fields that a later version added, and this version does not know."""

    def __post_init__(self) -> None:
        changed = [name for name, default in _DEFAULTS.items() if getattr(self, name) != default]
        object.__setattr__(self, "recorded", tuple(dict.fromkeys((*self.recorded, *changed, *self.unknown))))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a manifest from its JSON.

        Raises:
            TypeError, ValueError: a field is missing or has the wrong type.
        """
        values = {name: value for name, value in data.items() if name in _DEFAULTS}
        for name, value in values.items():
            if type(value) not in _JSON_TYPES[name]:
                raise TypeError(f"{name} has the wrong type: {value!r}")
        for name, convert in _CONVERTERS.items():
            if values.get(name) is not None:
                values[name] = convert(values[name])
        unknown = {name: value for name, value in data.items() if name not in _DEFAULTS}
        return cls(**values, unknown=unknown, recorded=tuple(data))

    def to_json(self) -> dict[str, Any]:
        """Return the recorded fields as JSON data."""
        return {name: self._to_plain(name) for name in self.recorded}

    def _to_plain(self, name: str) -> Any:
        value = getattr(self, name) if name in _DEFAULTS else self.unknown[name]
        if isinstance(value, Shard):
            return list(value.pair)
        return list(value) if isinstance(value, tuple) else value

    @property
    def is_training_run(self) -> bool:
        """Whether this is a training run, and not one of the runs with its games and tests."""
        return self.kind == "training" and self.parent_run_id is None

    @property
    def is_tournament(self) -> bool:
        """Whether this is a tournament, and not one of the runs with its games."""
        return self.kind == "tournament"

    @property
    def has_parts(self) -> bool:
        """Whether the games are in separate runs, the parts of this training run or tournament."""
        return self.is_training_run or self.is_tournament

    @property
    def kind_name(self) -> str:
        """The kind of a run with parts, in messages: "a training run" or "a tournament"."""
        return "a tournament" if self.is_tournament else "a training run"

    @property
    def example_part(self) -> str:
        """The id of a part, as an example in messages."""
        return f"{self.run_id}-{'p0a' if self.is_tournament else 'i0'}"

    @property
    def price_basis(self) -> PriceBasis:
        """The basis of the prices of the run's calls. An invalid date, as in somebody else's manifest, is ignored."""
        from runner.models.prices import PriceBasis

        with suppress(ValueError):
            return PriceBasis(date.fromisoformat(self.started_at[:10]), text_only="prices" not in self.recorded)
        return PriceBasis()

    @property
    def source_run_ids(self) -> Sequence[str]:
        """The ids of the training run that this run is a part of, and of the run whose debates it judges.

        If the start of an id matches a source run and this run, it names the source run.
        """
        sources = (self.parent_run_id, None if self.rejudge_of is None else self.rejudge_of.run_id)
        return [run_id for run_id in sources if run_id is not None]

    @property
    def is_whole_replay(self) -> bool:
        """Whether all answers come from another run, so that this run made no calls and cost nothing."""
        return self.replay_of is not None and self.replay_of.until_round is None

    @property
    def origins(self) -> AnswerOrigins:
        """The runs that the run's verdicts come from. Invalid counts, as in somebody else's manifest, are ignored."""
        copied = {name: n for name, n in (self.answers_from or {}).items() if type(n) is int and 0 <= n < 1 << 53}
        return AnswerOrigins((self.rollouts or 0) - (self.transport_failed or 0), self.journal, self.run_id, copied)

    @property
    def own_cost_usd(self) -> float | None:
        """The cost of the run's own calls, without replayed ones; None if a price is unknown."""
        return 0.0 if self.is_whole_replay else self.cost_usd

    def with_null_fields(self, *names: str) -> Self:
        """Return a copy whose file has these fields even if they are null."""
        return replace(self, recorded=(*self.recorded, *names))

    def with_error(self, error: BaseException | None) -> Self:
        """Return a copy with the reason why the run stopped, unless it was interrupted or waits for models."""
        if isinstance(error, BudgetExhausted) and error.used:
            return replace(self, why_stopped=f"stopped by its budget ({error.used})")
        if isinstance(error, NipRunError) and not isinstance(error, (Interrupted, Waiting)):
            return replace(self, why_stopped=redacted(str(error)))
        return self

    def ended(self, status: Status, **counts: Unpack[Counts]) -> Self:
        """Return a copy with the final status and counts, and the current time as the end."""
        return replace(self.with_null_fields(*counts), status=status, finished_at=now(), **counts)


_FIELDS = [field_ for field_ in fields(Manifest) if field_.name not in ("recorded", "unknown")]
_DEFAULTS: Mapping[str, Any] = {f.name: {} if f.default_factory is not MISSING else f.default for f in _FIELDS}
"""The defaults of the file's fields, in the order of a new manifest; `MISSING` for required fields."""

INITIAL_FACTS = tuple(_DEFAULTS)[: list(_DEFAULTS).index("finished_at") + 1]
"""The fields that every manifest has from the start of its run."""

_JSON_TYPE_OF: Mapping[str, type] = {
    "int": int, "str": str, "float": float, "bool": bool, "None": type(None), "Status": str, "ReplaySource": list,
    "RejudgeSource": list, "Shard": list, "tuple[AgentRow, ...]": list, "Mapping[str, str]": dict,
    "Mapping[str, int]": dict, "Mapping[str, Any]": dict,
}  # fmt: skip
"""The JSON type of each type in the annotations of `Manifest`."""
_JSON_TYPES: Mapping[str, frozenset[type]] = {
    field_.name: frozenset(_JSON_TYPE_OF[kind.strip()] for kind in str(field_.type).split("|"))
    | ({int} if "float" in str(field_.type) else set())
    for field_ in _FIELDS
}
"""The types that the value of each field may have in JSON; a float may be written as an integer."""


def _parse_agents(rows: Sequence[Any]) -> tuple[AgentRow, ...]:
    for row in rows:
        if not isinstance(row, dict) or not AgentRow.__required_keys__ <= row.keys():
            raise TypeError(f"not an agent: {row!r}")
    return tuple(rows)


def _parse_plugins(plugins: Mapping[str, object]) -> Mapping[str, object]:
    for pin in plugins.values():
        if not isinstance(pin, dict) or not pin.keys() >= {"distribution", "version", "sha256"}:
            raise TypeError(f"not a plugin: {pin!r}")
    return plugins


_CONVERTERS: Mapping[str, Any] = {
    "plugins": _parse_plugins,
    "status": Status,
    "agents": _parse_agents,
    "replay_of": lambda source: ReplaySource(*source),
    "rejudge_of": lambda source: RejudgeSource(*source),
    "shard": lambda pair: Shard.parse("/".join(map(str, pair))),
}


def verifiers_of(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the provider and the model of each verifier of a run."""
    return [(row["provider"], row["model"]) for row in manifest.agents if row["role"] == "verifier"]


def is_allowed_loss(lost: int, rollouts: int, share: float) -> bool:
    """Return whether at most `share` of a run's rollouts was lost in transport."""
    return lost <= share * rollouts * (1 + 1e-9)  # in floating point, 0.29 * 100 is slightly below 29


def now() -> str:
    """Return the time in UTC, to the second, in the format of the tables."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
