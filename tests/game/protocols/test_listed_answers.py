"""Games whose verifier chooses from listed answers: the order of answers, stances, verdicts and rewards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from string import ascii_uppercase

import pytest

from runner.base.errors import InvalidDecisionError, SpecError
from runner.game.protocols.answer_parser import DecisionFormat, parse_answer
from runner.game.protocols.answer_verdicts import AnswerVerdict, VerdictForm, parse_verdict, stated_answer
from runner.game.protocols.ballot import FIRST_ANSWER, Ballot, CandidateAnswers
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import FinishedGame, Reply, play
from tests.support.games import load_protocol_text

FOUR_ANSWERS = CandidateAnswers(("Paris", "Rome", "Oslo", "Bern"), (1,))
THREE_RIGHT_ANSWERS = CandidateAnswers(("2", "3", "4", "5", "6"), (0, 1, 3))
SEEDS = range(400)


def load_answer_protocol(folder: Path, *stances: str, extra_yaml: str = "") -> Protocol:
    """Load a protocol: provers with these stances speak once, then a verifier decides."""
    provers = [f"  p{i}: {{role: prover, human_name: P{i}, stance: {stance}}}\n" for i, stance in enumerate(stances)]
    names = ", ".join(f"p{i}" for i in range(len(stances)))
    speak = ", ".join(f"p{i}: [main]" for i in range(len(stances)))
    text = (
        f"name: own\nanswers: listed\nagents:\n{''.join(provers)}  verifier: {{role: verifier, human_name: V}}\n"
        f"channels: {{main: {{members: [{names}, verifier]}}}}\n"
        f"cycle: [{{speak: {{{speak}}}}}, {{speak: {{verifier: [main]}}}}]\n{extra_yaml}"
    )
    return load_protocol_text(folder, text)


def play_with(protocol: Protocol, ballot: Ballot, texts: dict[str, str], form: VerdictForm = "answer") -> FinishedGame:
    """Play a game; each agent sends the same text in every turn."""
    game = play(protocol, seed=0, label=None, prover_stance=0, ballot=ballot)
    try:
        turn = next(game)
        while True:
            replies = {}
            for name in turn.speakers:
                parsed = parse_answer(
                    protocol, name, turn.round, texts[name], DecisionFormat(), form=form, answer_count=len(ballot.texts)
                )
                replies[name] = Reply(texts[name], parsed.messages, parsed.decision)
            turn = game.send(replies)
    except StopIteration as end:
        finished: FinishedGame = end.value
        return finished


# The order of answers, and assigned answers


def test_every_order_of_answers_is_equally_probable(tmp_path: Path) -> None:
    protocol = load_answer_protocol(tmp_path, "correct")
    firsts = Counter(protocol.ballot(FOUR_ANSWERS, seed).order[0] for seed in SEEDS)
    assert all(70 < count < 130 for count in firsts.values())
    assert len(firsts) == 4
    for seed in SEEDS:
        ballot = protocol.ballot(FOUR_ANSWERS, seed)
        assert sorted(ballot.order) == [0, 1, 2, 3]
        assert ballot.texts == tuple(FOUR_ANSWERS.texts[i] for i in ballot.order)
        assert [ballot.texts[i] for i in ballot.right or ()] == ["Rome"]


def test_shuffle_answers_false_keeps_the_order_of_the_dataset(tmp_path: Path) -> None:
    protocol = load_protocol("answer_debate", {"shuffle_answers": False})
    assert all(protocol.ballot(FOUR_ANSWERS, seed).texts == FOUR_ANSWERS.texts for seed in SEEDS)


def test_incorrect_prover_argues_for_every_wrong_answer_equally_often(tmp_path: Path) -> None:
    protocol = load_answer_protocol(tmp_path, "incorrect")
    ballots = [protocol.ballot(FOUR_ANSWERS, seed) for seed in SEEDS]
    argued = Counter(ballot.texts[ballot.assigned["p0"]] for ballot in ballots)
    assert argued.keys() == {"Paris", "Oslo", "Bern"}
    assert all(100 < count < 170 for count in argued.values())


def test_provers_with_equal_stances_argue_for_different_answers_if_possible(tmp_path: Path) -> None:
    protocol = load_answer_protocol(tmp_path, "incorrect", "incorrect", "incorrect", "correct", "correct")
    for seed in SEEDS:
        assigned = protocol.ballot(THREE_RIGHT_ANSWERS, seed).assigned
        assert len({assigned[name] for name in ("p0", "p1", "p2")}) == 2
        assert assigned["p3"] != assigned["p4"]


def test_letter_stance_names_the_answer_at_its_position(tmp_path: Path) -> None:
    ballot = load_answer_protocol(tmp_path, "B", "A").ballot(FOUR_ANSWERS, 5)
    assert ballot.assigned == {"p0": 1, "p1": 0}


def test_random_stances_are_exchanged_in_half_of_the_games() -> None:
    protocol = load_protocol("answer_debate")
    right = 0
    for seed in SEEDS:
        ballot = protocol.ballot(FOUR_ANSWERS, seed)
        argued = [ballot.assigned[name] in (ballot.right or ()) for name in ("prover0", "prover1")]
        assert sorted(argued) == [False, True]
        right += argued[0]
    assert 160 < right < 240


@pytest.mark.parametrize("stance", [0, 1])
def test_given_stance_applies_to_the_first_prover(stance: int) -> None:
    for name in ("answer_debate", "consultancy"):
        protocol = load_protocol(name).with_given_stance()
        for seed in SEEDS[:50]:
            ballot = protocol.ballot(FOUR_ANSWERS, seed, stance)
            first_is_right, *other_provers_are_right = (
                ballot.assigned[prover] in (ballot.right or ()) for prover in protocol.prover_names
            )
            assert first_is_right == bool(stance)
            assert all(is_right != first_is_right for is_right in other_provers_are_right)


# Verdicts

LETTER_VERDICTS = [
    ("I think so.\nDecision: B", 1),
    ("**Decision:** (c)", 2),
    ("decision: **B**.", 1),
    ("Decision: B) Rome", 1),
    ("Decision: A", 0),
    ("Decision: D is right", 3),
    ("Decision: B\nDecision: B", 1),
    ("Decision:\n\nB", 1),
    ("我的Decision：B。", 1),
]


@pytest.mark.parametrize(("text", "position"), LETTER_VERDICTS)
def test_letter_after_the_marker_is_a_verdict(text: str, position: int) -> None:
    assert parse_verdict(text, "decision:", 4, "answer") == AnswerVerdict(position)


@pytest.mark.parametrize(
    "text",
    [
        "Decision: E", "Decision: A or B", "Decision: B and C", "Decision: A/B", "Decision: accept", "Decision: Rome",
        "Decision: A\nDecision: B", "Decision:", "Decision: a good answer is B", "Decision: I think B", "Decision: 2",
    ],
)  # fmt: skip
def test_marker_without_one_clear_letter_is_an_invalid_decision(text: str) -> None:
    with pytest.raises(InvalidDecisionError):
        parse_verdict(text, "decision:", 4, "answer")


def test_answer_without_the_marker_is_no_verdict() -> None:
    assert parse_verdict("Is it A or B?", "decision:", 4, "answer") is None


DISTRIBUTIONS = [
    ("Decision: A 0.1, B 0.7, C 0.2", (0.1, 0.7, 0.2)),
    ("Decision: A: 10%, B: 70%, C: 20%", (0.1, 0.7, 0.2)),
    ("**Decision:** A=.1 B=.7 C=.2", (0.1, 0.7, 0.2)),
    ("Decision:\n- A - 0.1\n- B - 0.7\n- C - 0.2", (0.1, 0.7, 0.2)),
    ("Decision: C 20, A 10, B 70", (0.1, 0.7, 0.2)),
    ("Decision: A 0, B 1, C 0", (0.0, 1.0, 0.0)),
    ("Decision: A 0.333, B 0.333, C 0.333", (1 / 3, 1 / 3, 1 / 3)),
    ("Decision: A 1/3, B 1/3, C 1/3", (1 / 3, 1 / 3, 1 / 3)),
    ("Decision:\n| A | 0.1 |\n| B | 0.7 |\n| C | 0.2 |", (0.1, 0.7, 0.2)),
    ("Decision: A $0.1$, B $0.7$, C $0.2$", (0.1, 0.7, 0.2)),
    ("Decision: A 0,1, B 0,7, C 0,2", (0.1, 0.7, 0.2)),
    ("Decision: A 1e-1, B 0.7, C 2e-1", (0.1, 0.7, 0.2)),
    ("Decision: A 0.1, B 0.7, C 0.2\n\nOf these, A 2 is the weaker reading.", (0.1, 0.7, 0.2)),
]


@pytest.mark.parametrize(("text", "numbers"), DISTRIBUTIONS)
def test_distribution_has_a_probability_for_each_answer(text: str, numbers: tuple[float, ...]) -> None:
    verdict = parse_verdict(text, "decision:", 3, "distribution")
    assert verdict is not None
    assert verdict.numbers == pytest.approx(numbers)
    assert verdict.position == numbers.index(max(numbers))


@pytest.mark.parametrize(("count", "number"), [(12, "0.08"), (26, "0.04"), (26, "4%")])
def test_rounded_equal_probabilities_of_many_answers_are_a_distribution(count: int, number: str) -> None:
    text = "Decision: " + ", ".join(f"{letter} {number}" for letter in ascii_uppercase[:count])
    verdict = parse_verdict(text, "decision:", count, "distribution")
    assert verdict is not None
    assert verdict.numbers == pytest.approx([1 / count] * count)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Decision: A 0.5, B 0.5", "no number for C"),
        ("Decision: A 0.5, B 0.2, C 0.1", "sum to 0.8, not to 1"),
        ("Decision: A 0.5, B 0.3, C 0.2, D 0", "D is not an answer"),
        ("Decision: A 0.5, A 0.3, B 0.2, C 0", "A has two different numbers"),
        ("Decision: A 50%, B 0.3, C 0.2", "some probabilities are percentages"),
        ("Decision: B", "no number for A, B, C"),
        ("Decision: A -0.5, B 1, C 0.5", "no number for A"),
    ],
)
def test_incomplete_distribution_is_an_invalid_decision_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidDecisionError, match=reason):
        parse_verdict(text, "decision:", 3, "distribution")


def test_scores_need_not_sum_to_one_and_the_first_highest_is_chosen() -> None:
    assert parse_verdict("Decision: A 20, B 90, C 90", "decision:", 3, "scores") == AnswerVerdict(1, (20, 90, 90))
    with pytest.raises(InvalidDecisionError, match="a score is 120"):
        parse_verdict("Decision: A 20, B 120, C 90", "decision:", 3, "scores")


@pytest.mark.parametrize(
    ("text", "position"), [("Answer: B\nBecause.", 1), ("**Answer:** C", 2), ("My answer is B", None)]
)
def test_prover_states_its_answer_after_the_answer_marker(text: str, position: int | None) -> None:
    assert stated_answer(text, 3) == position


# Rewards


@pytest.mark.parametrize(
    ("letter", "rewards"),
    [
        ("B", {"p0": 1.0, "p1": 0.0, "verifier": 1.0}),
        ("A", {"p0": 0.0, "p1": 1.0, "verifier": -1.0}),
        ("D", {"p0": 0.0, "p1": 0.0, "verifier": -1.0}),
    ],
)
def test_right_verdict_pays_the_verifier_and_the_prover_that_argued_for_it(
    tmp_path: Path, letter: str, rewards: dict[str, float]
) -> None:
    ballot = Ballot(FOUR_ANSWERS.texts, (0, 1, 2, 3), frozenset({1}), {"p0": 1, "p1": 0})
    game = play_with(
        load_answer_protocol(tmp_path, "correct", "incorrect"),
        ballot,
        {"p0": "x", "p1": "y", "verifier": f"Decision: {letter}"},
    )
    assert game.decision == FIRST_ANSWER + "ABCD".index(letter)
    assert game.rounds[-1].rewards == rewards


def test_each_of_several_right_answers_is_right(tmp_path: Path) -> None:
    ballot = Ballot(("x", "y", "z"), (0, 1, 2), frozenset({0, 2}))
    for letter, reward in (("A", 1.0), ("B", -1.0), ("C", 1.0)):
        game = play_with(
            load_answer_protocol(tmp_path, "open"), ballot, {"p0": "Answer: B", "verifier": f"Decision: {letter}"}
        )
        assert game.rounds[-1].rewards == {"p0": float(letter == "B"), "verifier": reward}


def test_hidden_right_answers_leave_only_the_verifiers_reward_unknown(tmp_path: Path) -> None:
    ballot = Ballot(("x", "y"), (0, 1), None)
    game = play_with(load_answer_protocol(tmp_path, "open"), ballot, {"p0": "Answer: B", "verifier": "Decision: B"})
    assert game.rounds[-1].rewards == {"p0": 1.0}


def test_open_prover_must_state_its_answer_in_its_first_message(tmp_path: Path) -> None:
    protocol = load_answer_protocol(tmp_path, "open")
    with pytest.raises(InvalidDecisionError, match="the first message of p0 must state the answer"):
        parse_answer(protocol, "p0", 0, "It is Rome.", DecisionFormat(), answer_count=4)
    assert parse_answer(protocol, "p0", 2, "It is Rome.", DecisionFormat(), answer_count=4).decision == Decision.NONE


def test_force_guess_y_decides_for_a_right_answer(tmp_path: Path) -> None:
    protocol = load_answer_protocol(tmp_path, "correct", extra_yaml="parameters: {force_guess: y}\n")
    ballot = Ballot(FOUR_ANSWERS.texts, (0, 1, 2, 3), frozenset({2}), {"p0": 2})
    assert play_with(protocol, ballot, {"p0": "x", "verifier": "Decision: A"}).decision == FIRST_ANSWER + 2


# Protocol files


@pytest.mark.parametrize(("stance", "hint"), [("accept", ""), ("corect", "; did you mean 'correct'?"), ("AB", "")])
def test_invalid_stance_is_refused_at_its_position(tmp_path: Path, stance: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_answer_protocol(tmp_path, stance)
    (problem,) = caught.value.problems
    assert (problem.key, problem.place.line) == ("agents.p0.stance", 4)
    assert problem.message == (
        "a prover about listed answers needs the stance correct, incorrect, open, or a letter from A to Z, not "
        f"{stance!r}{hint}"
    )


def test_answer_stances_are_refused_without_listed_answers(tmp_path: Path) -> None:
    text = (
        "name: own\nagents:\n  p: {role: prover, human_name: P, stance: correct}\n"
        "  v: {role: verifier, human_name: V}\n"
        "channels: {main: {members: [p, v]}}\ncycle: [{speak: {p: [main]}}, {speak: {v: [main]}}]\n"
    )
    with pytest.raises(
        SpecError, match="'correct' is not one of accept, reject; correct, incorrect, open and letters need"
    ):
        load_protocol_text(tmp_path, text)


def test_inapplicable_parameters_are_refused() -> None:
    with pytest.raises(SpecError, match="zero stands for accept or reject, but answer_debate lists"):
        load_protocol("answer_debate", {"force_guess": "zero"})
    with pytest.raises(SpecError, match="nip lists no answers; remove"):
        load_protocol("nip", {"shuffle_answers": False})
