"""Small specs with their datasets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.base import package_data
from tests.support.hang_guard import HANG_SECONDS


def dataset_file(folder: Path, size: int = 12) -> Path:
    """Write a dataset of `size` datapoints, every second one with a correct solution."""
    path = folder / "data.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": f"p{index}",
            "label": index % 2,
            "question": f"Write f(x) that returns x + {index}.",
            "solution": f"def f(x):\n    return x + {index if index % 2 else index + 1}\n",
        }
        for index in range(size)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def spec_file(folder: Path, base_url: str | None = None, *, size: int = 12, **changes: Any) -> Path:
    """Write a spec of `nip` with a small dataset. All agents use the server at `base_url`, or `dummy` if it is None.

    `changes` are merged into the spec key by key; the value None removes a key.
    """
    dataset_file(folder, size)
    model: dict[str, Any] = {"provider": "dummy"}
    if base_url is not None:
        model = {"provider": "openai", "model": "tiny", "base_url": base_url, "timeout": 2 * HANG_SECONDS}
    spec: dict[str, Any] = {
        "name": "tiny",
        "seed": 7,
        "benchmark": "tiny/v1",
        "dataset": {"path": "data.jsonl"},
        "protocol": {"use": "nip", "max_message_rounds": 6},
        "prompts": "prompts/code_validation/nip",
        "models": {"m": model},
        "agents": {"prover": {"model": "m"}, "verifier": {"model": "m"}},
        "retry": {"transient": {"first_wait": 0.01, "max_wait": 0.05, "attempts": 8}},
        "rollouts": {"concurrency": 8},
        "fine_tune": {"formats": ["openai", "trl"], "min_examples": 1},
    }
    path = folder / "spec.yaml"
    path.write_text(json.dumps(merge_changes(spec, changes)), "utf-8")
    return path


def merge_changes(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(result.get(name), Mapping):
            result[name] = merge_changes(result[name], value)
        else:
            result[name] = value
    return result


def debate_with_hints(folder: Path, **changes: Any) -> Path:
    """Write a spec of a debate whose provers see the column `hint`, which the verifier does not see."""
    prompts = folder / "prompts"
    shutil.copytree(package_data.root() / "prompts/code_validation/debate", prompts)
    for name in ("prover0", "prover1"):
        template = prompts / f"{name}.jinja"
        template.write_text(template.read_text() + "\nHint: {{ hint }}\n")
    agents = {"prover": None, **{name: {"model": "m"} for name in ("prover0", "prover1")}}
    path = spec_file(
        folder, size=6, fine_tune=None, protocol={"use": "debate"}, prompts="prompts", agents=agents, **changes
    )
    data = folder / "data.jsonl"
    rows = [{**json.loads(line), "hint": f"look at line {i}"} for i, line in enumerate(data.read_text().splitlines())]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


SOLO_OVERRIDES = (
    "protocol={use: solo_verifier}",
    "prompts=prompts/code_validation/solo_verifier",
    "agents={verifier: {model: m}}",
)
