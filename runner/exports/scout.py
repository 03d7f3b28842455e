"""Exports a run as transcripts for Inspect Scout: a Parquet file with a row for each agent's chat and for each game.

The columns are those of Scout's transcript database (github.com/meridianlabs-ai/inspect_scout); Scout treats additional
columns as metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import orjson

from runner.base.storage.parquet import write_parquet
from runner.base.storage.safe_files import create, make_folders
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.run_source import ChatLine, ExportedGame, RunSource, generation_options
from runner.exports.scout_scans import message_id, write_scan
from runner.rollouts.rollout import CONFIDENCE_FIELDS, Call, Outcome

ALL_AGENTS = "all agents"
"""Name of the agent in the row of a whole game."""
COLUMNS = {
    "transcript_id": "VARCHAR", "source_type": "VARCHAR", "source_id": "VARCHAR", "date": "VARCHAR",
    "task_set": "VARCHAR", "task_id": "VARCHAR", "task_repeat": "BIGINT", "agent": "VARCHAR",
    "model": "VARCHAR", "model_options": "VARCHAR", "score": "VARCHAR", "success": "BOOLEAN",
    "message_count": "BIGINT", "total_time": "DOUBLE", "total_tokens": "BIGINT", "error": "VARCHAR",
    "messages": "VARCHAR", "rollout_id": "VARCHAR", "protocol": "VARCHAR", "role": "VARCHAR", "label": "VARCHAR",
    "decision": "VARCHAR", "outcome": "VARCHAR", "rounds": "BIGINT", "datapoint": "VARCHAR",
    "stance": "BIGINT", "swapped": "BOOLEAN", "stances_exchanged": "BOOLEAN", "votes": "VARCHAR",
    "verdicts": "VARCHAR", "confidence_stated": "DOUBLE",
    "confidence_logprob": "DOUBLE", "confidence_note": "VARCHAR", "debates_of": "VARCHAR",
}  # fmt: skip
"""Scout's columns up to `messages`, then columns of nip-run. JSON is stored as text, as Scout expects."""


def write(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:
    """Write the transcripts below `target`, and the results of analyses to the folder `TARGET-scans` next to it.

    Scout would take Parquet files in the folder of the transcripts for transcripts.

    Raises:
        UsageError: the subject is not an agent of the run.
        RunError: the file cannot be written.
    """
    agents = (
        [source.agent(options.subject)["agent"]] if options.subject else [r["agent"] for r in source.manifest.agents]
    )
    make_folders(target)
    export = WrittenExport(
        not_carried=[
            "failed calls and log-probabilities: a transcript contains only messages",
            "metrics and their intervals",
            *source.omitted_texts,
        ]
    )
    path, rows, longest = target / f"{source.folder.run_id}.parquet", 0, 0
    with TemporaryDirectory(dir=target, prefix=".export-") as folder:
        lines = Path(folder) / "transcripts.jsonl"
        with create(lines) as file:
            for row in _find_rows(source, agents, export, with_full_game=options.subject is None):
                line = orjson.dumps(row) + b"\n"
                longest = max(longest, len(line))
                file.write(line)
                rows += 1
        write_parquet([lines], COLUMNS, path, longest=longest)
    export.files[path] = rows
    if options.subject is None:
        export.files |= write_scan(source, target.with_name(f"{target.name}-scans"))
    return export


class _Chat(NamedTuple):
    """A conversation of a game: of one agent, or of all agents."""

    agent: str
    messages: Sequence[Mapping[str, object]]
    calls: Sequence[Call]
    model: str | None = None
    role: str | None = None
    options: Mapping[str, object] | None = None


def _find_rows(
    source: RunSource, agents: Sequence[str], export: WrittenExport, *, with_full_game: bool
) -> Iterator[dict[str, object]]:
    """Yield a row for each chat of each game. Lost games have none, and are counted in `export`."""
    for game in source.games():
        if game.rollout.outcome == Outcome.TRANSPORT_FAILED:
            export.omitted["rollouts lost in transport, which have no game"] += 1
            continue
        for chat in _find_chats(source, game, agents, with_full_game=with_full_game):
            yield _build_row(source, game, chat)


def _find_chats(
    source: RunSource, game: ExportedGame, agents: Sequence[str], *, with_full_game: bool
) -> Iterator[_Chat]:
    """Yield the conversation of all agents (if `with_full_game`), then the chat of each agent that has one."""
    answers = [call for call in game.rollout.calls if call.is_answer]
    if with_full_game:
        messages = [{"id": message_id(**message["metadata"]), **message} for message in game.conversation()]
        yield _Chat(ALL_AGENTS, messages, answers)
    for row in (game.cast[agent] for agent in agents):
        chat = [_format_message(line) for line in game.chat(row["agent"])]
        if chat:
            settings = source.plan.spec.experiment.models[row["model_group"]]
            calls = [call for call in answers if call.agent == row["agent"]]
            yield _Chat(row["agent"], chat, calls, row["model"], row["role"], generation_options(settings))


def _format_message(line: ChatLine) -> dict[str, object]:
    message = line.message
    row: dict[str, object] = {"role": message["role"], "content": message["content"]}
    if line.model is not None:
        row["model"] = line.model
    if "name" in message:
        row["metadata"] = {"name": message["name"]}
    return row


def _as_text(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _build_row(source: RunSource, game: ExportedGame, chat: _Chat) -> dict[str, object]:
    rollout, manifest, facts = game.rollout, source.manifest, game.facts
    point = rollout.job.datapoint
    return {
        "transcript_id": f"{manifest.run_id}/{rollout.job.rollout_id}/{chat.agent.replace(' ', '-')}",
        "source_type": "nip-run",
        "source_id": manifest.run_id,
        "date": manifest.started_at,
        "task_set": manifest.benchmark,
        "task_id": point.id,
        "task_repeat": rollout.job.repeat,
        "agent": chat.agent,
        "model": chat.model,
        "model_options": None if chat.options is None else orjson.dumps(chat.options).decode(),
        "score": None if rollout.correct is None else str(float(rollout.correct)),
        "success": rollout.correct,
        "message_count": len(chat.messages),
        "total_time": sum(call.latency_ms or 0.0 for call in chat.calls) / 1000,
        "total_tokens": sum(call.prompt_tokens + call.completion_tokens for call in chat.calls),
        "error": rollout.error,
        "messages": orjson.dumps(chat.messages).decode(),
        "rollout_id": rollout.job.rollout_id,
        "protocol": manifest.protocol,
        "role": chat.role,
        "label": game.label,
        "decision": game.verdict,
        "outcome": rollout.outcome.value,
        "rounds": len(rollout.rounds),
        "datapoint": orjson.dumps(game.columns).decode(),
        "votes": _as_text(facts.get("votes")),
        "verdicts": _as_text(facts.get("verdicts", facts.get("panel"))),
        **{name: facts.get(name) for name in ("stance", "swapped", "stances_exchanged", *CONFIDENCE_FIELDS)},
        "debates_of": None if manifest.rejudge_of is None else manifest.rejudge_of.run_id,
    }
