"""Planted leaks in templates, datasets, protocols and settings are detected before play; shipped files have none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner import SpecError
from runner.game.protocols.rounds import Round
from runner.rollouts.agents.agent import Agent, Observation
from runner.rollouts.agents.selectors import Selector
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.information_flow import flow_problems
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.spec.loader import Spec, load_spec
from runner.spec.warnings.catalog import check_warnings_of
from tests.support.hidden_passages import passages_spec
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file

PLAIN = "{{ question }} {{ accept }} {{ reject }} {% for header in headers %}{{ header }}{% endfor %}"
MERLIN = (
    "{name: own, agents: {p0: {role: prover, human_name: A, stance: reject%s},"
    " p1: {role: prover, human_name: B, stance: accept%s}, verifier: {role: verifier, human_name: V}},"
    " channels: {main: {members: [p0, p1, verifier]}, side: {members: [p1, verifier]}},"
    " cycle: [{speak: {p0: [main], p1: [%s]}, draw: one}, {speak: {verifier: [main]}}],"
    " parameters: {max_message_rounds: 2}}"
)
CHAIN_PROTOCOL = (
    "{name: own, agents: {prover: {role: prover, human_name: A, headers: {main: 'M:', attic: 'X:'}},"
    " helper: {role: prover, human_name: H}, verifier: {role: verifier, human_name: V}},"
    " channels: {main: {members: [prover, verifier]}, attic: {members: [prover, helper]}},"
    " cycle: [%s], parameters: {max_message_rounds: %d}}"
)
NIP = "{name: own, extends: nip, parameters: {max_message_rounds: 5}}"
LABEL_WARNING = "reveals the label"


def make_rows(size: int = 32) -> list[dict[str, Any]]:
    """Return rows ordered by label, with columns that reveal the labels and columns that do not."""
    result = []
    for index in range(size):
        label = int(index >= size // 2)
        word = ("wrong", "right")[label]
        result.append(
            {
                "id": f"p{index}", "label": label, "question": f"What is {index} % 5, and what is {index * 7} % 3?",
                "solution": f"It is {index % 5}.", "gold": label, "gold_word": word, "is_bad": not label,
                "pass_rate": index / size, "errors": 5 - 4 * label + (index % 2), "row": index,
                "task": f"task-{index}-{word}", "path": f"data/{word}/{index}.py", "topic": f"{word} {index % 3}",
                "tests": [f"case {index}", f"expected {word}"], "nested": [["x"], [label]],
                "note": f"The reviewers found this {word} in round {index}.", "parity": index % 2,
                "length": 40 + index % 7, "author": f"author {index % 3}",
            }
        )  # fmt: skip
    return result


def load_spec_with_templates(
    folder: Path,
    protocol: str,
    changes: Mapping[str, str],
    overrides: Sequence[str] = (),
    size: int = 32,
) -> Spec:
    """Load a spec of a protocol file, whose agents have `PLAIN` templates except for `changes`."""
    (folder / "own.yaml").write_text(protocol)
    (folder / "prompts").mkdir()
    path = spec_file(folder, protocol=None, agents=None, prompts="prompts")
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows(size)))
    names = ["p0", "p1"] if "p0:" in protocol else ["prover", "helper"] if "helper:" in protocol else ["prover"]
    names.append("verifier")
    for name in (*names, "verifier.last_round"):
        (folder / "prompts" / f"{name}.jinja").write_text(changes.get(name, PLAIN))
    if "verifier.confidence" in changes:
        (folder / "prompts" / "verifier.confidence.jinja").write_text(changes["verifier.confidence"])
    agents = {name: {"model": "m"} for name in names}
    spec = {**json.loads(path.read_text()), "protocol": {"use": "own.yaml"}, "agents": agents}
    path.write_text(json.dumps(spec))
    return load_spec(path, overrides)


COLUMN_LEAKS: list[tuple[str, Mapping[str, str], list[str]]] = [
    ("a copy of the label", {"verifier": PLAIN + "{{ gold }}"}, []),
    ("a copy in words", {"verifier": PLAIN + "{{ gold_word }}"}, []),
    ("the opposite of the label", {"verifier": PLAIN + "{{ is_bad }}"}, []),
    ("a condition on the label", {"verifier": PLAIN + "{% if gold == 1 %}Be brief.{% endif %}"}, []),
    ("white space", {"verifier": PLAIN + "{{ ' ' if gold else '' }}"}, []),
    ("a filter", {"verifier": PLAIN + "{{ gold_word | upper }}"}, []),
    ("a length", {"verifier": PLAIN + "{{ (gold_word + 's') | length }}"}, []),
    ("a part of a list", {"verifier": PLAIN + "{{ tests[1] }}"}, []),
    ("a loop over a list", {"verifier": PLAIN + "{% for test in tests %}{{ test }}{% endfor %}"}, []),
    ("a number above a threshold", {"verifier": PLAIN + "{{ pass_rate }}"}, []),
    ("a count below a threshold", {"verifier": PLAIN + "{{ errors }}"}, []),
    ("the order of the file", {"verifier": PLAIN + "{{ row }}"}, []),
    ("the name of the task", {"verifier": PLAIN + "{{ task }}"}, []),
    ("a folder in a path", {"verifier": PLAIN + "{{ path }}"}, []),
    ("a category", {"verifier": PLAIN + "{{ topic }}"}, []),
    ("a remark in prose", {"verifier": PLAIN + "{{ note }}"}, []),
    ("the last message only", {"verifier.last_round": "Decide. {{ gold_word }}"}, []),
    ("the last question only", {"verifier": PLAIN + "{% if questions_left == 0 %}{{ gold }}{% endif %}"}, []),
    ("the request for a confidence", {"verifier.confidence": "{{ confidence_marker }}{{ gold }}"},
     ["verdict.confidence=stated"]),
    ("the prover's prompt", {"prover": PLAIN + "{{ gold_word }}"}, []),
    ("a renamed copy", {"verifier": PLAIN + "{{ hint }}"}, ["dataset.columns.hint=gold_word"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "overrides"), [case[1:] for case in COLUMN_LEAKS], ids=[c[0] for c in COLUMN_LEAKS]
)
def test_warning_locates_a_column_that_reveals_the_label(
    tmp_path: Path, changes: Mapping[str, str], overrides: list[str]
) -> None:
    (line,) = [
        line
        for line in check_warnings_of(load_spec_with_templates(tmp_path, NIP, changes, overrides))
        if LABEL_WARNING in line
    ]
    ((template, text),) = changes.items()
    column = line.split("the column '")[1].split("'")[0]
    assert line.startswith(f"{tmp_path / 'prompts' / template}.jinja:1:{text.index(column, len(PLAIN)) + 1}: " if (
        text.startswith(PLAIN)
    ) else f"{tmp_path / 'prompts' / template}.jinja:1:")  # fmt: skip


@pytest.mark.parametrize("name", ["label", "y"])
def test_template_that_shows_the_label_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="the label must not reach a prompt"):
        load_spec_with_templates(tmp_path, NIP, {"verifier": PLAIN + f"{{{{ {name} }}}}"})


STANCE_LEAKS: list[tuple[str, str, Mapping[str, str], list[str], str]] = [
    ("the verifier's template", NIP, {"verifier": PLAIN + "{{ stance }}"}, ["protocol.randomize_prover_stance=true"],
     "verifier.jinja:1:96: verifier learns which verdict the provers argue for"),
    ("its last message", NIP, {"verifier.last_round": "{% if stance == 'accept' %} {% endif %}Decide."},
     ["protocol.randomize_prover_stance=true"], "verifier.last_round.jinja:1:7: verifier learns which verdict"),
    ("games with both stances", NIP, {"verifier": PLAIN + "{{ stance }}", "prover": PLAIN + "{{ stance }}"},
     ["stances=both"], "verifier learns which verdict"),
    ("the names of the drawn", MERLIN % ("", "", "main"), {}, [], "verifier can tell which of p0, p1 was drawn"),
    ("one name", MERLIN % (", anonymous: true", "", "main"), {}, [], "verifier can tell which of p0, p1 was drawn"),
    ("the other name", MERLIN % ("", ", anonymous: true", "main"), {}, [], "own.yaml:1:275: verifier can tell"),
    ("two channels", MERLIN % (", anonymous: true", ", anonymous: true", "main, side"), {}, [],
     "verifier can tell which of p0, p1 was drawn"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "changes", "overrides", "expected"), [c[1:] for c in STANCE_LEAKS], ids=[c[0] for c in STANCE_LEAKS]
)
def test_warning_names_a_verifier_that_learns_the_stance(
    tmp_path: Path, protocol: str, changes: Mapping[str, str], overrides: list[str], expected: str
) -> None:
    if "main, side" in protocol:
        protocol = protocol.replace("human_name: B", "human_name: B, headers: {main: 'M:', side: 'S:'}")
    lines = check_warnings_of(load_spec_with_templates(tmp_path, protocol, changes, overrides))
    assert [expected in line for line in lines].count(True) == 1, lines


PROTOCOL_FAULTS: list[tuple[str, str, int, str]] = [
    ("a prover without a step", "{speak: {prover: [main]}}, {speak: {verifier: [main]}}", 2,
     "own.yaml:1:97: helper does not speak in any step of the cycle"),
    ("a prover whose step comes too late", ("{speak: {prover: [main]}}, {speak: {verifier: [main]}}, "
     "{speak: {helper: [attic]}}"), 2, "helper does not speak in the 2 rounds of a game"),
    ("a step that comes too late", ("{speak: {prover: [main], helper: [attic]}}, {speak: {verifier: [main]}}, "
     "{speak: {prover: [main]}}"), 2, "step 3 of the cycle, in which prover would speak, is never played"),
    ("a channel that nobody uses", "{speak: {prover: [main, attic]}}, {speak: {verifier: [main]}}", 2,
     "what prover says in attic cannot influence a decision"),
    ("a verifier that must be drawn", ("{speak: {helper: [attic]}}, {speak: {prover: [main], verifier: [main]}, "
     "draw: one}"), 4, "verifier cannot decide in games in which another speaker is drawn"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cycle", "rounds", "expected"), [case[1:] for case in PROTOCOL_FAULTS], ids=[c[0] for c in PROTOCOL_FAULTS]
)
def test_warning_names_a_protocol_part_without_effect(tmp_path: Path, cycle: str, rounds: int, expected: str) -> None:
    lines = check_warnings_of(load_spec_with_templates(tmp_path, CHAIN_PROTOCOL % (cycle, rounds), {}))
    assert [expected in line for line in lines].count(True) == 1, lines


def test_warning_names_agents_with_the_same_name_unless_one_of_them_is_drawn(tmp_path: Path) -> None:
    cycle = "{speak: {helper: [attic]}}, {speak: {prover: [main]}}, {speak: {verifier: [main]}}"
    protocol = CHAIN_PROTOCOL % (cycle, 3)
    same_name = protocol.replace("human_name: H", "human_name: A")
    drawn = (MERLIN % ("", "", "main")).replace("human_name: B", "human_name: A")
    message = "own.yaml:1:97: prover and helper have the same human_name 'A'; give helper a name of its own"
    for name, text, expected in (("same", same_name, [message]), ("all", protocol, []), ("drawn", drawn, [])):
        (tmp_path / name).mkdir()
        lines = check_warnings_of(load_spec_with_templates(tmp_path / name, text, {}))
        assert [line.rpartition("/")[2] for line in lines if "human_name" in line] == expected


def test_verifier_that_may_decide_in_no_round_is_an_error(tmp_path: Path) -> None:
    protocol = CHAIN_PROTOCOL % (
        "{speak: {prover: [main], helper: [attic]}}, {speak: {verifier: [main]}, may_decide: false}",
        4,
    )
    with pytest.raises(SpecError, match="the verifier may decide in no round"):
        load_spec_with_templates(tmp_path, protocol, {})


def test_engine_bug_that_leaks_the_label_into_a_prompt_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_spec_with_templates(tmp_path, NIP, {})
    estimate_costs(Plan(spec))

    observation = Job.observation

    def leak_label(job: Job, round_: int, rounds: Sequence[Round]) -> Observation:
        original = observation(job, round_, rounds)
        question = f"{original.columns['question']}{' ' * int(job.datapoint.label or 0)}"
        return replace(original, columns={**original.columns, "question": question})

    monkeypatch.setattr(Job, "observation", leak_label)
    with pytest.raises(SpecError) as error:
        estimate_costs(Plan(spec))
    verifier, prover = sorted(error.value.problems, key=lambda problem: problem.key, reverse=True)
    assert (verifier.key, prover.key) == ("agents.verifier", "agents.prover")
    assert Path(verifier.place.file).name == "verifier.jinja"
    assert "verifier's prompt changes if only the label of a datapoint changes: p0, p2" in verifier.message


PRIVATE_NOTE_PROTOCOL = (
    "{name: own, extends: nip, parameters: {max_message_rounds: 5}, private: {note: [prover]},"
    " quotes: {source: note, max_words_per_message: 9}}"
)


def test_template_that_shows_a_private_column_to_another_agent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="this agent must not see the column"):
        load_spec_with_templates(
            tmp_path,
            PRIVATE_NOTE_PROTOCOL,
            {"prover": PLAIN + "{{ note }}", "verifier": PLAIN + "{{ note }}"},
        )


def test_engine_bug_that_leaks_a_private_column_into_a_prompt_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_spec_with_templates(tmp_path, PRIVATE_NOTE_PROTOCOL, {"prover": PLAIN + "{{ note }}"})
    assert list(flow_problems(Plan(spec))) == []
    instructions = Agent.instructions

    def leak_length(agent: Agent, suffix: str, observation: Observation, round_: int) -> str:
        text = instructions(agent, suffix, observation, round_)
        return text if len(observation.columns["note"]) < 60 else text + " "

    monkeypatch.setattr(Agent, "instructions", leak_length)
    (problem,) = flow_problems(Plan(spec))
    assert problem.key == "agents.verifier"
    assert "verifier's prompt changes if only the column 'note' of a datapoint changes: p0, p" in problem.message


SELECTORS: dict[str, tuple[str, str, str]] = {
    "preference": ("p0.preference", "agents.p0", "p0.preference.jinja"),
    "critic": ("p0.critic", "agents.p0", "p0.critic.jinja"),
    "judge": ("p0.judge", "agents.p0", "judge.judge.jinja"),
    "function": ("p0.function", "agents.p0", "p0.function.py"),
}
"""The name, key and file in a message about each selector."""


def make_selector_plan(folder: Path, by: str, templates: Mapping[str, str] | None = None) -> Plan:
    """Return a plan that selects among p0's candidates, where only p1 sees the column `secret`."""
    rules = {
        "cycle": [{"speak": {"p0": ["main"]}, "best_of": {"n": 2, "by": by}}, {"speak": {"judge": ["main"]}}],
        "parameters": {"max_message_rounds": 2, "min_message_rounds": 2},
        "private": {"secret": ["p1"]},
    }
    path = passages_spec(folder, rules, size=8, models={"m": {"logprobs": True, "top_logprobs": 5}})
    points = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    with_secret = [{**point, "secret": f"secret of {point['id']}"} for point in points]
    (folder / "data.jsonl").write_text("".join(json.dumps(point) + "\n" for point in with_secret))
    for name, text in (templates or {}).items():
        (folder / "prompts" / name).write_text(text)
    return Plan(load_spec(path))


