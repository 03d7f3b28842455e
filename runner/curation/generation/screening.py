"""Decide which given solutions and which programs of a model can be used, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from runner.base.text import shortened
from runner.curation.generation.coding_problems import CodingProblem, describe_input
from runner.curation.generation.input_fuzzing import fuzz_inputs
from runner.curation.generation.program_edits import (
    EditSize,
    ProgramForm,
    describe_program,
    find_program,
    measure_edit,
)
from runner.curation.generation.recipe import RecipeFile, Task
from runner.curation.generation.verdict_log import VerdictLog
from runner.curation.program_tests import (
    CallTest,
    ProgramTest,
    ProgramTestResult,
    StdinTest,
    Verdict,
    is_correct,
)

MIN_CONFIRMING = 2
"""Number of right solutions that must agree on a fuzzed input to confirm what is right there."""
MAX_INPUT = 200
"""Maximum number of characters of an input in a counterexample."""


class Rejection(StrEnum):
    """The reason why a problem or a program of a model is not used."""

    UNUSABLE_ROW = "the row is not a problem with tests"
    NO_RIGHT_SOLUTION = "no given solution passes all tests"
    FLAKY_SOLUTION = "the verdicts of the given solution differ between repetitions"
    NO_ANSWER = "the model's call failed or has no answer"
    NO_PROGRAM = "the answer has no program"
    NOT_COMPILED = "the program does not compile"
    UNCHANGED = "the program is the given one"
    TRIVIAL = "only names, layout, comments or docstrings differ from the given program"
    DUPLICATE = "the program is the same as an earlier one"
    LARGE_EDIT = "too much of the program is changed"
    FLAKY = "the verdicts of the program differ between repetitions"
    EQUIVALENT = "no input shows a difference from the given program"
    UNCONFIRMED = "it differs only on fuzzed inputs, which no second solution confirms"
    CRASHES = "it fails only by exceptions or limits"
    TOO_OBVIOUS = "it fails too many tests or fuzzed inputs"
    WRONG = "the refactored program fails a test"
    DIFFERS = "the refactored program differs from the given one on a fuzzed input"


class RejectedProblem(NamedTuple):
    """The reason why a problem is not used, and the failure of a given solution or of reading the row."""

    rejection: Rejection
    detail: str


@dataclass(frozen=True)
class VerifiedProblem:
    """A problem with the given solutions that pass all tests; none for `proposals`."""

    problem: CodingProblem
    solutions: tuple[str, ...] = ()

    @property
    def distinct_solutions(self) -> int:
        """The number of right solutions that differ in more than names and layout."""
        forms = map(describe_program, self.solutions)
        return len({form.shape for form in forms if form is not None})

    @property
    def original(self) -> str:
        """The right program that the model edits; empty for `proposals`."""
        return self.solutions[0].strip("\n") + "\n" if self.solutions else ""


class GeneratedAnswer(NamedTuple):
    """An answer of the model; None for a call without an answer."""

    text: str | None
    cost_usd: float | None = None


@dataclass(frozen=True)
class Candidate:
    """A program of a model, with what is known about it so far."""

    task: Task
    number: int
    """The number of the answer about the problem and the task, from 1."""
    source: str = ""
    edit: EditSize | None = None
    rejection: Rejection | None = None
    label: int | None = None
    failing: float = 0.0
    """The share of the tests that the program fails."""
    fuzzed_failing: float = 0.0
    """The share of the fuzzed inputs that show a difference from the given program."""
    cost_usd: float | None = None
    """The cost of the answer; None if the price is not known."""
    counterexample: str = ""
    """The input of the first test that fails, with the difference."""

    def rejected(self, rejection: Rejection) -> Candidate:
        return replace(self, rejection=rejection)


@dataclass
class ScreenedProblem:
    """A problem with the programs of the model about it, in the order of tasks and numbers."""

    verified: VerifiedProblem
    candidates: list[Candidate] = field(default_factory=list)

    def usable(self, task: Task) -> list[Candidate]:
        return [c for c in self.candidates if c.task == task and c.rejection is None]


def verify_problems(
    problems: Sequence[CodingProblem], log: VerdictLog, file: RecipeFile
) -> tuple[list[VerifiedProblem], dict[str, RejectedProblem]]:
    """Return the problems with right solutions, and the reason why each other problem has none."""
    if file.make == "proposals":
        return [VerifiedProblem(problem) for problem in problems], {}
    work = [(problem, source) for problem in problems for source in problem.solutions]
    results = iter(log.test([(problem.program(source), problem.tests) for problem, source in work]))
    verified, rejected = [], {}
    for problem in problems:
        by_solution = {source: next(results) for source in problem.solutions}
        right = tuple(source for source, tests in by_solution.items() if is_correct(tests))
        if right:
            verified.append(VerifiedProblem(problem, right))
        else:
            pairs = [(t, r) for tests in by_solution.values() for t, r in zip(problem.tests, tests, strict=True)]
            is_flaky = any(result.is_flaky for _, result in pairs)
            detail = next(_describe(*pair) for pair in pairs if pair[1].is_flaky or pair[1].verdict != Verdict.PASS)
            rejection = Rejection.FLAKY_SOLUTION if is_flaky else Rejection.NO_RIGHT_SOLUTION
            rejected[problem.id] = RejectedProblem(rejection, detail)
    return verified, rejected


def screen_programs(
    problems: Sequence[VerifiedProblem],
    answers: Mapping[tuple[str, Task], Sequence[GeneratedAnswer]],
    log: VerdictLog,
    file: RecipeFile,
) -> list[ScreenedProblem]:
    """Return each problem with the programs in the model's answers about it, tested and compared."""
    screened = [ScreenedProblem(problem, list(_read_answers(problem, answers, file))) for problem in problems]
    _test_candidates(screened, log, file)
    if file.make == "bugs":
        _compare_on_fuzzed_inputs(screened, log, file)
    return screened


