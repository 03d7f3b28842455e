"""Every chat template in TRL, with the chats of every protocol, agent and round.

A template accepts a chat if it raises no error, and if its result has every text and every sender. It must accept the
chats of a spec without `system_role`. The test prints which templates also accept `system_role: system`. A template for
images gets each content as a list of parts, as servers pass it to such templates.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.chat_format import INSTRUCTIONS
from runner.rollouts.plan import Plan
from runner.rollouts.round_prompts import undecided_rounds
from runner.spec.loader import load_spec
from tests.support.soft_assertions import SoftAssertions

PROTOCOLS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "nip": ({}, {"verifier_first": False}),
    "adp": ({},),
    "debate": ({}, {"sequential": True}, {"verifier_first": False}),
    "merlin_arthur": ({},),
    "mnip": ({}, {"sequential": True, "prover0_first": False}),
    "solo_verifier": ({},),
}
"""Sets of parameters of each protocol that change the order of speakers."""


@dataclass(frozen=True)
class Case:
    """The chat that an agent's model gets in one round."""

    description: str
    chat: Sequence[ChatMessage]
    openai_chat: Sequence[ChatMessage]
    """The same chat in OpenAI's format."""

    @property
    def texts(self) -> list[str]:
        """The texts that the result of a template must contain (see `expected_text`)."""
        return [expected_text(message, is_first=index == 0) for index, message in enumerate(self.openai_chat)]


def expected_text(message: ChatMessage, *, is_first: bool) -> str:
    """Return a message with its sender, unless the text starts with it, or marked as instructions."""
    name, text = message.get("name"), message["content"].strip()
    if message["role"] == "system" and not is_first:
        return INSTRUCTIONS + text
    return f"{name}: {text}" if name and not text.startswith(f"{name}:") else text


def test_every_chat_template_of_trl_accepts_every_chat(tmp_path: Path, check: SoftAssertions) -> None:
    templates = {path.stem: path.read_text("utf-8") for path in sorted(find_templates_of_trl().glob("*.jinja"))}
    default_cases, system_cases = (
        list(build_all_cases(tmp_path, settings)) for settings in ({}, {"system_role": "system"})
    )
    role_problems = [find_role_problem(case.chat) for case in (*default_cases, *system_cases)]
    check(not any(role_problems), f"the roles alternate in each of {len(role_problems)} chats")
    check(len(templates) >= 30, f"TRL ships at least 30 templates: {len(templates)}")
    templates_by_result: dict[str, list[str]] = {}
    for name, template in templates.items():
        result = describe_acceptance(template, default_cases) or describe_acceptance(
            template, default_cases, parts=True
        )
        check(result is not None, f"{name} accepts {len(default_cases)} chats")
        accepts_system = describe_acceptance(template, system_cases) or describe_acceptance(
            template, system_cases, parts=True
        )
        suffix = "" if accepts_system else ", without system messages"
        templates_by_result.setdefault(f"{result}{suffix}", []).append(name)
    sample = [replace(case, chat=case.openai_chat) for case in system_cases[::9]]
    failing = [
        name for name, text in templates.items() if any(find_problem(text, case, parts=False) for case in sample)
    ]
    check(
        len(failing) > len(templates) / 2, f"most templates do not accept some chats in OpenAI's format: {len(failing)}"
    )
    for result, names in templates_by_result.items():
        print(f"      {len(names)} {result}: {', '.join(names)}")


def find_templates_of_trl() -> Path:
    trl = importlib.util.find_spec("trl")
    assert trl is not None
    assert trl.submodule_search_locations
    return Path(trl.submodule_search_locations[0]) / "chat_templates"


def build_all_cases(folder: Path, settings: Mapping[str, str]) -> Iterator[Case]:
    for protocol, variants in PROTOCOLS.items():
        for parameters in variants:
            formats = (settings, {"chat_format": "openai"})
            plan, openai_plan = (build_plan(folder, protocol, parameters, chosen) for chosen in formats)
            yield from build_cases(plan, openai_plan, f"{protocol} {json.dumps(parameters)}")


def build_plan(folder: Path, protocol: str, parameters: Mapping[str, Any], settings: Mapping[str, str]) -> Plan:
    model = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", **settings}
    agents = load_spec(f"specs/{protocol}.yaml").experiment.agents
    spec = {
        "extends": f"specs/{protocol}.yaml",
        "dataset": {"limit": 2},
        "protocol": dict(parameters),
        "models": {"m": {"provider": "openai", **model}},
        "agents": {name: {"model": "m"} for name in agents},
    }
    path = folder / "spec.yaml"
    path.write_text(json.dumps(spec), "utf-8")
    return Plan(load_spec(path, ["~models.offline"]))


def build_cases(plan: Plan, openai_plan: Plan, description: str) -> Iterator[Case]:
    protocol, agents, openai_chat = plan.spec.protocol, plan.agents(), openai_plan.agents()
    for job in plan.jobs():
        rounds_with_messages = [i for i in range(protocol.max_message_rounds) if protocol.speakers(i, job.seed)]
        rounds = asyncio.run(undecided_rounds(protocol, agents, job, rounds_with_messages[-1]))
        for round_ in rounds_with_messages:
            observation = job.observation(round_, rounds[:round_])
            for name in protocol.speakers(round_, job.seed):
                chats = (agents_of_plan[name].prompt(observation) for agents_of_plan in (agents, openai_chat))
                yield Case(f"{description}, {name} in round {round_}", *chats)


def find_role_problem(chat: Sequence[ChatMessage]) -> str | None:
    roles = [message["role"] for message in chat]
    turns = roles[1:] if roles[0] == "system" else roles
    expected = ["user", "assistant"] * len(turns)
    return None if turns and turns == expected[: len(turns)] and turns[-1] == "user" else f"roles are {roles}"


def describe_acceptance(template: str, cases: Sequence[Case], *, parts: bool = False) -> str | None:
    """Return how a template accepts every chat; if it does not, print the first problem and return None."""
    for case in cases:
        problem = find_problem(template, case, parts=parts)
        if problem:
            print(f"      {case.description}: {problem}"[:200], file=sys.stderr)
            return None
    return "as lists of parts" if parts else "as texts"


def find_problem(template: str, case: Case, *, parts: bool) -> str | None:
    from transformers.utils.chat_template_utils import render_jinja_template

    chat: list[dict[str, Any]] = [dict(message) for message in case.chat]
    if parts:
        chat = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]
    try:
        rendered, _ = render_jinja_template(
            [chat],
            chat_template=template,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
            pad_token="<p>",
        )
    except Exception as error:  # noqa: BLE001 - a template that raises any error does not accept the chat
        return f"{type(error).__name__}: {error}"
    missing = [text for text in case.texts if text not in rendered[0]]
    return f"the result lacks {missing[0][:80]!r}" if missing else None
