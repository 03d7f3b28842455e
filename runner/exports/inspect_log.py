"""Exports a run as an Inspect log (`.eval`): a zip with a header, a summary of each sample, and a file for each sample.

`inspect_ai.log.read_eval_log` and `inspect view` read the log. A sample is a rollout: its id is the datapoint's id, and
its epoch is the rollout's number among all repeats and variants of the datapoint. Without a subject, the model is
`NO_MODEL`, and the agents are model roles.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import orjson

from runner.base.batches import group_pairs
from runner.base.errors import RunError
from runner.base.storage.atomic_files import replacing
from runner.base.storage.safe_files import create, make_folders
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.run_source import (
    ChatLine,
    ExportedGame,
    RunSource,
    dataset_path,
    generation_options,
    token_usage,
)
from runner.results.manifest import AgentRow
from runner.results.metric_definitions import exported_name
from runner.rollouts.rollout import CONFIDENCE_FIELDS, Call, Outcome

NO_MODEL = "none/none"
"""Inspect's name for no model."""
VERSION = 2
"""Version of the log format."""
SCORE = "verdict"
_NO_TRACEBACK = {"traceback": "", "traceback_ansi": ""}
_VERDICT_FACTS = ("votes", "verdicts", "panel", *CONFIDENCE_FIELDS)
"""Facts about a game that are part of its score."""


