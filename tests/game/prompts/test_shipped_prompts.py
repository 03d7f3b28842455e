"""The shipped prompts contain what an agent needs, in every round."""

from __future__ import annotations

import re

import pytest

from runner.base.problems import Place
from runner.game.prompts.templates import (
    CONFIDENCE,
    LAST_ROUND,
    PromptLoader,
    PromptSet,
    template_names,
)
from runner.game.protocols.ballot import CandidateAnswers
from runner.game.protocols.loader import builtin_names, load_protocol
from runner.game.protocols.protocol import Protocol
from tests.support.paths import ROOT
from tests.support.prompt_variables import make_prompt_variables

# Prompts about code

CODE_VALIDATION_PROMPTS = ROOT / "prompts" / "code_validation"
ANSWER_PROTOCOLS = [name for name in builtin_names() if load_protocol(name).lists_answers]
QUOTING_PROTOCOLS = [name for name in builtin_names() if load_protocol(name).file.quotes is not None]
STATEMENT_PROTOCOLS = [name for name in builtin_names() if load_protocol(name).has_statements]
VARIANTS = {"solo_verifier_reworded": "solo_verifier", "solo_verifier_reject_first": "solo_verifier"}
"""Other prompts of a protocol, used by `specs/gauge` to measure the effect of prompts."""
BINARY_PROTOCOLS = [
    name for name in builtin_names() if name not in (*ANSWER_PROTOCOLS, *QUOTING_PROTOCOLS, *STATEMENT_PROTOCOLS)
]
TEMPLATES = [(name, agent) for name in BINARY_PROTOCOLS for agent in template_names(load_protocol(name))]


def load_shipped_prompts(name: str) -> tuple[Protocol, PromptSet]:
    protocol = load_protocol(name)
    return protocol, PromptLoader(protocol, ["question", "solution"], Place("s")).load(CODE_VALIDATION_PROMPTS / name)


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
@pytest.mark.parametrize("stance", [0, 1])
def test_shipped_prompts_render_in_every_round(name: str, template: str, stance: int) -> None:
    protocol, prompts = load_shipped_prompts(name)
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


@pytest.mark.parametrize("name", BINARY_PROTOCOLS)
def test_shipped_verifier_prompts_state_the_answer_format(name: str) -> None:
    protocol, prompts = load_shipped_prompts(name)
    for template in [t for t in prompts.sources if t.startswith("verifier")]:
        text = prompts.render(template, make_prompt_variables(protocol, "verifier"))
        assert "Decision: accept" in text
        assert "Decision: reject" in text
        if not template.endswith(LAST_ROUND):
            for header in protocol.agent_spec("verifier").headers.values():
                assert f"\n{header}" in text


@pytest.mark.parametrize("name", BINARY_PROTOCOLS)
def test_shipped_verifier_prompts_do_not_use_the_provers_stance(name: str) -> None:
    _, prompts = load_shipped_prompts(name)
    for template in [t for t in prompts.sources if t.startswith("verifier")]:
        assert "stance" not in prompts.variables[template]


@pytest.mark.parametrize("name", ["nip", "debate", "mnip"])
def test_shipped_verifier_prompts_state_the_number_of_remaining_questions(name: str) -> None:
    protocol, prompts = load_shipped_prompts(name)
    for round_ in range(protocol.max_message_rounds):
        questions_left = sum(
            "verifier" in protocol.can_be_active(i) for i in range(round_ + 1, protocol.max_message_rounds)
        )
        text = prompts.render("verifier", make_prompt_variables(protocol, "verifier", round_=round_))
        expected = {0: r"no more questions", 1: r"1 more question\b"}.get(
            questions_left, rf"{questions_left} more questions"
        )
        if "verifier" in protocol.can_be_active(round_):
            assert re.search(expected, text), (round_, questions_left)


