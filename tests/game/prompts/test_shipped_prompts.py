"""The prompts that ship say what a player needs, in every round."""

from __future__ import annotations

import re

import pytest

from runner.base.problems import Place
from runner.game.prompts.templates import (
    CONFIDENCE,
    LAST_ROUND,
    PromptSet,
    load_prompts,
    template_names,
)
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Protocol
from tests.support.games import ABOUT_CODE
from tests.support.paths import ROOT
from tests.support.prompt_variables import make_prompt_variables

# The prompts that ship

SHIPPED = ROOT / "prompts" / "code_validation"
AGENTS = [(name, agent) for name in ABOUT_CODE for agent in template_names(load_protocol(name))]


def shipped(name: str) -> tuple[Protocol, PromptSet]:
    protocol = load_protocol(name)
    return protocol, load_prompts(SHIPPED / name, protocol, ["question", "solution"], Place("s"))


@pytest.mark.parametrize(("name", "template"), AGENTS)
@pytest.mark.parametrize("stance", [0, 1])
def test_a_shipped_prompt_renders_in_every_round(name: str, template: str, stance: int) -> None:
    protocol, prompts = shipped(name)
    agent = template.removesuffix(LAST_ROUND)
    columns = {"question": "QQQ", "solution": "SSS", "label": "LABEL-1", "y": "LABEL-2"}
    for round_ in range(protocol.max_message_rounds):
        text = prompts.render(
            template, make_prompt_variables(protocol, agent, columns=columns, prover_stance=stance, round_=round_)
        )
        assert text.strip()
        assert "LABEL" not in text
        assert not re.search(r"\{\{|\}\}|\{%|%\}|Undefined|None", text)
        if template == agent:
            assert "QQQ" in text
            assert "SSS" in text
            assert "137 words" in text


@pytest.mark.parametrize("name", ABOUT_CODE)
def test_a_shipped_verifier_prompt_has_the_wire_format(name: str) -> None:
    protocol, prompts = shipped(name)
    for template in [t for t in prompts.sources if t.startswith("verifier")]:
        text = prompts.render(template, make_prompt_variables(protocol, "verifier"))
        assert "Decision: accept" in text
        assert "Decision: reject" in text
        if not template.endswith(LAST_ROUND):
            for header in protocol.agent_spec("verifier").headers.values():
                assert f"\n{header}" in text


@pytest.mark.parametrize("name", ABOUT_CODE)
def test_a_shipped_verifier_prompt_does_not_know_the_provers_stance(name: str) -> None:
    _, prompts = shipped(name)
    for template in [t for t in prompts.sources if t.startswith("verifier")]:
        assert "stance" not in prompts.variables[template]


@pytest.mark.parametrize("name", ["nip", "debate", "mnip"])
def test_a_shipped_verifier_prompt_counts_the_questions_that_are_left(name: str) -> None:
    protocol, prompts = shipped(name)
    for round_ in range(protocol.max_message_rounds):
        left = sum("verifier" in protocol.can_be_active(i) for i in range(round_ + 1, protocol.max_message_rounds))
        text = prompts.render("verifier", make_prompt_variables(protocol, "verifier", round_=round_))
        wanted = {0: r"no more questions", 1: r"1 more question\b"}.get(left, rf"{left} more questions")
        if "verifier" in protocol.can_be_active(round_):
            assert re.search(wanted, text), (round_, left)


@pytest.mark.parametrize(("name", "template"), [case for case in AGENTS if case[1].startswith("prover")])
def test_a_shipped_prover_prompt_tells_the_prover_its_stance(name: str, template: str) -> None:
    protocol, prompts = shipped(name)
    texts = {}
    for stance in (0, 1):
        texts[stance] = prompts.render(
            template, {**make_prompt_variables(protocol, template), "stance": ("reject", "accept")[stance]}
        )
    assert "accept" in texts[1]
    assert "reject" in texts[0]
    assert texts[0] != texts[1]
    assert "Decision: " not in texts[0] + texts[1]


def test_every_shipped_template_is_used_by_its_protocol() -> None:
    for name in ABOUT_CODE:
        files = {path.name.removesuffix(".jinja") for path in (SHIPPED / name).iterdir()}
        protocol = load_protocol(name)
        assert files == {*template_names(protocol), *(judge + CONFIDENCE for judge in protocol.verifier_names)}
    assert {path.name for path in SHIPPED.iterdir()} == set(ABOUT_CODE)