def _read_answers(
    verified: VerifiedProblem, answers: Mapping[tuple[str, Task], Sequence[GeneratedAnswer]], file: RecipeFile
) -> Iterator[Candidate]:
    """Yield a candidate for each answer, rejected if its program is none, or too similar to another one."""
    original = None if file.make == "proposals" else describe_program(verified.original)
    for task in file.tasks:
        earlier_trees: set[str] = set()
        for number, answer in enumerate(answers.get((verified.problem.id, task), ()), 1):
            source = None if answer.text is None else find_program(answer.text)
            candidate = Candidate(task, number, source or "", cost_usd=answer.cost_usd)
            if source is None:
                yield candidate.rejected(Rejection.NO_ANSWER if answer.text is None else Rejection.NO_PROGRAM)
                continue
            form = describe_program(candidate.source)
            if form is None or form.tree in earlier_trees:
                yield candidate.rejected(Rejection.NOT_COMPILED if form is None else Rejection.DUPLICATE)
                continue
            earlier_trees.add(form.tree)
            if original is not None:
                candidate = replace(candidate, edit=measure_edit(verified.original, candidate.source))
            yield replace(candidate, rejection=_reject_edit(candidate, form, original, file))


def _reject_edit(
    candidate: Candidate, form: ProgramForm, original: ProgramForm | None, file: RecipeFile
) -> Rejection | None:
    """Return why an edited program cannot be used, before it is tested; None if it can."""
    if original is None or candidate.edit is None:
        return None
    if form.tree == original.tree:
        return Rejection.UNCHANGED
    if form.shape == original.shape:
        return Rejection.TRIVIAL
    return Rejection.LARGE_EDIT if candidate.edit.share > file.max_edit else None


def _test_candidates(screened: Sequence[ScreenedProblem], log: VerdictLog, file: RecipeFile) -> None:
    """Test all programs that are not rejected, and label or reject them by the verdicts."""
    work = [(item, i) for item in screened for i, c in enumerate(item.candidates) if c.rejection is None]
    programs = [
        (item.verified.problem.program(item.candidates[i].source), item.verified.problem.tests) for item, i in work
    ]
    for (item, i), results in zip(work, log.test(programs), strict=True):
        item.candidates[i] = _judge(item.candidates[i], item.verified.problem.tests, results, file)