@pytest.mark.parametrize("by", SELECTORS)
def test_engine_bug_that_leaks_a_private_column_to_a_selector_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    plan = make_selector_plan(tmp_path, by)
    assert list(flow_problems(plan)) == []
    prompt = Selector.prompt

    def leak(selector: Selector, observation: Observation) -> list[Any]:
        return [*prompt(selector, observation), {"role": "user", "content": observation.columns["secret"]}]

    monkeypatch.setattr(Selector, "prompt", leak)
    name, key, file = SELECTORS[by]
    (problem,) = flow_problems(plan)
    assert (problem.key, Path(problem.place.file).name) == (key, file)
    assert f"{name}'s prompt changes if only the column 'secret' of a datapoint changes: d0, d" in problem.message


@pytest.mark.parametrize("by", SELECTORS)
def test_engine_bug_that_leaks_the_label_to_a_selector_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    plan, observation = make_selector_plan(tmp_path, by), Job.observation

    def leak_label(job: Job, round_: int, rounds: Sequence[Round]) -> Observation:
        original = observation(job, round_, rounds)
        claim = f"{original.columns['claim']}{' ' * int(job.datapoint.label or 0)}"
        return replace(original, columns={**original.columns, "claim": claim})

    monkeypatch.setattr(Job, "observation", leak_label)
    name, key, file = SELECTORS[by]
    message = f"{name}'s prompt changes if only the label of a datapoint changes: d0, d"
    (problem,) = [problem for problem in flow_problems(plan) if message in problem.message]
    assert (problem.key, Path(problem.place.file).name) == (key, file)


