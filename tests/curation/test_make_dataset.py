"""`nip-run make-dataset`: the choice of programs, the written files, and repeated commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunError, SpecError, UsageError
from runner.base.storage.fetched_markers import MARKER
from runner.curation.benchmark_formats import APPS_IMPORTS, ProgramFormat, parse_tests
from runner.curation.generation.recipe import load_recipe
from runner.curation.program_tester import ProgramTester
from runner.curation.program_tests import Program, is_correct
from runner.curation.sandbox.mechanisms import Mechanism
from tests.support.files import parquet_rows
from tests.support.kills import kill_at_random_moments
from tests.support.made_datasets import (
    answer_with,
    make_here,
    planted_rules,
    programs_by_label,
    read_lines,
    run_author,
    write_problems,
    write_recipe,
)
from tests.support.paths import ROOT
from tests.support.processes import nip_run
from tests.support.servers.client import LoopbackServer, run_loopback_server

DATA = ROOT / "specs" / "data"
QUESTION = "Read n, then n integers on one line. Print the sum of the even ones."
ORIGINAL = """\
n = int(input())
numbers = list(map(int, input().split()))
total = 0
for number in numbers:
    if number % 2 == 0:
        total += number
print(total)
"""
SECOND_SOLUTION = "input()\nprint(sum(x for x in map(int, input().split()) if x % 2 == 0))\n"
PROBLEM = {
    "id": "sum-even", "question": QUESTION, "solutions": [ORIGINAL, SECOND_SOLUTION],
    "input_output": {
        "inputs": ["3\n1 2 4\n", "2\n-2 -4\n", "1\n7\n", "4\n0 0 2 3\n", "2\n10 11\n", "2\n8 -8\n"],
        "outputs": ["6\n", "-6\n", "0\n", "2\n", "10\n", "0\n"],
    },
}  # fmt: skip


def edit_original(old: str, new: str) -> str:
    assert old in ORIGINAL
    return ORIGINAL.replace(old, new)


SUBTLE_BUG = edit_original("% 2 == 0", "% 2 == 0 and number > -3")
RARER_BUG = edit_original("% 2 == 0", "% 2 == 0 and number != -4")
"""A bug that also fails one test, but fewer fuzzed inputs."""
BUGS = {
    SUBTLE_BUG: None,
    RARER_BUG: None,
    ORIGINAL: "the program is the given one",
    ORIGINAL.replace("\n", "  # done\n", 1): "the program is the same as an earlier one",
    edit_original("total", "amount"): "only names, layout, comments or docstrings differ from the given program",
    edit_original("print(total)", "print(total"): "the program does not compile",
    edit_original("number % 2 == 0", "not number % 2"): "no input shows a difference from the given program",
    edit_original("print(total)", "print(total + 1)"): "it fails too many tests or fuzzed inputs",
    edit_original("total += number", "total += number // number * number"): "it fails only by exceptions or limits",
    "import os\n"
    + edit_original("print(total)", "print(total if hash('a') % 2 else 1)"): "the verdicts of the program differ "
    "between repetitions",
    "print('something else entirely, which is much longer than the given program was, and wrong, too')\n"
    * 3: "too much of the program is changed",
}
REFACTORINGS = {
    edit_original("number % 2 == 0", "not number % 2"): None,
    edit_original("total += number", "total = total + number"): None,
    edit_original("% 2 == 0", "% 2 == 1"): "the refactored program fails a test",
    edit_original("% 2 == 0", "% 2 == 0 and number != 12"): None,
}


@pytest.fixture
def author(tmp_path: Path) -> Any:
    rules = planted_rules(QUESTION, BUGS, [*REFACTORINGS, *[ORIGINAL] * (len(BUGS) - len(REFACTORINGS))])
    with run_author(tmp_path, rules) as server:
        write_problems(tmp_path / "problems.jsonl", PROBLEM)
        write_recipe(tmp_path, server, versions=len(BUGS))
        yield server


@pytest.mark.gate
def test_only_subtle_and_repeatable_bugs_are_used(tmp_path: Path, author: LoopbackServer, mechanism: Mechanism) -> None:
    counts = make_here(
        tmp_path / "recipe.yaml", tmp_path / "out", mechanism, "tests.repetitions=5", "tests.fuzzed_inputs=16"
    )
    expected: dict[str, int] = {}
    for reason in filter(None, BUGS.values()):
        expected[reason] = expected.get(reason, 0) + 1
    assert counts["programs_rejected"]["bug"] == expected
    assert counts["programs_rejected"]["refactoring"]["the refactored program fails a test"] == 1
    by_label = programs_by_label(tmp_path / "out")
    assert by_label[0] == [RARER_BUG]
    assert len(by_label[1]) == 1
    assert by_label[1][0] in REFACTORINGS
    (details,) = [row for row in read_lines(tmp_path / "out" / "details.jsonl") if row["label"] == 0]
    assert details["counterexample"].startswith("2\n-2 -4\n: expected '-6\\n', but got '-2\\n'")
    assert (details["failing_tests"], details["edit_first_line"]) == (pytest.approx(1 / 6), 5)
    assert counts["cost_usd"] > 0
    assert author.requests == 2 * len(BUGS)


@pytest.mark.gate
def test_repeated_command_makes_no_requests_and_writes_identical_files(
    tmp_path: Path, author: LoopbackServer, mechanism: Mechanism
) -> None:
    recipe, settings = tmp_path / "recipe.yaml", ("tests.fuzzed_inputs=3", "tests.repetitions=1")
    make_here(recipe, tmp_path / "out", mechanism, *settings)
    requests, before = author.requests, read_dataset_files(tmp_path / "out")
    with (tmp_path / "out" / "verdicts.jsonl").open("ab") as file:
        file.write(b'{"key": "incomplete')  # as after a kill
    (tmp_path / "out" / "data.jsonl").unlink()
    make_here(recipe, tmp_path / "out", mechanism, *settings)
    assert author.requests == requests
    assert read_dataset_files(tmp_path / "out") == before
    # The folder has a recipe that makes the same dataset, with the same run.
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    make_here(tmp_path / "copy" / "recipe.yaml", tmp_path / "again", mechanism, results=tmp_path / "results")
    assert author.requests == requests
    assert read_dataset_files(tmp_path / "again") == before
    (tmp_path / "out" / "verdicts.jsonl").write_text("[]\n", "utf-8")
    with pytest.raises(RunError, match=r"verdicts\.jsonl:1: not a verdict"):
        make_here(recipe, tmp_path / "out", mechanism, *settings)


@pytest.mark.gate
def test_proposals_are_labeled_by_tests_and_balanced_within_problems(tmp_path: Path, mechanism: Mechanism) -> None:
    unsolved_problem = {**PROBLEM, "id": "other", "question": "The other problem, which has no solution."}
    answers = [
        answer_with(program)
        for program in (ORIGINAL, SUBTLE_BUG, SECOND_SOLUTION, edit_original("0:", "1:"), "print(0)\n")
    ]
    rules = [(["other problem"], [answer_with(SUBTLE_BUG)]), ([QUESTION], answers)]
    with run_author(tmp_path, rules) as server:
        write_problems(tmp_path / "problems.jsonl", PROBLEM, {**unsolved_problem, "solutions": None})
        recipe = write_recipe(tmp_path, server, make="proposals", versions=len(answers), format="parquet")
        counts = make_here(recipe, tmp_path / "out", mechanism)
    rows = parquet_rows(tmp_path / "out" / "data.parquet")
    assert sorted((row["label"], row["solution"]) for row in rows) == [
        (0, SUBTLE_BUG),
        (0, edit_original("0:", "1:")),
        (1, SECOND_SOLUTION),
        (1, ORIGINAL),
    ]
    assert counts["problems_not_used"] == {"all proposals that can be used are right, or all are wrong": 1}
    assert {row["problem"] for row in rows} == {"sum-even"}


@pytest.mark.gate
def test_bug_found_only_by_fuzzed_inputs_needs_a_second_solution(tmp_path: Path, mechanism: Mechanism) -> None:
    hidden_bug = edit_original("% 2 == 0", "% 2 == 0 and number < 12")  # no test has an even number above 11
    rules = planted_rules(QUESTION, [hidden_bug], [edit_original("total += number", "total = total + number")])
    single_solution_problem = {**PROBLEM, "id": "alone", "solutions": [ORIGINAL]}
    with run_author(tmp_path, rules) as server:
        write_problems(tmp_path / "problems.jsonl", PROBLEM, single_solution_problem)
        counts = make_here(write_recipe(tmp_path, server, versions=1), tmp_path / "out", mechanism)
    assert counts["programs_rejected"]["bug"] == {
        "it differs only on fuzzed inputs, which no second solution confirms": 1
    }
    assert {row["problem"] for row in read_lines(tmp_path / "out" / "data.jsonl")} == {"sum-even"}
    assert programs_by_label(tmp_path / "out")[0] == [hidden_bug]


def test_all_errors_of_a_recipe_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "bug.jinja").write_text("{{ solution }} {{ solutoin }}", "utf-8")
    (tmp_path / "recipe.yaml").write_text(
        "name: x\ndataset: {path: missing.jsonl, balance: label}\ntests: {format: apps, checker: none.py}\n"
        "model: {model: m}\nprompts: prompts\nsplits: {train: 0.5, test: 0.4}\n",
        "utf-8",
    )
    with pytest.raises(SpecError) as caught:
        load_recipe(tmp_path / "recipe.yaml")
    messages = " ".join(problem.message for problem in caught.value.problems)
    for part in ("no variable 'solutoin'", "no file 'missing.jsonl'", "none.py", "add up to 0.9", "always balanced"):
        assert part in messages
    with pytest.raises(SpecError, match="versions: 0 is too small"):
        load_recipe(tmp_path / "recipe.yaml", ["versions=0"])


def test_problems_without_a_right_solution_are_an_error_before_any_request(
    tmp_path: Path, mechanism: Mechanism
) -> None:
    with run_loopback_server(LoopbackServer, "author") as server:
        write_problems(tmp_path / "problems.jsonl", {**PROBLEM, "solutions": ["print(1)"]})
        recipe = write_recipe(tmp_path, server)
        with pytest.raises(UsageError, match=r"no problem of problems\.jsonl has a given solution that passes"):
            make_here(recipe, tmp_path / "out", mechanism)
        write_problems(tmp_path / "problems.jsonl", {**PROBLEM, "input_output": "{"})
        with pytest.raises(SpecError, match="no row is a problem with tests in the format 'apps': sum-even"):
            make_here(recipe, tmp_path / "out", mechanism)
        assert server.requests == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "variables", "results"),
    [
        ((), {}, "out/generation/results"),
        (("--results", "results"), {}, "results"),
        ((), {"NIP_RUN_RESULTS": "results"}, "results"),
    ],
)
def test_run_is_in_the_given_results_folder_or_else_in_the_dataset(
    tmp_path: Path, author: LoopbackServer, options: tuple[str, ...], variables: dict[str, Any], results: str
) -> None:
    command = ("make-dataset", "recipe.yaml", "-q", "-o", "out", "tests.fuzzed_inputs=0", "tests.repetitions=1")
    nip_run(*command, *options, cwd=tmp_path, **variables)
    assert [path.parent.parent.parent for path in tmp_path.rglob("manifest.json")] == [tmp_path / results]


@pytest.mark.full
def test_twenty_kills_lose_no_answers_and_change_no_files(tmp_path: Path) -> None:
    problems = [{**PROBLEM, "id": f"p{n}", "question": f"{QUESTION} (Problem {n}.)"} for n in range(40)]
    rules = planted_rules("Problem", [SUBTLE_BUG], [edit_original("number % 2 == 0", "not number % 2")])
    command = ("make-dataset", "recipe.yaml", "-q", "-o", "out")
    with run_author(tmp_path, rules, latency=0.05) as server:
        for name in ("killed", "whole"):
            (tmp_path / name).mkdir()
            write_problems(tmp_path / name / "problems.jsonl", *problems)
            write_recipe(
                tmp_path / name, server, versions=2, concurrency=4, tests={"format": "apps", "fuzzed_inputs": 3}
            )
        kill_at_random_moments(
            tmp_path / "killed", server, 160, 20, max_in_flight=4, command=command,
            results=Path("out") / "generation" / "results",
        )  # fmt: skip
        assert nip_run(*command, cwd=tmp_path / "whole").returncode == 0
    assert read_dataset_files(tmp_path / "killed" / "out") == read_dataset_files(tmp_path / "whole" / "out")
    assert len(read_lines(tmp_path / "whole" / "out" / "data.jsonl")) == 80


@pytest.mark.gate
def test_fuzzed_values_are_compared_like_tests_and_copies_do_not_confirm_bugs(
    tmp_path: Path, mechanism: Mechanism
) -> None:
    original = "def ends(items):\n    return [items[0], items[-1] / 3]\n"
    problem = {
        "id": "ends", "question": "Return the first item, and a third of the last one.",
        "input_output": {"inputs": [[[3, 6]], [[9, 3]]], "outputs": [[[3, 2.0]], [[9, 1.0]]], "fn_name": "ends"},
    }  # fmt: skip
    tuple_program = original.replace("[items[0], items[-1] / 3]", "(items[0], items[-1] / 3)")
    rounded_program = original.replace("/ 3", "* (1 / 3)")
    negative_bug = original.replace("items[0],", "abs(items[0]),")  # no test has a negative number
    rules = planted_rules(str(problem["question"]), [tuple_program, rounded_program, negative_bug], [])
    with run_author(tmp_path, rules) as server:
        problem_with_copies = {**problem, "solutions": [original, original + "\n", original.replace("items", "list_")]}
        write_problems(tmp_path / "problems.jsonl", problem_with_copies)
        counts = make_here(write_recipe(tmp_path, server, versions=3, refactor=False), tmp_path / "out", mechanism)
    assert counts["programs_rejected"]["bug"] == {
        "it differs only on fuzzed inputs, which no second solution confirms": 1,
        "no input shows a difference from the given program": 2,
    }
    assert (counts["rows"], (tmp_path / "out" / "data.jsonl").exists()) == (0, False)


@pytest.mark.gate
def test_malformed_rows_and_answers_are_rejected_without_an_error(tmp_path: Path, mechanism: Mechanism) -> None:
    bugs = [
        edit_original("total = 0", f"total = 0x{'f' * 5000}"), "```x\n" * 20_000, "y" * 99_000,
        edit_original("total = 0", "total = 0  # \0"), SUBTLE_BUG,
    ]  # fmt: skip
    rules = planted_rules(QUESTION, bugs, [edit_original("total += number", "total = total + number")])
    nested = {**PROBLEM, "id": "nested", "input_output": "[" * 100_000}
    surrogate = {
        **PROBLEM,
        "id": "surrogate",
        "solutions": [f"{ORIGINAL}print(chr(0xD800) if total == 7 else '', end='')"],
    }
    tested = {**PROBLEM, "id": "tested", "input_output": '{"inputs": ["\\ud800"], "outputs": ["0"]}'}
    rows = PROBLEM, nested, surrogate, tested, {**PROBLEM, "id": "x", "solutions": 5}
    with run_author(tmp_path, rules) as server:
        write_problems(tmp_path / "problems.jsonl", *rows)
        recipe = write_recipe(tmp_path, server, versions=len(bugs), refactor=False, dataset={"path": "problems.jsonl"})
        counts = make_here(recipe, tmp_path / "out", mechanism, "tests.fuzzed_inputs=8")
        assert counts["problems_not_used"] == {"the row is not a problem with tests": 3}
        assert all(
            source.endswith("\n") for sources in programs_by_label(tmp_path / "out").values() for source in sources
        )
        with pytest.raises(UsageError, match="has other files than a dataset"):
            make_here(recipe, tmp_path, mechanism)


def test_problems_of_a_group_are_in_one_split(tmp_path: Path, mechanism: Mechanism) -> None:
    rules = planted_rules(QUESTION, [SUBTLE_BUG], [])
    problems = [{**PROBLEM, "id": f"p{n}", "topic": f"t{n % 4}", "solutions": [ORIGINAL]} for n in range(8)]
    with run_author(tmp_path, rules) as server:
        write_problems(tmp_path / "problems.jsonl", *problems)
        recipe = write_recipe(
            tmp_path, server, versions=1, refactor=False, splits={"a": 0.5, "b": 0.5},
            dataset={"path": "problems.jsonl", "group_by": "topic"},
            tests={"format": "apps", "fuzzed_inputs": 0, "repetitions": 1},
        )  # fmt: skip
        make_here(recipe, tmp_path / "out", mechanism)
    rows = read_lines(tmp_path / "out" / "data.jsonl")
    topics = {problem["id"]: problem["topic"] for problem in problems}
    assert len({(topics[row["problem"]], row["split"]) for row in rows}) == 4
    assert sorted(row["split"] for row in rows) == ["a"] * 8 + ["b"] * 8


@pytest.mark.full
def test_repeated_command_in_another_folder_makes_no_requests(tmp_path: Path, author: LoopbackServer) -> None:
    settings = ("tests.fuzzed_inputs=0", "tests.repetitions=1", "-o", tmp_path / "out")
    made = nip_run("make-dataset", "recipe.yaml", *settings, cwd=tmp_path)
    assert (made.returncode, "cannot be used;" in made.stderr) == (0, False)  # programs are no verdicts
    requests = author.requests
    (tmp_path / "elsewhere").mkdir()
    done = nip_run("make-dataset", "../recipe.yaml", *settings, cwd=tmp_path / "elsewhere", PYTHONHASHSEED="7")
    assert (done.returncode, author.requests) == (0, requests)


def read_dataset_files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a generated dataset."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".lock"}


def test_recipe_in_a_downloaded_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text("{}", "utf-8")
    (tmp_path / "recipe.yaml").write_text("name: x\n", "utf-8")
    with pytest.raises(SpecError, match="a downloaded recipe is not run where it is"):
        load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.full
def test_labels_of_a_hundred_generated_pairs_are_confirmed_by_tests(tmp_path: Path, mechanism: Mechanism) -> None:
    planted = {row["problem"]: row for row in read_lines(ROOT / "tests" / "support" / "planted_programs.jsonl")}
    sources: dict[ProgramFormat, list[dict[str, Any]]] = {
        "apps": read_lines(DATA / "problems.jsonl"),
        "mbpp": shipped_problems(),
    }
    pairs = 0
    for format_, problems in sources.items():
        folder = tmp_path / format_
        folder.mkdir()
        rules = [
            rule for problem in problems for edits in [planted[problem["id"]]]
            for rule in planted_rules(problem["question"], [edits["bug"]], [edits["refactored"]])
        ]  # fmt: skip
        with run_author(folder, rules) as server:
            write_problems(folder / "problems.jsonl", *problems)
            recipe = write_recipe(folder, server, tests={"format": format_, "fuzzed_inputs": 3}, versions=1)
            counts = make_here(recipe, folder / "out", mechanism)
        pairs += counts["rows_by_label"]["0"]
        tests = {problem["id"]: problem for problem in problems}
        rows = read_lines(folder / "out" / "data.jsonl")
        preamble = APPS_IMPORTS if format_ == "apps" else ""
        with ProgramTester(mechanism) as tester:
            results = tester.test(
                (Program(row["solution"], preamble), parse_tests(tests[row["problem"]], format_)) for row in rows
            )
            assert [int(is_correct(result)) for result in results] == [row["label"] for row in rows]
    assert pairs >= 100


def shipped_problems() -> list[dict[str, Any]]:
    """Return the problems of the shipped programs, with their right solutions."""
    tests = {row["problem"]: row["tests"] for row in read_lines(DATA / "code_validation.tests.jsonl")}
    return [
        {"id": row["problem"], "question": row["question"], "solutions": [row["solution"]],
         "test_list": tests[row["problem"]]}
        for row in read_lines(DATA / "code_validation.jsonl") if row["label"] == 1
    ]  # fmt: skip
