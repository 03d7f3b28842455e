"""Exports a run as a record of Every Eval Ever 0.3.0: one model's results with their uncertainty, and the rollouts.

The schema is in `schemas/` of github.com/evaleval/every_eval_ever. The files are
`data/COLLECTION/DEVELOPER/MODEL/UUID4.json` and `UUID4_samples.jsonl` in the same folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from runner.base.errors import UsageError
from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write, replacing
from runner.base.storage.safe_files import create, make_folders
from runner.base.text import comma_join
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.formats import RELATIONSHIPS
from runner.exports.run_source import ExportedGame, RunSource, generation_options, token_usage
from runner.results.manifest import AgentRow
from runner.results.metric_definitions import METRICS, Metric, exported_name
from runner.results.metrics_file import MetricRow
from runner.rollouts.rollout import Outcome
from runner.statistics.intervals import CONFIDENCE

NAME = "every-eval-ever"
SCHEMA_VERSION = "0.3.0"
_NOT_PORTABLE = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[. ]\Z|\Adata\Z')


def write(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:
    """Write the record and the rows of its rollouts below `target`.

    Raises:
        UsageError: a required option is missing.
        RunError: the files cannot be written.
    """
    subject = source.require_subject(options.subject, NAME)
    _check_options(options)
    record = _Record(source, options, subject)
    names = (source.manifest.benchmark, record.developer, record.model)
    folder = target.joinpath("data", *(_NOT_PORTABLE.sub("_", name) or "unknown" for name in names))
    make_folders(folder)
    samples = folder / f"{record.uuid}_samples.jsonl"
    export = WrittenExport()
    digest, rows = hashlib.sha256(), 0
    with replacing(samples) as temporary_path, create(temporary_path) as file:
        for game in source.games():
            row = record.build_row(game, export)
            if row is not None:
                # In ASCII, since readers may split the file at every line separator of Unicode, such as U+2028.
                line = json.dumps(row).encode() + b"\n"
                digest.update(line)
                file.write(line)
                rows += 1
    content = record.to_json(samples.relative_to(target), digest.hexdigest(), rows, export)
    path = folder / f"{record.uuid}.json"
    atomic_write(path, orjson.dumps(content, option=orjson.OPT_INDENT_2))
    export.files |= {path: rows, samples: rows}
    judges = [] if subject["role"] == "verifier" else source.verifiers
    shown_agents = {subject["agent"], *(row["agent"] for row in judges or source.verifiers[:1])}
    other_agents = [row["agent"] for row in source.manifest.agents if row["agent"] not in shown_agents]
    if other_agents:
        export.not_carried.append(
            f"the models of {comma_join(other_agents)}: a record describes one model; source_metadata names the others"
        )
    export.not_carried += [f"the chats of other agents than {subject['agent']}", *source.omitted_texts]
    return export


def _check_options(options: ExportOptions) -> None:
    """Check that the options for facts that a run does not contain are set.

    Raises:
        UsageError: an option is missing.
    """
    missing = []
    if not options.organization:
        missing.append("--organization NAME: the organization that ran the evaluation")
    if options.relationship is None:
        missing.append(f"--relationship {'|'.join(RELATIONSHIPS)}: the evaluator's relation to the model's developer")
    if missing:
        raise UsageError(f"--format {NAME} needs facts that a run does not contain; add " + "; ".join(missing))


class _Record:
    """Builds the record of one agent's model."""

    def __init__(self, source: RunSource, options: ExportOptions, subject: AgentRow) -> None:
        self._source, self._options, self._subject = source, options, subject
        self.info = _model_info(subject)
        self.id: str = subject["model"]
        developer, _, name = self.id.partition("/")
        self.developer, self.model = developer if name else "unknown", name or self.id
        finished = source.manifest.finished_at or source.manifest.started_at
        self._finished_seconds = str(int(datetime.fromisoformat(finished).timestamp()))
        identity = [source.folder.run_id, source.manifest.identity, subject["agent"], self._finished_seconds]
        digest = tagged_hash(NAME, identity)
        self.uuid = UUID(bytes=bytes.fromhex(digest)[:16], version=4)
        # The format suggests an id without the digest, but the points of a sweep may end in the same second.
        self._evaluation_id = f"{source.manifest.benchmark}/{self.id}/{self._finished_seconds}-{digest[:8]}"

    def to_json(self, samples: Path, checksum: str, rows: int, written: WrittenExport) -> dict[str, object]:
        """Return the record. `samples`, `checksum` and `rows` describe the file with the rollouts."""
        manifest = self._source.manifest
        details = {
            "run_id": manifest.run_id,
            "protocol": manifest.protocol,
            "subject": self._subject["agent"],
            "role": self._subject["role"],
            "spec_sha256": manifest.spec_sha256,
            "game_sha256": manifest.game_sha256,
            "dataset_sha256": manifest.dataset_sha256,
            **{f"model_of_{row['agent']}": row["model"] for row in manifest.agents},
            **self._source.provenance,
        }
        return {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": self._evaluation_id,
            "evaluation_timestamp": manifest.started_at,
            "retrieved_timestamp": self._finished_seconds,
            "source_metadata": {
                "source_name": manifest.name,
                "source_type": "evaluation_run",
                "source_organization_name": self._options.organization,
                "evaluator_relationship": self._options.relationship,
                "additional_details": details,
            },
            "eval_library": {"name": "nip-run", "version": manifest.version},
            "model_info": self.info,
            "evaluation_results": list(self._build_results(written)),
            "detailed_evaluation_results": {
                "format": "jsonl",
                "file_path": samples.as_posix(),
                "hash_algorithm": "sha256",
                "checksum": checksum,
                "total_rows": rows,
            },
        }

    def _build_results(self, written: WrittenExport) -> Iterator[dict[str, object]]:
        not_exported = []
        for row in self._source.metrics:
            if row["agent"] not in (None, self._subject["agent"]) or row["value"] is None:
                continue
            metric = METRICS.get(row["metric"])
            if row["agent"] is not None or metric is None or not metric.is_exported_score:
                not_exported.append(exported_name(row["agent"], row["metric"]))
                continue
            yield self._build_result(row, metric)
        if not_exported:
            written.not_carried.append(
                "minor metrics, metrics of agents, and metrics where neither larger nor smaller is better: "
                f"{comma_join(not_exported)}"
            )

    def _build_result(self, row: MetricRow, metric: Metric) -> dict[str, object]:
        name = exported_name(row["agent"], row["metric"])
        config = {
            "evaluation_description": f"{metric.description}, over {metric.over}",
            "metric_id": name,
            "metric_name": name,
            "metric_kind": name,
            "lower_is_better": metric.better < 0,
            "score_type": "continuous",
            "min_score": _json_bound(metric.low),
            "max_score": _json_bound(metric.high),
        }
        if self._subject["role"] != "verifier":
            verifiers = self._source.verifiers
            config["llm_scoring"] = {
                "judges": [{"model_info": _model_info(verifier)} for verifier in verifiers],
                "input_prompt": self._source.prompt(verifiers[0]["agent"]),
            }
        uncertainty: dict[str, object] = {"num_samples": row["n"]}
        if row["stderr"] is not None:
            uncertainty["standard_error"] = {"value": row["stderr"], "method": "clustered by group of datapoints"}
        if row["ci_low"] is not None and row["ci_high"] is not None:  # the format requires both ends
            uncertainty["confidence_interval"] = {
                "lower": row["ci_low"],
                "upper": row["ci_high"],
                "confidence_level": CONFIDENCE,
                "method": self._source.interval,
            }
        return {
            "evaluation_result_id": f"{self._evaluation_id}#{name}",
            "evaluation_name": self._source.manifest.benchmark,
            "source_data": self._describe_dataset(),
            "metric_config": config,
            "score_details": {
                "score": row["value"],
                "details": {"clusters": str(row["clusters"])},
                "uncertainty": uncertainty,
            },
            "generation_config": {"generation_args": self._generation_args()},
        }

    def _describe_dataset(self) -> dict[str, object]:
        settings, manifest = self._source.plan.spec.experiment.dataset, self._source.manifest
        details = {"sha256": manifest.dataset_sha256, "source_sha256": manifest.dataset_source_sha256}
        hub = self._options.hf_dataset
        if hub is not None:
            return {
                "dataset_name": hub,
                "source_type": "hf_dataset",
                "hf_repo": hub,
                "samples_number": len(self._source.plan.spec.dataset.datapoints),
                "additional_details": details,
            }
        name = Path(settings.path).name
        return {"dataset_name": name, "source_type": "other", "additional_details": details}

    def _generation_args(self) -> dict[str, object]:
        settings = self._source.plan.spec.experiment.models[self._subject["model_group"]]
        return {"prompt_template": self._source.prompt(self._subject["agent"]), **generation_options(settings)}

    def build_row(self, game: ExportedGame, written: WrittenExport) -> dict[str, object] | None:
        """Return the row of a rollout. If the format cannot represent it, count it in `written` and return None."""
        rollout, agent, label = game.rollout, self._subject["agent"], game.label
        chat = game.chat(agent)
        if rollout.outcome == Outcome.TRANSPORT_FAILED or label is None or not chat:
            written.omitted[_omission_reason(game, agent)] += 1
            return None
        answers = [call for call in game.calls(agent) if call.is_answer]
        messages = [
            {"turn_idx": index, "role": line.message["role"], "content": line.message["content"]}
            for index, line in enumerate(chat)
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": self._evaluation_id,
            "model_id": self.id,
            "evaluation_name": self._source.manifest.benchmark,
            "evaluation_result_id": f"{self._evaluation_id}#accuracy",
            "sample_id": rollout.job.datapoint.id,
            "interaction_type": "multi_turn",
            "input": {
                "raw": orjson.dumps(game.columns, option=orjson.OPT_SORT_KEYS).decode(),
                "reference": label.split(", "),
            },
            "output": None,
            "messages": messages,
            "answer_attribution": self._build_attribution(game, len(chat) - 1),
            "evaluation": {
                "score": float(bool(rollout.correct)),
                "is_correct": bool(rollout.correct),
                "num_turns": sum(message["role"] == "assistant" for message in messages) or None,
            },
            "token_usage": token_usage(answers),
            "performance": {"latency_ms": sum(call.latency_ms or 0.0 for call in answers)},
            "error": rollout.error,
            "metadata": _build_metadata(game),
        }

    def _build_attribution(self, game: ExportedGame, last: int) -> list[dict[str, object]]:
        verdict = game.verdict_of(self._subject["agent"])
        if verdict is None or self._source.fixed_verdicts is not None:
            return []
        return [
            {
                "turn_idx": last,
                "source": f"messages[{last}].content",
                "extracted_value": verdict,
                "extraction_method": "exact_match",
                "is_terminal": True,
            }
        ]