def test_selector_template_with_a_private_column_is_an_error(tmp_path: Path) -> None:
    for by, name in (("preference", "p0.preference"), ("critic", "p0.critic"), ("judge", "judge.judge")):
        with pytest.raises(SpecError, match=rf"{name}.jinja:1:.*must not see the column"):
            make_selector_plan(tmp_path / by, by, {f"{name}.jinja": "{{ secret }}"})


def make_answer_row(i: int, right: int) -> dict[str, Any]:
    """Return a row with columns that reveal the right answer, and columns that do not."""
    answers = [f"{i + k} or so" for k in range(3)]
    return {
        "id": f"p{i}", "label": right + 1, "question": f"What is {i} + 1?", "answers": answers,
        "solution": answers[right], "hint": f"Think of {answers[right].upper()}!", "letter": "ABC"[right],
        "number": right + 1, "wrong": [answer for answer in answers if answer != answers[right]],
        "code": ("x", "y", "z")[right], "first": answers[0], "level": "A", "source": i % 4, "all": answers,
    }  # fmt: skip


ANSWER_PROTOCOL = (
    "{name: own, extends: consultancy, agents: {prover: {stance: open},"
    " verifier: {last_round_message: false}}, fixed: [randomize_prover_stance]}"
)


def load_answer_spec(
    folder: Path, protocol: str = ANSWER_PROTOCOL, *, shown_column: str = "", varied: bool = False
) -> Spec:
    """Load a spec about listed answers. The second answer is right, or a different one for each datapoint if `varied`.

    The prompts of `prover` and `verifier` also show the column `shown_column`.
    """
    (folder / "own.yaml").write_text(protocol)
    (folder / "prompts").mkdir()
    for name in ("prover", "prover0", "prover1", "verifier", "verifier.last_round"):
        placeholder = f"{{{{ {shown_column} }}}}" if shown_column and name in ("prover", "verifier") else ""
        text = f"{{{{ question }}}} {{% for item in answers %}}{{{{ item }}}}{{% endfor %}} {placeholder}"
        (folder / "prompts" / f"{name}.jinja").write_text(text)
    path = spec_file(folder, protocol=None, prompts="prompts", fine_tune=None)
    points = [make_answer_row(i, i % 3 if varied else 1) for i in range(24)]
    (folder / "data.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    spec = json.loads(path.read_text())
    dataset = {"path": "data.jsonl", "answers": "answers"}
    provers = ("prover0", "prover1") if "answer_debate" in protocol else ("prover",)
    agents = {name: {"model": "m"} for name in (*provers, "verifier")}
    path.write_text(json.dumps({**spec, "protocol": {"use": "own.yaml"}, "dataset": dataset, "agents": agents}))
    return load_spec(path)


def test_engine_bug_that_leaks_the_right_answer_into_a_prompt_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_answer_spec(tmp_path)
    assert list(flow_problems(Plan(spec))) == []
    observation = Job.observation

    def leak_answer(job: Job, round_: int, rounds: Sequence[Round]) -> Observation:
        original = observation(job, round_, rounds)
        assert job.datapoint.answers is not None
        return replace(original, columns={**original.columns, "question": f"Hint: {job.datapoint.answers.right}"})

    monkeypatch.setattr(Job, "observation", leak_answer)
    assert {problem.key for problem in flow_problems(Plan(spec))} == {"agents.prover", "agents.verifier"}


@pytest.mark.parametrize("column", ["solution", "hint", "letter", "number", "wrong", "code"])
def test_warning_names_a_column_that_reveals_the_right_answer(tmp_path: Path, column: str) -> None:
    spec = load_answer_spec(tmp_path, shown_column=column, varied=True)
    lines = [line for line in check_warnings_of(spec) if "reveals the right answer" in line]
    assert [
        f"{agent} sees the column {column!r}" in line for agent, line in zip(("prover", "verifier"), lines, strict=True)
    ] == [True, True]


@pytest.mark.parametrize("column", ["first", "level", "source", "all", "question"])
def test_column_unrelated_to_the_right_answer_gives_no_leak_warning(tmp_path: Path, column: str) -> None:
    for varied in (False, True):
        folder = tmp_path / str(varied)
        folder.mkdir()
        spec = load_answer_spec(folder, shown_column=column, varied=varied)
        assert not [line for line in check_warnings_of(spec) if "reveals" in line]


ANONYMOUS = "agents: {prover0: {anonymous: true}, prover1: {anonymous: true}}"
ONE_PROVER_DRAWN = (
    "cycle: [{speak: {prover0: [main], prover1: [main]}, draw: one}, {speak: {verifier: [main]}}], " + ANONYMOUS
)


@pytest.mark.parametrize(
    ("rules", "provers"),
    [
        ("extends: answer_debate, parameters: {randomize_prover_stance: false}", ["prover0", "prover1"]),
        ("extends: answer_debate, agents: {prover1: {stance: open}}", ["prover0"]),
        ("extends: answer_debate, parameters: {randomize_prover_stance: false}, " + ANONYMOUS, ["prover0", "prover1"]),
        ("extends: consultancy, parameters: {randomize_prover_stance: false}", ["prover"]),
        ("extends: answer_debate", []),
        ("extends: consultancy", []),
        ("extends: answer_debate, parameters: {randomize_prover_stance: false}, " + ONE_PROVER_DRAWN, []),
    ],
)  # fmt: skip
def test_warning_names_a_prover_that_always_argues_for_a_right_or_a_wrong_answer(
    tmp_path: Path, rules: str, provers: list[str]
) -> None:
    lines = [
        line
        for line in check_warnings_of(load_answer_spec(tmp_path, f"{{name: own, {rules}}}"))
        if "in every game" in line
    ]
    assert [line.split(": ")[1].split()[0] for line in lines] == provers


PRIVATE_COLUMN_PROTOCOL = "{name: own, extends: nip, parameters: {max_message_rounds: 5}, private: {%s: [prover]}}"


@pytest.mark.parametrize(
    ("private", "shown_column", "expected"),
    [("note", "copy", 1), ("note", "longer", 1), ("solution", "short", 1), ("note", "author", 0)],
)
def test_warning_names_a_column_that_contains_the_text_of_a_private_column(
    tmp_path: Path, private: str, shown_column: str, expected: int
) -> None:
    spec = load_spec_with_templates(
        tmp_path, PRIVATE_COLUMN_PROTOCOL % private, {"prover": PLAIN + f"{{{{ {private} }}}}"}
    )
    copied = [
        {**row, "copy": row["note"], "longer": f"See: {row['note']}", "short": row["solution"]} for row in make_rows()
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in copied))
    (tmp_path / "prompts" / "verifier.jinja").write_text(PLAIN + f"{{{{ {shown_column} }}}}")
    assert spec.path is not None
    lines = [line for line in check_warnings_of(load_spec(spec.path)) if "has the text of" in line]
    assert len(lines) == expected
    assert all(
        f"verifier sees the column {shown_column!r}, which has the text of {private!r}" in line for line in lines
    )


