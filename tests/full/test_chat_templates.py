"""Every chat template that TRL ships, on every protocol, agent and round.

A template takes a chat where it refuses nothing, and every text and every sender is in what it makes of it. Each has to
take those of a spec that says nothing but a `base_url`; which take them with `system_role: system`, too, is printed. A
template for images gets each content as a list of parts, as servers give it to those.
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
from tests.support.claims import Claims

PROTOCOLS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "nip": ({}, {"verifier_first": False}),
    "adp": ({},),
    "debate": ({}, {"sequential": True}, {"verifier_first": False}),
    "merlin_arthur": ({},),
    "mnip": ({}, {"sequential": True, "prover0_first": False}),
    "solo_verifier": ({},),
}
"""Each protocol with the parameters that change who speaks when."""


@dataclass(frozen=True)
class Case:
    """What an agent's model gets in one round, and what it was made of."""

    where: str
    chat: Sequence[ChatMessage]
    named: Sequence[ChatMessage]
    """The same in OpenAI's format."""

    @property
    def pieces(self) -> list[str]:
        """Each text of the game, with its sender where it has one and does not name it, or as instructions."""
        return [piece_of(message, is_first=index == 0) for index, message in enumerate(self.named)]


def piece_of(message: ChatMessage, *, is_first: bool) -> str:
    name, text = message.get("name"), message["content"].strip()
    if message["role"] == "system" and not is_first:
        return INSTRUCTIONS + text
    return f"{name}: {text}" if name and not text.startswith(f"{name}:") else text


def test_every_chat_template_of_trl_takes_every_chat(tmp_path: Path, claims: Claims) -> None:
    templates = {path.stem: path.read_text("utf-8") for path in sorted(shipped().glob("*.jinja"))}
    unsaid, said = (list(all_cases(tmp_path, more)) for more in ({}, {"system_role": "system"}))
    alternate = [not_alternating(case.chat) for case in (*unsaid, *said)]
    claims(not any(alternate), f"{len(alternate)} chats, of every protocol, agent and round: roles alternate in each")
    claims(len(templates) >= 30, f"TRL ships {len(templates)} templates")
    kept: dict[str, list[str]] = {}
    for name, template in templates.items():
        how = taken(template, unsaid) or taken(template, unsaid, parts=True)
        claims(how is not None, f"{name}: takes {len(unsaid)} chats")
        also = "" if taken(template, said) or taken(template, said, parts=True) else ", and no system message"
        kept.setdefault(f"{how}{also}", []).append(name)
    sample = [replace(case, chat=case.named) for case in said[::9]]
    wrong = [name for name, text in templates.items() if any(problem_of(text, case, parts=False) for case in sample)]
    claims(len(wrong) > len(templates) / 2, f"of chats in OpenAI's format {len(wrong)} templates refuse or lose some")
    for how, names in kept.items():
        print(f"      {len(names)} {how}: {', '.join(names)}")


def shipped() -> Path:
    trl = importlib.util.find_spec("trl")
    assert trl is not None
    assert trl.submodule_search_locations
    return Path(trl.submodule_search_locations[0]) / "chat_templates"


def all_cases(here: Path, more: Mapping[str, str]) -> Iterator[Case]:
    for protocol, variants in PROTOCOLS.items():
        for parameters in variants:
            formats = (more, {"chat_format": "openai"})
            ours, plain = (plan_of(here, protocol, parameters, chosen) for chosen in formats)
            yield from cases_of(ours, plain, f"{protocol} {json.dumps(parameters)}")


def plan_of(here: Path, protocol: str, parameters: Mapping[str, Any], more: Mapping[str, str]) -> Plan:
    model = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", **more}
    agents = load_spec(f"specs/{protocol}.yaml").experiment.agents
    spec = {
        "extends": f"specs/{protocol}.yaml",
        "dataset": {"limit": 2},
        "protocol": dict(parameters),
        "models": {"m": {"provider": "openai", **model}},
        "agents": {name: {"model": "m"} for name in agents},
    }
    path = here / "spec.yaml"
    path.write_text(json.dumps(spec), "utf-8")
    return Plan(load_spec(path, ["~models.offline"]))


def cases_of(ours: Plan, plain: Plan, where: str) -> Iterator[Case]:
    protocol, agents, named = ours.spec.protocol, ours.agents(), plain.agents()
    for job in ours.jobs():
        spoken = [i for i in range(protocol.max_message_rounds) if protocol.speakers(i, job.seed)]
        rounds = asyncio.run(undecided_rounds(protocol, agents, job, spoken[-1]))
        for round_ in spoken:
            observation = job.observation(round_, rounds[:round_])
            for name in protocol.speakers(round_, job.seed):
                chats = (each[name].prompt(observation) for each in (agents, named))
                yield Case(f"{where}, {name} in round {round_}", *chats)


def not_alternating(chat: Sequence[ChatMessage]) -> str | None:
    roles = [message["role"] for message in chat]
    turns = roles[1:] if roles[0] == "system" else roles
    wanted = ["user", "assistant"] * len(turns)
    return None if turns and turns == wanted[: len(turns)] and turns[-1] == "user" else f"roles are {roles}"


def taken(template: str, cases: Sequence[Case], *, parts: bool = False) -> str | None:
    """How a template takes every chat; None, with the first that it does not on stderr, where it refuses some."""
    for case in cases:
        problem = problem_of(template, case, parts=parts)
        if problem:
            print(f"      {case.where}: {problem}"[:200], file=sys.stderr)
            return None
    return "in parts" if parts else "as they are"


def problem_of(template: str, case: Case, *, parts: bool) -> str | None:
    from transformers.utils.chat_template_utils import render_jinja_template

    chat: list[dict[str, Any]] = [dict(message) for message in case.chat]
    if parts:
        chat = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]
    try:
        texts, _ = render_jinja_template(
            [chat],
            chat_template=template,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
            pad_token="<p>",
        )
    except Exception as error:  # noqa: BLE001 - whatever a template raises, it has not taken the chat
        return f"{type(error).__name__}: {error}"
    lost = [piece for piece in case.pieces if piece not in texts[0]]
    return f"lost {lost[0][:80]!r}" if lost else None
