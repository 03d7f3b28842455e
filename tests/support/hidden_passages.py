"""A spec about hidden passages, for tests of private columns, quotes, limits of words, notes and candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.models.interface import Choice, Completion, Request, Usage
from runner.rollouts.engine import Engine
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.spec.loader import load_spec
from tests.support.hang_guard import HANG_SECONDS
from tests.support.specs import merge_changes

PASSAGE = "The cat sat on the red mat. The dog did not see it."

RULES: dict[str, Any] = {
    "name": "hidden",
    "agents": {
        "p0": {"role": "prover", "human_name": "A", "stance": "accept"},
        "p1": {"role": "prover", "human_name": "B", "stance": "reject"},
        "judge": {"role": "verifier", "human_name": "Judge"},
    },
    "channels": {"main": {"members": ["p0", "p1", "judge"]}},
    "cycle": [
        {"speak": {"p0": ["main"]}}, {"speak": {"p1": ["main"]}},
        {"speak": {"p0": ["main"]}}, {"speak": {"judge": ["main"]}},
    ],
    "private": {"passage": ["p0", "p1"]},
    "parameters": {"max_message_rounds": 4, "min_message_rounds": 4},
}  # fmt: skip

CANDIDATES = "{% for text in speech_candidates %}{{ loop.index }}. {{ text }}\n{% endfor %}"

TEMPLATES = {
    "p0.jinja": "{{ passage }} {{ claim }} {{ stance }} {{ scratchpad_marker }} {{ max_response_words }}",
    "p1.jinja": "{{ passage }} {{ claim }} {{ stance }} {{ scratchpad_marker }} {{ max_response_words }}",
    "judge.jinja": "{{ claim }} {{ accept }} {{ reject }}",
    "p0.preference.jinja": CANDIDATES + "{{ passage }} Best: NUMBER",
    "p0.critic.jinja": "Criticize for {{ stance }}. Score: NUMBER",
    "judge.judge.jinja": "Now {{ accept }} or {{ reject }}.",
    "p0.function.py": "def select(candidates, game):\n    return candidates.index(max(candidates))\n",
}


def passages_spec(
    folder: Path, rules: Mapping[str, Any] | None = None, *, base_url: str | None = None, size: int = 1, **changes: Any
) -> Path:
    """Write a spec with hidden passages. `rules` are merged into the protocol, and `changes` into the spec."""
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    for name, text in TEMPLATES.items():
        (folder / "prompts" / name).write_text(text)
    rows = [
        {"id": f"d{i}", "passage": f"{PASSAGE} Number {i}.", "claim": f"Claim {i}", "label": i % 2} for i in range(size)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rules.yaml").write_text(yaml.safe_dump(merge_changes(RULES, rules or {}), sort_keys=False))
    model: dict[str, Any] = {"provider": "dummy"}
    if base_url is not None:
        model = {"provider": "openai", "model": "tiny", "base_url": base_url, "timeout": 2 * HANG_SECONDS}
    spec = {
        "name": "hidden", "dataset": {"path": "data.jsonl"}, "protocol": {"use": "rules.yaml"}, "prompts": "prompts",
        "models": {"m": model}, "agents": {"_default": {"model": "m"}}, "retry": {"transient": {"first_wait": 0.01}},
    }  # fmt: skip
    path = folder / "spec.yaml"
    path.write_text(json.dumps(merge_changes(spec, changes)))
    return path


class Script:
    """A model that answers with given texts by agent, and records its requests."""

    def __init__(self, answers: Mapping[str, str | list[str]]) -> None:
        self._answers = {name: [texts] if isinstance(texts, str) else list(texts) for name, texts in answers.items()}
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        texts = self._answers[request.sample.agent]
        text = texts.pop(0) if len(texts) > 1 else texts[0]
        return Completion((Choice(text, "stop"),), "scripted", Usage())

    def prompts(self, agent: str) -> list[str]:
        """Return the whole text of each prompt of an agent."""
        return [
            "\n".join(message["content"] for message in request.messages)
            for request in self.requests
            if request.sample.agent == agent
        ]


async def play_script(path: Path, answers: Mapping[str, str | list[str]]) -> tuple[Rollout, Script]:
    """Play the first game of a spec with scripted answers."""
    plan = Plan(load_spec(path))
    script = Script({"judge": "Decision: accept", "p1": "I disagree.", **answers})
    (rollout,) = await Engine.from_plan(plan, script.complete).play(next(plan.jobs()))
    return rollout, script
