"""Small specs of games about questions with listed answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMES = ("Paris", "Rome", "Oslo", "Bern")


def write_data(folder: Path, size: int, answers: int = 2) -> None:
    rows = [
        {"id": f"q{i}", "question": f"Question {i}?", "answers": list(NAMES[:answers]), "label": NAMES[i % answers]}
        for i in range(size)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def answer_spec(folder: Path, protocol: str, size: int = 12, answers: int = 2, **changes: Any) -> Path:
    """Write a spec about questions whose right answer follows from their number."""
    write_data(folder, size, answers)
    agents = ("prover0", "prover1") if protocol == "answer_debate" else ("prover",)
    spec = {
        "name": "own", "seed": 3, "dataset": {"path": "data.jsonl", "answers": "answers", "right_answers": "text"},
        "protocol": {"use": protocol}, "prompts": f"prompts/question_answering/{protocol}",
        "verdict": {"form": "distribution"}, "models": {"m": {"provider": "dummy"}},
        "agents": {name: {"model": "m"} for name in (*agents, "verifier")},
        **changes,
    }  # fmt: skip
    path = folder / "spec.yaml"
    path.write_text(json.dumps(spec))
    return path


def use_model_server(url: str, judge: str = "judge", prover: str = "prover") -> dict[str, Any]:
    model = {"provider": "openai", "base_url": url, "timeout": 60}
    return {"models": {"m": {**model, "model": prover}, "j": {**model, "model": judge}}}