def test_at_least_thirty_leaks_are_planted() -> None:
    assert len(COLUMN_LEAKS) + len(STANCE_LEAKS) + len(["label", "y"]) >= 30


@pytest.mark.parametrize("column", ["parity", "length", "author", "solution"])
def test_column_unrelated_to_the_label_gives_no_leak_warning(tmp_path: Path, column: str) -> None:
    spec = load_spec_with_templates(tmp_path, NIP, {"verifier": PLAIN + f"{{{{ {column} }}}}"})
    assert not [line for line in check_warnings_of(spec) if LABEL_WARNING in line]


def test_label_copy_in_a_small_dataset_gives_no_leak_warning(tmp_path: Path) -> None:
    spec = load_spec_with_templates(tmp_path, NIP, {"verifier": PLAIN + "{{ gold }}"}, size=14)
    assert not [line for line in check_warnings_of(spec) if LABEL_WARNING in line]


def test_stance_that_is_the_same_in_all_games_gives_no_leak_warning(tmp_path: Path) -> None:
    spec = load_spec_with_templates(tmp_path, NIP, {"verifier": PLAIN + "{{ stance }}"})
    assert not [line for line in check_warnings_of(spec) if "learns" in line]


@pytest.mark.parametrize("path", sorted((ROOT / "specs").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_specs_have_no_leaks_and_no_faults(path: Path) -> None:
    lines = [line for line in check_warnings_of(load_spec(path)) if "wasted" not in line and "not set" not in line]
    assert lines == []


def test_check_prints_the_worst_case_number_of_calls(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, retry={"invalid_response": {"attempts": 3}})
    done = nip_run_here("check", path.name, cwd=tmp_path)
    assert "at most 36 calls, if each answer is unusable until its last attempt" in done.stdout
    document = json.loads(nip_run_here("check", path.name, "--json", cwd=tmp_path).stdout)
    assert document[0]["max_calls"] == 36 if isinstance(document, list) else document["max_calls"] == 36
