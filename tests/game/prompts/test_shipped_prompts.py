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
from runner.game.protocols.ballot import CandidateAnswers
from runner.game.protocols.loader import builtin_names, load_protocol
from runner.game.protocols.protocol import Protocol
from tests.support.paths import ROOT
from tests.support.prompt_variables import make_prompt_variables

# The prompts that ship

SHIPPED = ROOT / "prompts" / "code_validation"
LISTED = [name for name in builtin_names() if load_protocol(name).lists_answers]
QUOTING = [name for name in builtin_names() if load_protocol(name).file.quotes is not None]
STATING = [name for name in builtin_names() if load_protocol(name).has_statements]
VARIANTS = {"solo_verifier_reworded": "solo_verifier", "solo_verifier_reject_first": "solo_verifier"}
"""Other prompts of a protocol, with which `specs/gauge` measures the effect of prompts."""
BINARY = [name for name in builtin_names() if name not in (*LISTED, *QUOTING, *STATING)]
AGENTS = [(name, agent) for name in BINARY for agent in template_names(load_protocol(name))]


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


@pytest.mark.parametrize("name", BINARY)
def test_a_shipped_verifier_prompt_has_the_wire_format(name: str) -> None:
    protocol, prompts = shipped(name)
    for template in [t for t in prompts.sources if t.startswith("verifier")]:
        text = prompts.render(template, make_prompt_variables(protocol, "verifier"))
        assert "Decision: accept" in text
        assert "Decision: reject" in text
        if not template.endswith(LAST_ROUND):
            for header in protocol.agent_spec("verifier").headers.values():
                assert f"\n{header}" in text


@pytest.mark.parametrize("name", BINARY)
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
    for folder, names in ((SHIPPED, BINARY), (QUESTIONS, LISTED), (PASSAGES, QUOTING), (STATED, STATING)):
        for name in names:
            files = {path.name.partition(".jinja")[0].removesuffix(".py") for path in (folder / name).iterdir()}
            files.discard("equations")  # the checker, which the spec names
            protocol = load_protocol(name)
            confidence = [judge + CONFIDENCE for judge in protocol.verifier_names] if folder == SHIPPED else []
            assert files == {*template_names(protocol), *confidence}
        variants = VARIANTS if folder == SHIPPED else {}
        assert {path.name for path in folder.iterdir()} == {*names, *variants}
        for variant, original in variants.items():
            assert {path.name for path in (folder / variant).iterdir()} <= {
                path.name for path in (folder / original).iterdir()
            }


# Prompts about listed answers

QUESTIONS = ROOT / "prompts" / "question_answering"
PASSAGES = ROOT / "prompts" / "passages"
STATED = ROOT / "prompts" / "arithmetic"
ANSWERS = CandidateAnswers(("Paris", "Rome", "Oslo"), (1,))


def texts_about_answers(name: str, template: str, form: str = "answer") -> list[str]:
    """Return the text of a template in games with several seeds."""
    protocol = load_protocol(name)
    prompts = load_prompts(QUESTIONS / name, protocol, ["question", "answers"], Place("s"))
    agent = template.removesuffix(LAST_ROUND)
    texts = []
    for seed in range(8):
        ballot = protocol.ballot(ANSWERS, seed).variables(agent)
        line = {"decision_line": f"LINE {form}", "verdict_form": form, "answer_marker": "Answer:"}
        texts.append(prompts.render(template, {**make_prompt_variables(protocol, agent), **ballot, **line}))
    return texts


@pytest.mark.parametrize("form", ["answer", "distribution", "scores"])
@pytest.mark.parametrize("name", LISTED)
def test_a_verifier_about_answers_sees_all_answers_and_the_line_of_a_verdict(name: str, form: str) -> None:
    for text in texts_about_answers(name, "verifier", form):
        assert all(re.search(rf"^[ABC]\) {answer}$", text, re.MULTILINE) for answer in ANSWERS.texts)
        assert f"LINE {form}" in text
        assert "What is it?" in text
    assert all(f"LINE {form}" in text for text in texts_about_answers(name, "verifier.last_round", form))


@pytest.mark.parametrize("name", LISTED)
def test_a_verifier_about_answers_does_not_learn_who_argues_for_which(name: str) -> None:
    prompts = load_prompts(QUESTIONS / name, load_protocol(name), ["question", "answers"], Place("s"))
    for template in [t for t in prompts.sources if t.startswith("verifier")]:
        assert not {"stance", "answer", "answer_letter"} & prompts.variables[template]


@pytest.mark.parametrize(
    ("name", "prover"), [("answer_debate", "prover0"), ("answer_debate", "prover1"), ("consultancy", "prover")]
)
def test_a_prover_learns_the_answer_that_it_must_argue_for(name: str, prover: str) -> None:
    argued = {re.search(r"the right answer is ([ABC]\) \w+)\.", text)[1] for text in texts_about_answers(name, prover)}  # type: ignore[index]
    assert len({answer[3:] for answer in argued}) > 1


def test_a_prover_that_chooses_learns_how_to_state_its_answer() -> None:
    assert all("\nAnswer: <letter>\n" in text for text in texts_about_answers("open_consultancy", "prover"))
