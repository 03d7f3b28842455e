"""The content that determines the identity of a game or run, and the spec keys that may change in a resumed run.

The identity is a hash of this content, which `runner.rollouts.plan` computes. A run with another identity has another
folder.
"""

from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType
from typing import Any

from runner.base.plugins import PluginPins
from runner.documents.dataclass_schema import to_plain
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schema import LATER_KEYS, file_content, parameter_content
from runner.models.provider_traits import PROVIDER_PLUGINS
from runner.models.settings import ModelSettings
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.experiment import AgentSettings, Experiment
from runner.spec.loader import Spec

MUTABLE_KEYS = (
    "description", "sweep", "max_sweep_points", "rollouts.per_datapoint", "rollouts.concurrency",
    "rollouts.max_calls", "rollouts.max_transport_failed", "rollouts.max_unusable", "execution", "until",
    "dataset.limit", "dataset.limits", "fine_tune", "metrics", "retry.transient", "analysis.run_id",
    "analysis.journal_sha256", "analysis.question_sha256", "budget", "cache", "agents.*.freeze",
    "agents.*.train_scratchpad",
)  # fmt: skip
"""Keys that may change when a run resumes. They affect which games are played and how, but not a game's content."""


MUTABLE_MODEL_KEYS = (
    "base_url", "api_key_env", "headers", "session_id", "timeout", "price", "requests_per_minute", "tokens_per_minute",
    "share_prompts", "batch", "batch_wait", "batch_poll", "lineage", "service_tier", "prompt_cache_key",
)  # fmt: skip
"""Keys of a model group that may change when a run resumes: its address, API key, price, service tier and time limits.

As with `batch`, the same model answers at every service tier. The journal has the tier of each answer.
"""


LATER_MODEL_KEYS = (
    "logprobs", "top_logprobs", "from_run", "from_group", "answer_words", "constrain_decisions",
    "max_reasoning_length",
)  # fmt: skip
"""Keys of a model group added after 0.1.0. If they are null, the run's identity is the same as in 0.1.0."""


LATER_SELECTION_KEYS = (
    "labels", "ids", "explode", "unique_by", "answers", "right_answers", "checker", "transform", "transcripts",
)  # fmt: skip
"""Keys of `dataset` added after 0.1.0. If they have their defaults, the run's identity is the same as in 0.1.0."""


def selects_by_group(settings: DatasetSettings) -> bool:
    """Return whether groups of datapoints influence which datapoints are played, or in what order."""
    return settings.group_by is not None and (settings.shuffle or settings.balance != "none")


def selection_content(settings: DatasetSettings) -> dict[str, Any]:
    """Return the settings that select datapoints from their file, without the limit, which only sets their number."""
    plain = to_plain(settings)
    content = {name: plain[name] for name in ("columns", "split", "filter", "balance", "shuffle")}
    default = to_plain(DatasetSettings(path=settings.path))
    content |= {name: plain[name] for name in LATER_SELECTION_KEYS if plain[name] != default[name]}
    return {**content, "group_by": settings.group_by} if selects_by_group(settings) else content


def protocol_content(protocol: Protocol) -> dict[str, Any]:
    """Return what a game depends on in a protocol: its rules and the parameters in effect, without display names."""
    file = file_content(protocol.file)
    return {
        **{name: file[name] for name in ("agents", "channels", "cycle", *LATER_KEYS) if name in file},
        "parameters": parameter_content(protocol.parameters),
    }


def model_content(
    settings: ModelSettings, replayed: str | None, plugins: PluginPins = MappingProxyType({})
) -> dict[str, Any]:
    """Return the settings of a model group that a game depends on, without its address, API key, price and time limits.

    For a group that replays a run, the content has the hash of the run's journal (`replayed`), not the run's folder,
    which may be moved. A provider of a plugin is identified by its distribution, version and hash. The chat format of
    0.1.0 is omitted, so that its games keep their ids.
    """
    names = [f.name for f in fields(settings) if f.name not in (*MUTABLE_MODEL_KEYS, "run", "chat_format")]
    content = {name: to_plain(getattr(settings, name)) for name in names}
    content = {name: value for name, value in content.items() if value is not None or name not in LATER_MODEL_KEYS}
    if settings.resolved_chat_format == "alternating":
        content["chat_format"] = settings.chat_format
    if (plugin := plugins.get(PROVIDER_PLUGINS.key(settings.provider))) is not None:
        content["plugin"] = plugin
    return {**content, "run": replayed} if settings.traits.needs_run else content


def design_content(stances: str | None, seats: tuple[str, str] | None) -> dict[str, object]:
    """Return the settings that pair the games of a run; empty if games are not paired, as in 0.1.0."""
    return {**({} if stances is None else {"stances": stances}), **({} if seats is None else {"seats": list(seats)})}


def verdict_content(experiment: Experiment) -> dict[str, object]:
    """Return the settings for how a verdict is written and recorded. Those added after 0.1.0 are left out if unused."""
    verdict, format_ = experiment.verdict, to_plain(experiment.decision_format)
    if not verdict.states:
        del format_["confidence"]
    recorded = to_plain(verdict)
    if verdict.form == "answer":
        del recorded["form"]
    return {"decision_format": format_, **({} if verdict == VerdictSettings() else {"verdict": recorded})}


def checker_content(settings: DatasetSettings) -> dict[str, Any]:
    """Return the settings that label the answers of provers; empty if the dataset has the labels, as in 0.1.0."""
    return {} if settings.checker is None else {"checker": to_plain(settings.checker)}


def judging_content(spec: Spec) -> dict[str, object]:
    """Return the settings for how verdicts are requested; empty if they are requested as in 0.1.0."""
    experiment = spec.experiment
    content: dict[str, Any] = {} if experiment.votes == 1 else {"votes": experiment.votes}
    if experiment.rejudge is not None and spec.rejudged is not None:
        source = [spec.rejudged.run_id, spec.rejudged.identity]
        content["rejudge"] = {"run": source, "verdict": experiment.rejudge.verdict}
    return content


def agent_content(agent: AgentSettings) -> dict[str, Any]:
    """Return the settings of an agent that a game depends on: all that do not matter only for training."""
    content = {name: value for name, value in to_plain(agent).items() if name not in ("freeze", "train_scratchpad")}
    if agent.selector is None:  # as in 0.1.0, which had no selectors
        del content["selector"]
    return content
