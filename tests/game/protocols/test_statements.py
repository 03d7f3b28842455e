"""Stated answers, sub-claims and probabilities are parsed, and checkers compare answers with a column."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import SpecError, StatementError
from runner.base.problems import Place
from runner.game.protocols.checkers import CheckerSettings, label_answer, stated_number
from runner.game.protocols.loader import load_protocol, unplayable_parameters
from runner.game.protocols.rounds import Reply, Round, find_subject, play
from runner.game.protocols.statements import StatedParts, Statement, stated_estimates, stated_texts
from tests.support.games import load_protocol_text

RULES = """\
name: own
agents:
  prover: {{role: prover, human_name: P}}
  judge: {{role: verifier, human_name: J}}
channels:
  main: {{members: [prover, judge]}}
cycle:
{steps}
  - speak: {{judge: [main]}}
parameters: {parameters}
"""
SPLIT_STEP = "  - {speak: {prover: [main]}, states: claims, pick_claim: true}"


def format_rules(steps: str, parameters: str = "{max_message_rounds: 2}") -> str:
    return RULES.format(steps=steps, parameters=parameters)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 42", "42"),
        ("So it is 6.\n**Answer:** 42", "42"),
        ("**Answer: 42**", "42"),
        ("Answer: 1\nNo.\nanswer : 2\nI am sure.", "2"),
        ("Answer:\n```python\ndef f():\n    return 1\n```", "def f():\n    return 1"),
        ("Answer:\n\ntwo\nlines", "two\nlines"),
    ],
)
def test_answer_is_the_text_after_the_last_marker(text: str, answer: str) -> None:
    assert stated_texts(text, "answer", 4) == (answer,)


@pytest.mark.parametrize("text", ["42", "Answer:", "Answer: **", "The answer is 42"])
def test_message_without_an_answer_is_an_error(text: str) -> None:
    with pytest.raises(StatementError, match="must state its answer after 'Answer:'"):
        stated_texts(text, "answer", 4)


def test_sub_claims_are_the_numbered_lines_up_to_an_empty_line() -> None:
    text = "It follows.\nClaim 1: a = b\n  - **Claim 2:** c\n goes on\n\nTogether they imply it."
    assert stated_texts(text, "claims", 4) == ("a = b", "c\n goes on")


@pytest.mark.parametrize(
    "text", ["none", "Claim 1: a", "Claim 1: a\nClaim 3: b", "Claim 1: a\nClaim 2:", "Claim 2: a\nClaim 1: b",
             "Claim 1: a\nClaim 2: b\nClaim 3: c"],
)  # fmt: skip
def test_wrong_number_of_sub_claims_is_an_error(text: str) -> None:
    with pytest.raises(StatementError, match="from 2 to 2 sub-claims"):
        stated_texts(text, "claims", 2)


def test_sub_claims_may_have_any_marks_and_many_empty_lines_between_them() -> None:
    text = "Plan\n---\n**Claim 1:** a\n***\n" + "> \n" * 300_000 + "> ## Claim 2: b; no claim 3: c"
    assert stated_texts(text, "claims", 4) == ("a", "b; no claim 3: c")


def test_each_sub_claim_needs_exactly_one_probability() -> None:
    assert stated_estimates("Claim 2: 0.25, as it may be\n**Claim 1**: 80%", 2) == (0.8, 0.25)
    assert stated_estimates("Claim 1: 1\nClaim 2: 0\nClaim 3: 5 %", None) == (1.0, 0.0, 0.05)
    for text, count in (("Claim 1: 80%", 2), ("Claim 1: 80%\nClaim 1: 70%\nClaim 2: 1", 2), ("none", None)):
        with pytest.raises(StatementError, match="one probability for each"):
            stated_estimates(text, count)
    with pytest.raises(StatementError, match="a probability from 0 to 1"):
        stated_estimates("Claim 1: likely\nClaim 2: 1", 2)


@pytest.mark.parametrize(
    ("text", "number"),
    [("2231", 2231), ("2,231 km", 2231), ("x = -3.50", -3.5), ("−4", -4), ("1e3", 1000), ("3.", 3), ("$.5", 0.5)],
)
def test_number_may_have_separators_and_a_unit(text: str, number: float) -> None:
    assert stated_number(text) == number


@pytest.mark.parametrize("text", ["", "many", "1 or 2", "7/2", "1,2", "3.14.15"])
def test_text_without_exactly_one_number_is_an_error(text: str) -> None:
    with pytest.raises(StatementError, match="exactly one number"):
        stated_number(text)


def test_texts_are_compared_after_normalization_and_numbers_within_the_tolerance() -> None:
    exact = CheckerSettings(by="exact", column="target")
    for text, label in (("PARIS.", 1), ("**“Paris”**", 1), ("Paris  ", 1), ("Par is", 0), ("Pariſ", 1), ("Rome", 0)):
        assert label_answer(exact, text, {"target": "paris"}) == label, text
    assert label_answer(exact, "two", {"target": ["2", "Two"]}) == 1
    assert label_answer(exact, "7", {"target": 7}) == 1
    assert [label_answer(exact, text, {"target": [7.0, 2.5]}) for text in ("7", "7.0", "2.5", "2")] == [1, 1, 1, 0]
    number = CheckerSettings(by="number", column="target")
    assert [label_answer(number, text, {"target": "0.3"}) for text in ("0.30", "0.1", "0.31")] == [1, 0, 0]
    near = CheckerSettings(by="number", column="target", tolerance=0.01)
    assert [label_answer(near, text, {"target": 0.3}) for text in ("0.31", "0.29", "0.311")] == [1, 1, 0]


def test_split_repeats_up_to_the_depth_and_the_seed_picks_a_claim_each_time(tmp_path: Path) -> None:
    rules = format_rules(SPLIT_STEP, "{max_message_rounds: 4, max_depth: 3}")
    protocol = load_protocol_text(tmp_path, rules)
    assert [protocol.step(i).pick_claim for i in range(4)] == [True, True, True, False]
    assert protocol.step_numbers == (0, 0, 0, 1)
    texts = ("a", "b", "c")
    picks = set()
    for seed in range(40):
        game = play(protocol, seed=seed, label=1, prover_stance=1)
        turn = next(game)
        for _ in range(3):
            turn = game.send({"prover": Reply("", {"main": ""}, statement=Statement(texts, (1, 0, 0)))})
        subject = find_subject(protocol, turn.rounds)
        assert subject.depth == 3
        assert subject.label == (1, 0, 0)["abc".index(subject.text or "")]
        picks.add(tuple(round_.stated.picked for round_ in turn.rounds if round_.stated is not None))
    assert {pick[0] for pick in picks} == {pick[2] for pick in picks} == {0, 1, 2}
    assert len(picks) > 10


def test_rewards_depend_on_the_label_of_the_last_answer(tmp_path: Path) -> None:
    steps = "  - {speak: {prover: [main]}, states: answer}\n  - {speak: {prover: [main]}, states: answer}"
    protocol = load_protocol_text(tmp_path, format_rules(steps, "{max_message_rounds: 3}"))
    for labels, reward in (((0, 1), 1.0), ((1, 0), -1.0)):
        game = play(protocol, seed=0, label=None, prover_stance=1)
        next(game)
        for label in labels:
            game.send({"prover": Reply("", {"main": ""}, statement=Statement(("x",), (label,)))})
        with pytest.raises(StopIteration) as end:
            game.send({"judge": Reply("", None, 1)})
        assert end.value.value.rounds[-1].rewards == {"prover": 1.0, "judge": reward}


def test_stated_parts_survive_json() -> None:
    for parts in (
        StatedParts(),
        StatedParts(Statement(("a", "b"), (1, 0)), picked=0),
        StatedParts(estimates=(0.5, 0.0)),
    ):
        assert StatedParts.from_json(parts.to_json()) == parts


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("  - {speak: {prover: [main], judge: [main]}, states: answer, may_decide: false}", "exactly one agent"),
        ("  - {speak: {judge: [main]}, states: answer, may_decide: false}", "only a prover can state an answer"),
        ("  - {speak: {judge: [main]}, states: estimates}", "must not decide here; add may_decide: false"),
        ("  - {speak: {judge: [main]}, states: estimates, may_decide: false}", "no sub-claims to pick from"),
        ("  - {speak: {prover: [main]}, pick_claim: true}", "after a step with states: claims or states: estimates"),
        (f"{SPLIT_STEP}\n{SPLIT_STEP}", "an earlier step picks a sub-claim, too"),
    ],
)
def test_invalid_statement_step_is_an_error(steps: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message) as error:
        load_protocol_text(tmp_path, format_rules(steps))
    assert error.value.problems[0].place.line == 8 + steps.count("\n")


def test_word_limit_that_truncates_a_statement_is_an_error(tmp_path: Path) -> None:
    rules = format_rules(SPLIT_STEP).replace("human_name: P", "human_name: P, word_limit: truncate")
    with pytest.raises(SpecError, match=r"agents\.prover\.word_limit: prover states claims in step 1"):
        load_protocol_text(tmp_path, rules)


@pytest.mark.parametrize(("depth", "rounds"), [(3, 2), (2, 4), (1, 4)])
def test_number_of_rounds_that_does_not_match_the_depth_is_an_error(depth: int, rounds: int, tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, format_rules(SPLIT_STEP), max_depth=depth, max_message_rounds=rounds)
    (problem,) = unplayable_parameters(protocol, Place)
    assert problem.key == "protocol.max_message_rounds"
    assert f"max_depth is {depth}; set protocol.max_message_rounds to {depth + 1}" in problem.message


def test_max_depth_needs_a_step_with_sub_claims() -> None:
    with pytest.raises(SpecError, match="no step of nip states sub-claims"):
        load_protocol("nip", {"max_depth": 2})


def test_rounds_without_statements_have_no_subject() -> None:
    assert find_subject(load_protocol("nip"), [Round(), Round()]) == (None, None, 0, None)