def _judge(
    candidate: Candidate, tests: Sequence[ProgramTest], results: Sequence[ProgramTestResult], file: RecipeFile
) -> Candidate:
    """Return a tested program with its label, or with the reason against it."""
    failed = [(test, result) for test, result in zip(tests, results, strict=True) if result.verdict != Verdict.PASS]
    if any(result.is_flaky for result in results):
        return candidate.rejected(Rejection.FLAKY)
    if failed:
        test, result = next((pair for pair in failed if pair[1].verdict is Verdict.WRONG), failed[0])
        candidate = replace(candidate, failing=len(failed) / len(tests), counterexample=_describe(test, result))
    candidate = replace(candidate, label=0 if failed else 1)
    if candidate.task == "refactoring":
        return candidate.rejected(Rejection.WRONG) if failed else candidate
    if candidate.task == "proposal" or not failed:
        return candidate  # a bug that passes all tests is compared on fuzzed inputs
    if all(result.verdict is not Verdict.WRONG for _, result in failed):
        return candidate.rejected(Rejection.CRASHES)
    return candidate.rejected(Rejection.TOO_OBVIOUS) if candidate.failing > file.max_failing else candidate


def _describe(test: ProgramTest, result: ProgramTestResult) -> str:
    return f"{shortened(describe_input(test), MAX_INPUT)}: {result.detail or result.verdict}"


def _compare_on_fuzzed_inputs(screened: Sequence[ScreenedProblem], log: VerdictLog, file: RecipeFile) -> None:
    """Compare programs that pass all tests, and bugs, with the right solutions on fuzzed inputs."""
    for item in screened:
        compared = [i for i, c in enumerate(item.candidates) if c.rejection is None]
        if not compared:
            continue
        tests = _fuzzed_tests(item.verified, log, file)
        programs = [(item.verified.problem.program(item.candidates[i].source), tests) for i in compared]
        for i, results in zip(compared, log.test(programs), strict=True):
            item.candidates[i] = _judge_difference(item.candidates[i], item.verified, tests, results, file)


def _fuzzed_tests(verified: VerifiedProblem, log: VerdictLog, file: RecipeFile) -> list[StdinTest | CallTest]:
    """Return tests with the fuzzed inputs where all right solutions agree, and with their output."""
    problem = verified.problem
    inputs = fuzz_inputs(problem.tests, file.tests.fuzzed_inputs, file.seed, problem.id)
    tests = log.outputs(problem.program(verified.original), inputs)
    results = log.test([(problem.program(source), tests) for source in verified.solutions])
    return [test for i, test in enumerate(tests) if all(is_correct([by_test[i]]) for by_test in results)]


def _judge_difference(
    candidate: Candidate,
    verified: VerifiedProblem,
    tests: Sequence[StdinTest | CallTest],
    results: Sequence[ProgramTestResult],
    file: RecipeFile,
) -> Candidate:
    """Return a program with the share of fuzzed inputs that show a difference from the right solutions."""
    if any(result.is_flaky for result in results):
        return candidate.rejected(Rejection.FLAKY)
    failed = [(test, result) for test, result in zip(tests, results, strict=True) if result.verdict != Verdict.PASS]
    if candidate.task == "refactoring":
        return candidate.rejected(Rejection.DIFFERS) if failed else candidate
    candidate = replace(candidate, fuzzed_failing=len(failed) / len(tests) if tests else 0.0)
    if candidate.label == 0:
        return candidate
    wrong = [pair for pair in failed if pair[1].verdict is Verdict.WRONG]
    if not wrong:
        return candidate.rejected(Rejection.CRASHES if failed else Rejection.EQUIVALENT)
    if verified.distinct_solutions < MIN_CONFIRMING:
        return candidate.rejected(Rejection.UNCONFIRMED)
    candidate = replace(candidate, label=0, counterexample=_describe(*wrong[0]))
    return candidate.rejected(Rejection.TOO_OBVIOUS) if candidate.fuzzed_failing > file.max_failing else candidate
