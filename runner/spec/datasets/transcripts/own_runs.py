"""Samples from the games of a finished run of nip-run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from runner.base.errors import RunError
from runner.base.storage.atomic_files import read_json
from runner.base.storage.parquet import read_tables
from runner.base.storage.safe_files import open_to_read
from runner.spec.datasets.limits import Meter
from runner.spec.datasets.transcripts.json_parts import parse_json, text_or_none
from runner.spec.datasets.transcripts.messages import InvalidTranscript, TranscriptMessage, TranscriptSample

MANIFEST: Final = "manifest.json"
"""The file that makes a folder the folder of a run."""
_TABLES: Final = {"rollouts": "rollouts.parquet", "messages": "messages.parquet"}
_DATASET: Final = ("inputs", "dataset.jsonl")
FILES: Final = (MANIFEST, *_TABLES.values(), "/".join(_DATASET))
"""The files of a run that have its transcripts."""
_DECIDED: Final = "decided"
_UNFINISHED: Final = "transport_failed"
_QUERY: Final = """
SELECT r.rollout_id, r.datapoint_id, r.repeat, r.y, r.decision, r.correct, r.outcome, r.confidence_stated,
    coalesce((SELECT list({'agent': m.agent, 'channel': m.channel, 'content': m.content} ORDER BY m.number)
        FROM (SELECT *, row_number() OVER () AS number FROM messages) m WHERE m.rollout_id = r.rollout_id), [])
FROM (SELECT *, row_number() OVER () AS number FROM rollouts) r ORDER BY r.number
"""


def read_run(folder: Path, meter: Meter) -> Iterator[TranscriptSample]:
    """Yield a sample for each game of a run. Its messages are the ones that agents sent in channels.

    Raises:
        InvalidTranscript: the folder has no tables, or a file is damaged.
    """
    try:
        manifest = read_json(folder / MANIFEST)
        tables = {name: folder / file for name, file in _TABLES.items()}
        for path in tables.values():
            meter.check_bytes(path.stat().st_size)
        columns = dict(_dataset_rows(folder.joinpath(*_DATASET), meter))
        ((size,),) = read_tables("SELECT coalesce(sum(strlen(content)), 0) FROM messages", tables, {})
        meter.check_bytes(int(size))
        for row in read_tables(_QUERY, tables, {}):
            yield _sample(row, manifest, columns)
    except FileNotFoundError as error:
        raise InvalidTranscript(
            f"the run has no {Path(str(error.filename)).name}; name the folder of a finished run"
        ) from error
    except (RunError, OSError) as error:
        raise InvalidTranscript(str(error)) from error


def _dataset_rows(path: Path, meter: Meter) -> Iterator[tuple[str, Mapping[str, object]]]:
    meter.check_bytes(path.stat().st_size)
    with open_to_read(path) as file:
        for number, line in enumerate(file, 1):
            row = parse_json(line, f"inputs/dataset.jsonl, line {number}")
            if isinstance(row, dict):
                yield str(row.get("id")), {name: row[name] for name in row if name not in ("id", "label")}


def _sample(
    row: tuple[Any, ...], manifest: Mapping[str, Any], columns: Mapping[str, Mapping[str, Any]]
) -> TranscriptSample:
    rollout_id, datapoint_id, repeat, label, decision, correct, outcome, confidence, messages = row
    if outcome != _DECIDED:  # the table counts such a game as not correct, but it has no verdict to judge
        correct = None
    scores = {"decision": decision, "label": label, "confidence": confidence}
    models = {str(agent.get("agent")): str(agent.get("model")) for agent in manifest.get("agents") or ()}
    return TranscriptSample(
        id=str(rollout_id),
        sample=str(datapoint_id),
        messages=[
            TranscriptMessage(
                "assistant", str(message["content"] or ""),
                name=f"{message['agent']} in {message['channel']}" if message["channel"] else str(message["agent"]),
            )
            for message in messages
        ],
        epoch=repeat,
        transcript_id=str(rollout_id),
        task=text_or_none(manifest.get("benchmark")),
        model=", ".join(dict.fromkeys(models.values())) or None,
        error=str(outcome) if outcome == _UNFINISHED else None,
        scores={"correct": correct, **{name: value for name, value in scores.items() if value is not None}},
        metadata={**columns.get(str(datapoint_id), {}), "outcome": outcome},
    )  # fmt: skip