def write(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:
    """Write the log below `target`.

    Raises:
        UsageError: the subject is not an agent of the run, or has different models in different games.
        RunError: the log cannot be written.
    """
    subject = source.agent_with_one_model(options.subject) if options.subject else None
    make_folders(target)
    path = target / f"{source.folder.run_id}.eval"
    log = _Log(source, subject)
    failed = "failed calls, and the chat of each call: a sample has one conversation"
    export = WrittenExport(not_carried=[failed, *source.omitted_texts])
    try:
        with replacing(path) as temporary, create(temporary) as file, ZipFile(file, "w", ZIP_DEFLATED) as archive:
            summaries, games = bytearray(b"["), 0  # only the summaries are in memory: 1 to 2 KB per game
            _add_json(
                archive, "_journal/start.json", {"version": VERSION, "eval": log.build_spec(), "plan": log.build_plan()}
            )
            for game in source.games():
                sample = log.build_sample(game)
                name = quote(str(sample["id"]), safe=" !#$&'()+,;=@[]{}~^`")
                _add_json(archive, f"samples/{name}_epoch_{sample['epoch']}.json", sample)
                summaries += (b"," if games else b"") + orjson.dumps(log.summarize(sample))
                games += 1
            summaries += b"]"
            _add_bytes(archive, "summaries.json", summaries)
            _add_json(archive, "header.json", log.build_header(games))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; free disk space or choose another --out") from error
    export.files[path] = games
    return export


def _add_json(archive: ZipFile, name: str, value: Any) -> None:
    _add_bytes(archive, name, orjson.dumps(value))


def _add_bytes(archive: ZipFile, name: str, data: bytes | bytearray) -> None:
    """Add a member without a date, so that two exports of a run have the same bytes.

    Raises:
        RunError: the archive already has a member of this name, which the new one would hide.
    """
    if name in archive.NameToInfo:
        raise RunError(f"two games have the same file name {name} in the log; export with --format scout instead")
    member = ZipInfo(name)
    member.compress_type = ZIP_DEFLATED
    archive.writestr(member, data)


_IDENTIFYING_FIELDS = ("spec_sha256", "game_sha256", "dataset_sha256", "git_commit")
"""Fields of a manifest that identify the evaluated spec, data and code."""


class _Log:
    """Builds the parts of a log: of one agent's chats or, without a subject, of whole games."""

    def __init__(self, source: RunSource, subject: AgentRow | None) -> None:
        self._source, self._subject = source, subject
        self._model_usage: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._role_usage: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def build_spec(self) -> dict[str, object]:
        """Return Inspect's description of the evaluation: task, dataset, models and settings."""
        manifest, spec = self._source.manifest, self._source.plan.spec
        models = {
            row["agent"]: {
                "model": row["model"],
                "config": generation_options(spec.experiment.models[row["model_group"]]),
            }
            for row in manifest.agents
        }
        path = dataset_path(manifest, self._source.plan)
        points = [point.id for point in spec.dataset.datapoints]
        return {
            "eval_id": manifest.run_id,
            "run_id": manifest.run_id,
            "created": manifest.started_at,
            "task": manifest.benchmark,
            "task_id": manifest.identity[:22],
            "task_version": 0,
            "task_args": {"protocol": manifest.protocol, "seed": manifest.seed},
            "dataset": {
                "name": Path(path).name,
                "location": path,
                "samples": len(points),
                "sample_ids": points,
                "shuffled": spec.experiment.dataset.shuffle,
            },
            "model": self._subject["model"] if self._subject else NO_MODEL,
            "model_generate_config": models[self._subject["agent"]]["config"] if self._subject else {},
            "model_args": {},
            "model_roles": models,
            "config": {"epochs": spec.experiment.rollouts.per_datapoint * len(self._source.plan.variants)},
            "packages": {"nip-run": manifest.version},
            "metadata": {
                **{name: getattr(manifest, name) for name in _IDENTIFYING_FIELDS},
                "interval": self._source.interval,
                **self._source.provenance,
            },
        }

    def build_plan(self) -> dict[str, object]:
        return {"name": self._source.manifest.protocol, "steps": [], "config": {}}

    def build_header(self, samples: int) -> dict[str, object]:
        """Return the log without its samples. Call this method last, because it includes the use of tokens."""
        manifest = self._source.manifest
        return {
            "version": VERSION,
            "status": "success",
            "eval": self.build_spec(),
            "plan": self.build_plan(),
            "results": {
                "total_samples": samples,
                "completed_samples": samples - (manifest.transport_failed or 0),
                "scores": [{"name": SCORE, "scorer": "nip-run", "params": {}, "metrics": self._build_metrics()}],
            },
            "stats": {
                "started_at": manifest.started_at,
                "completed_at": manifest.finished_at or "",
                "model_usage": {name: dict(usage) for name, usage in self._model_usage.items()},
                "role_usage": {name: dict(usage) for name, usage in self._role_usage.items()},
            },
        }

    def _build_metrics(self) -> dict[str, object]:
        metrics: dict[str, object] = {}
        for row in self._source.metrics:
            if row["value"] is None:
                continue
            name = exported_name(row["agent"], row["metric"])
            details = {key: row.get(key) for key in ("stderr", "ci_low", "ci_high", "n", "clusters")}
            metrics[name] = {"name": name, "value": row["value"], "params": {}, "metadata": details}
        return metrics

    def build_sample(self, game: ExportedGame) -> dict[str, object]:
        """Return the sample of a game, and count its tokens."""
        rollout = game.rollout
        calls = [call for call in rollout.calls if call.is_answer]
        is_lost, label = rollout.outcome == Outcome.TRANSPORT_FAILED, game.label or ""
        task = orjson.dumps(game.columns).decode()
        return {
            "id": rollout.job.datapoint.id,
            "epoch": rollout.job.number + 1,
            "input": task,
            **({"choices": list(listed.ballot.texts)} if (listed := rollout.answers) is not None else {}),
            "target": label if listed is None else label.split(", "),
            "messages": self._build_messages(game, task),
            "output": {"model": self._subject["model"] if self._subject else NO_MODEL, "choices": []},
            "scores": None if rollout.correct is None else {SCORE: _build_score(game)},
            "metadata": self._sample_metadata(game),
            "store": {},
            "events": [],
            "model_usage": _count_usage(calls, lambda call: call.model, self._model_usage),
            # In Inspect, a role has one model. So if agents exchange their models, the usage of a model counts for the
            # agent that it belongs to.
            "role_usage": _count_usage(calls, lambda call: self._source.player(game, call.agent), self._role_usage),
            **_find_times(game),
            "total_time": sum(call.latency_ms or 0.0 for call in calls) / 1000,
            "uuid": rollout.job.rollout_id,
            **({"error": {"message": rollout.error or "lost in transport", **_NO_TRACEBACK}} if is_lost else {}),
            "attachments": {},
        }

    def _sample_metadata(self, game: ExportedGame) -> dict[str, object]:
        """Return the facts about a game that are not part of its score."""
        rollout = game.rollout
        models = {agent: row["model"] for agent, row in game.cast.items()}
        return {
            "rollout_id": rollout.job.rollout_id,
            "outcome": rollout.outcome.value,
            "rounds": len(rollout.rounds),
            "group": rollout.job.datapoint.group,
            "repeat": rollout.job.repeat,
            **{name: value for name, value in game.facts.items() if name not in _VERDICT_FACTS},
            **({"models": models} if self._source.plan.seats else {}),
            **({"ended_by": rollout.error} if rollout.error else {}),
        }

    def _build_messages(self, game: ExportedGame, task_text: str) -> list[dict[str, object]]:
        if self._subject is not None:
            return [_format_message(index, line) for index, line in enumerate(game.chat(self._subject["agent"]))]
        last_requests = ((agent, game.last_request(agent)) for agent in game.cast)
        prompts: list[dict[str, object]] = [
            {"role": message["role"], "content": message["content"], "metadata": {"agent": agent}}
            for agent, request in last_requests
            if request is not None
            for message in request.messages[:1]
        ]
        task: dict[str, object] = {"role": "user", "content": task_text, "source": "input"}
        messages = ({"source": "generate", **message} for message in game.conversation())
        return [{"id": f"m{index}", **message} for index, message in enumerate((*prompts, task, *messages))]

    def summarize(self, sample: dict[str, Any]) -> dict[str, object]:
        """Return the part of a sample that Inspect's lists show."""
        keys = ("id", "epoch", "target", "metadata", "scores", "model_usage", "role_usage", "total_time", "uuid")
        return {
            **{key: sample[key] for key in keys},
            "input": sample["input"][:1024],
            "completed": True,
            "message_count": len(sample["messages"]),
            **({"error": sample["error"]["message"]} if "error" in sample else {}),
        }


def _build_score(game: ExportedGame) -> dict[str, object]:
    rollout, facts = game.rollout, game.facts
    return {
        "value": 1.0 if rollout.correct else 0.0,
        "answer": game.verdict,
        "explanation": f"outcome: {rollout.outcome.value}, label: {game.label}",
        "metadata": {"rewards": dict(rollout.rewards), **{n: facts[n] for n in _VERDICT_FACTS if n in facts}},
    }


def _count_usage(
    calls: Iterable[Call], name_of: Callable[[Call], str], totals: defaultdict[str, Counter[str]]
) -> dict[str, dict[str, int]]:
    """Return the tokens of calls, by the result of `name_of` for the call, and add them to the totals of the log."""
    calls_by_name = group_pairs((name_of(call), call) for call in calls)
    usage = {name: token_usage(calls) for name, calls in calls_by_name.items()}
    for name, tokens in usage.items():
        # Inspect's `input_tokens` excludes the tokens that a cache read or wrote.
        cached = tokens["input_tokens_cache_read"] + tokens.get("input_tokens_cache_write", 0)
        tokens["input_tokens"] = max(0, tokens["input_tokens"] - cached)
        for kind, number in tokens.items():
            totals[name][kind] += number
    return usage


def _find_times(game: ExportedGame) -> dict[str, str]:
    turns = game.turns()
    if not turns:
        return {}
    times = {"started_at": turns[0].start_ms, "completed_at": max(turn.end_ms for turn in turns)}
    return {
        name: datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") for name, ms in times.items()
    }


def _format_message(index: int, line: ChatLine) -> dict[str, object]:
    message = line.message
    entry: dict[str, object] = {"id": f"m{index}", "role": message["role"], "content": message["content"]}
    if message["role"] == "assistant":
        entry |= {"source": "generate", **({"model": line.model} if line.model else {})}
    if "name" in message:
        entry["metadata"] = {"name": message["name"]}
    return entry