def _omission_reason(game: ExportedGame, agent: str) -> str:
    """Return the reason why the format cannot represent a rollout."""
    if game.rollout.outcome == Outcome.TRANSPORT_FAILED:
        return "rollouts lost in transport, which have no game to score"
    if game.label is None:
        return "rollouts without a label, because they ended before a prover's statement"
    return f"rollouts without a request to {agent}"


def _to_text(value: Any) -> str:
    """Return a fact as text, because the format allows only texts in metadata."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _model_info(row: AgentRow) -> dict[str, object]:
    """Return the description of a model, with `unknown` for facts that a run does not contain."""
    details = {"deployment_type": "unknown", "model_availability": "unknown", "provider": row["provider"]}
    if row["base_model"] != row["model"]:
        details["base_model"] = row["base_model"]
    return {"name": row["model"], "id": row["model"], "additional_details": details}


def _build_metadata(game: ExportedGame) -> dict[str, object]:
    """Return the facts about a game for which the format has no field."""
    rollout = game.rollout
    return {
        "rollout_id": rollout.job.rollout_id,
        "repeat": str(rollout.job.repeat),
        "group": rollout.job.datapoint.group,
        "outcome": rollout.outcome.value,
        "decision": game.verdict or "none",
        **{name: _to_text(value) for name, value in game.facts.items()},
    }


def _json_bound(value: float) -> float | str:
    """Return a bound as JSON, with infinity as a string."""
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
