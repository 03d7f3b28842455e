"""A small training spec, which runs offline unless a server is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runner import run
from runner.base.storage.log_lines import read_journal
from runner.results.folder import RunFolder
from runner.runs.finished.result import FinishedRun
from runner.spec.loader import load_spec
from tests.support.hang_guard import HANG_SECONDS
from tests.support.specs import merge_changes

TRAIN, TEST = 12, 6


def training_spec(folder: Path, **changes: Any) -> Path:
    """Write a training spec and its dataset; `changes` are merged into the spec."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": f"{split}{i}",
            "label": i % 2,
            "question": f"Write f(x) that returns x + {first + i}.",
            "solution": f"def f(x):\n    return x + {first + i if i % 2 else first + i + 1}\n",
            "split": split,
        }
        for split, size, first in (("train", TRAIN, 0), ("test", TEST, 1000))
        for i in range(size)
    ]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    spec: dict[str, Any] = {
        "name": "learn",
        "kind": "training",
        "dataset": {"path": "data.jsonl", "split": "train"},
        "protocol": {"use": "nip", "max_message_rounds": 4},
        "prompts": "prompts/code_validation/nip",
        "models": {"p": {"provider": "dummy"}, "v": {"provider": "dummy"}},
        "agents": {"prover": {"model": "p"}, "verifier": {"model": "v"}},
        "training": {
            "method": "expert_iteration",
            "iterations": 2,
            "min_examples": 2,
            "trainers": {"p": {"backend": "dummy"}, "v": {"backend": "dummy"}},
        },
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(merge_changes(spec, changes)), "utf-8")
    return path


def malt_changes(**changes: Any) -> dict[str, Any]:
    """Return the changes that make the training spec use MALT: trees of answers and preference pairs."""
    base = {"training": {"method": "malt"}, "rollouts": {"num_responses_per_timestep": 2}}
    return merge_changes(base, changes)


def provider_changes(base_url: str, **changes: Any) -> dict[str, Any]:
    """Return the changes that make the training spec call and fine-tune models at a server."""
    model = {"provider": "openai", "model": "tiny", "base_url": base_url, "timeout": 2 * HANG_SECONDS}
    trainer = {"backend": "openai", "poll_seconds": 0.02}
    base: dict[str, Any] = {
        "models": {"p": model, "v": {**model, "model": "small"}},
        "training": {
            "trainers": {"p": trainer, "v": trainer},
            "min_examples": 10,
            "selection": {"reward_threshold": 0.0},
        },
        "retry": {"transient": {"first_wait": 0.01, "max_wait": 0.05}},
        "rollouts": {"per_datapoint": 3, "concurrency": 8},
    }
    if changes.get("training", {}).get("method") == "malt":
        del base["training"]["selection"]
    return merge_changes(base, changes)


def run_training(path: Path, results: Path, *overrides: str, **options: Any) -> FinishedRun:
    return run(load_spec(path, list(overrides)), results, **options)


def read_stages(run_folder: RunFolder) -> list[Mapping[str, Any]]:
    return [record for _, record in read_journal(run_folder.path / "stages.jsonl")]


def read_datasets(run_folder: RunFolder) -> dict[str, bytes]:
    """Return the content of every dataset and sidecar of a training run, by path."""
    paths = sorted((run_folder.path / "iterations").rglob("*.jsonl"))
    return {str(path.relative_to(run_folder.path)): path.read_bytes() for path in paths}