@pytest.mark.parametrize(("name", "template"), [case for case in TEMPLATES if case[1].startswith("prover")])
def test_shipped_prover_prompts_state_the_provers_stance(name: str, template: str) -> None:
    protocol, prompts = load_shipped_prompts(name)
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
    for folder, names in (
        (CODE_VALIDATION_PROMPTS, BINARY_PROTOCOLS),
        (QUESTION_PROMPTS, ANSWER_PROTOCOLS),
        (PASSAGE_PROMPTS, QUOTING_PROTOCOLS),
        (ARITHMETIC_PROMPTS, STATEMENT_PROTOCOLS),
    ):
        for name in names:
            files = {path.name.partition(".jinja")[0].removesuffix(".py") for path in (folder / name).iterdir()}
            files.discard("equations")  # the checker, which is named in the spec
            protocol = load_protocol(name)
            confidence = (
                [judge + CONFIDENCE for judge in protocol.verifier_names] if folder == CODE_VALIDATION_PROMPTS else []
            )
            assert files == {*template_names(protocol), *confidence}
        variants = VARIANTS if folder == CODE_VALIDATION_PROMPTS else {}
        assert {path.name for path in folder.iterdir()} == {*names, *variants}
        for variant, original in variants.items():
            assert {path.name for path in (folder / variant).iterdir()} <= {
                path.name for path in (folder / original).iterdir()
            }


# Prompts about listed answers

QUESTION_PROMPTS = ROOT / "prompts" / "question_answering"
PASSAGE_PROMPTS = ROOT / "prompts" / "passages"
ARITHMETIC_PROMPTS = ROOT / "prompts" / "arithmetic"
ANSWERS = CandidateAnswers(("Paris", "Rome", "Oslo"), (1,))


def render_answer_prompts(name: str, template: str, form: str = "answer") -> list[str]:
    """Return the text of a template in games with several seeds."""
    protocol = load_protocol(name)
    prompts = PromptLoader(protocol, ["question", "answers"], Place("s")).load(QUESTION_PROMPTS / name)
    agent = template.removesuffix(LAST_ROUND)
    texts = []
    for seed in range(8):
        ballot = protocol.ballot(ANSWERS, seed).variables(agent)
        line = {"decision_line": f"LINE {form}", "verdict_form": form, "answer_marker": "Answer:"}
        texts.append(prompts.render(template, {**make_prompt_variables(protocol, agent), **ballot, **line}))
    return texts


@pytest.mark.parametrize("form", ["answer", "distribution", "scores"])
@pytest.mark.parametrize("name", ANSWER_PROTOCOLS)
def test_answer_verifier_prompts_show_all_answers_and_the_decision_line(name: str, form: str) -> None:
    for text in render_answer_prompts(name, "verifier", form):
        assert all(re.search(rf"^[ABC]\) {answer}$", text, re.MULTILINE) for answer in ANSWERS.texts)
        assert f"LINE {form}" in text
        assert "What is it?" in text
    assert all(f"LINE {form}" in text for text in render_answer_prompts(name, "verifier.last_round", form))


@pytest.mark.parametrize("name", ANSWER_PROTOCOLS)
def test_answer_verifier_prompts_do_not_show_assigned_answers(name: str) -> None:
    loader = PromptLoader(load_protocol(name), ["question", "answers"], Place("s"))
    prompts = loader.load(QUESTION_PROMPTS / name)
    for template in [t for t in prompts.sources if t.startswith("verifier")]:
        assert not {"stance", "answer", "answer_letter"} & prompts.variables[template]


@pytest.mark.parametrize(
    ("name", "prover"), [("answer_debate", "prover0"), ("answer_debate", "prover1"), ("consultancy", "prover")]
)
def test_prover_prompts_name_the_assigned_answer(name: str, prover: str) -> None:
    prompts = "\n".join(render_answer_prompts(name, prover))
    assert len(set(re.findall(r"the right answer is [ABC]\) (\w+)\.", prompts))) > 1


def test_open_prover_prompts_state_the_answer_format() -> None:
    assert all("\nAnswer: <letter>\n" in text for text in render_answer_prompts("open_consultancy", "prover"))
