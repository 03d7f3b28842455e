"""What a game depends on, as content to hash; and the keys of a spec that a run may change when it goes on."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from runner.documents.dataclass_schema import to_plain
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.protocol import Protocol
from runner.models.settings import ModelSettings
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.experiment import AgentSettings, Experiment
from runner.spec.loader import Spec

MUTABLE_KEYS = (
    "description",
    "sweep",
    "max_sweep_points",
    "rollouts.per_datapoint",
    "rollouts.concurrency",
    "rollouts.max_calls",
    "rollouts.max_transport_failed",
    "rollouts.max_unusable",
    "execution",
    "until",
    "dataset.limit",
    "dataset.limits",
    "fine_tune",
    "retry.transient",
    "budget",
    "cache",
    "agents.*.freeze",
)
"""Keys that a run may change when it goes on: they decide how much is played and how, not what a rollout is."""


MUTABLE_MODEL_KEYS = (
    "base_url", "api_key_env", "headers", "session_id", "timeout", "price", "requests_per_minute", "tokens_per_minute",
    "share_prompts", "batch", "batch_wait", "batch_poll", "lineage",
)  # fmt: skip
"""Keys of every model group that a run may change: where it is served, its key, its price, our patience."""


LATER_MODEL_KEYS = ("logprobs", "top_logprobs", "from_run", "from_group", "answer_words")
"""Keys of every model group that came after 0.1.0: where one is null, a run is the one that it was then."""


LATER_SELECTION_KEYS = ("labels", "ids", "explode")
"""Keys of the selection that came after 0.1.0: where one is as by default, a run is the one that it was then."""


def selects_by_group(settings: DatasetSettings) -> bool:
    """Whether the groups decide which datapoints are played, or in which order; they always decide the errors."""
    return settings.group_by is not None and (settings.shuffle or settings.balance != "none")


def selection_content(settings: DatasetSettings) -> dict[str, Any]:
    """How the datapoints are chosen from their file. The limit is left out: it makes a run longer or shorter."""
    said = to_plain(settings)
    content = {name: said[name] for name in ("columns", "split", "filter", "balance", "shuffle")}
    default = to_plain(DatasetSettings(path=settings.path))
    content |= {name: said[name] for name in LATER_SELECTION_KEYS if said[name] != default[name]}
    return {**content, "group_by": settings.group_by} if selects_by_group(settings) else content


def protocol_content(protocol: Protocol) -> dict[str, Any]:
    """A protocol's content for hashing: its rules and the parameters in force, without names for people."""
    file = to_plain(protocol.file)
    return {
        **{name: file[name] for name in ("agents", "channels", "cycle")},
        "parameters": to_plain(protocol.parameters),
    }


def model_content(settings: ModelSettings, replayed: str | None) -> dict[str, Any]:
    """What of a model group a game depends on; not where it is served, nor its key, price or patience.

    Of a run that it replays, the hash of its journal (`replayed`) and not its folder, which may be moved. A chat format
    is left out where it is that of 0.1.0, which knew no other: what was played by it is the same game.
    """
    names = [f.name for f in fields(settings) if f.name not in (*MUTABLE_MODEL_KEYS, "run", "chat_format")]
    content = {name: to_plain(getattr(settings, name)) for name in names}
    content = {name: value for name, value in content.items() if value is not None or name not in LATER_MODEL_KEYS}
    if settings.resolved_chat_format == "alternating":
        content["chat_format"] = settings.chat_format
    return {**content, "run": replayed} if settings.traits.needs_run else content


def design_content(stances: str | None, seats: tuple[str, str] | None) -> dict[str, Any]:
    """What pairs the games of a run; nothing where each stands alone, as in 0.1.0."""
    return {**({} if stances is None else {"stances": stances}), **({} if seats is None else {"seats": list(seats)})}


def verdict_content(experiment: Experiment) -> dict[str, Any]:
    """How a verdict is written and what is recorded of it, with what came after 0.1.0 only where it is in use."""
    verdict, format_ = experiment.verdict, to_plain(experiment.decision_format)
    if not verdict.states:
        del format_["confidence"]
    recorded = {} if verdict == VerdictSettings() else {"verdict": to_plain(verdict)}
    return {"decision_format": format_, **recorded}


def judging_content(spec: Spec) -> dict[str, Any]:
    """What a game depends on of how verdicts are asked for; nothing where that is as in 0.1.0."""
    experiment = spec.experiment
    content: dict[str, Any] = {} if experiment.votes == 1 else {"votes": experiment.votes}
    if experiment.rejudge is not None and spec.rejudged is not None:
        source = [spec.rejudged.run_id, spec.rejudged.identity]
        content["rejudge"] = {"run": source, "verdict": experiment.rejudge.verdict}
    return content


def agent_content(agent: AgentSettings) -> dict[str, Any]:
    """What of an agent's settings a game depends on; not whether it is trained afterwards."""
    return {name: value for name, value in to_plain(agent).items() if name != "freeze"}
