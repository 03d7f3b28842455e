"""Runs with human agents: waiting games, stops, and settings that people do not support."""

from __future__ import annotations

from pathlib import Path

import pytest

import runner
from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.results.folder import RunFolder
from tests.support.processes import interrupt, nip_run_here, wait_for_exit
from tests.support.question_process import QuestionProcess, human_judge_spec, run_with_questions

VERDICT = {"text0": "", "verdict": "Decision: reject"}


def answer_all(run: QuestionProcess, count: int, *people: str) -> None:
    for number in range(count):
        run.answer(people[number % len(people)], **VERDICT)


@pytest.mark.full
def test_all_games_wait_for_people_at_once_at_any_concurrency(tmp_path: Path) -> None:
    human_judge_spec(tmp_path, size=6, rollouts={"concurrency": 1}, protocol={"max_message_rounds": 1})
    with run_with_questions("spec.yaml", "--run-id", "tiny", cwd=tmp_path) as run:
        run.take("Ann")
        while run.post("take", person="Ann")["others"] < 5:
            pass
        answer_all(run, 6, "Ann", "Ben")
        code, out, err = wait_for_exit(run.process)
    assert code == 0, out + err
    assert RunFolder(tmp_path / "results" / "runs" / "tiny").manifest().rollouts == 6


@pytest.mark.full
def test_a_stop_does_not_wait_for_people_and_the_run_resumes_later(tmp_path: Path) -> None:
    human_judge_spec(tmp_path, size=4, protocol={"max_message_rounds": 1}, budget={"completions": 1})
    with run_with_questions("spec.yaml", "--run-id", "tiny", cwd=tmp_path) as run:
        answer_all(run, 2, "Ann")
        run.take("Ann")
        interrupt(run.process)
        assert wait_for_exit(run.process)[0] == ExitCode.INTERRUPTED
    with run_with_questions("spec.yaml", "--run-id", "tiny", cwd=tmp_path) as run:
        answer_all(run, 2, "Ann")
        assert wait_for_exit(run.process)[0] == 0  # the budget of one call does not count people
    assert RunFolder(tmp_path / "results" / "runs" / "tiny").manifest().completions == 4


@pytest.mark.full
def test_the_points_of_a_sweep_share_one_page(tmp_path: Path) -> None:
    human_judge_spec(tmp_path, size=2, protocol={"max_message_rounds": 1})
    with run_with_questions("spec.yaml", "sweep={seed: [1, 2]}", cwd=tmp_path) as run:
        answer_all(run, 4, "Ann", "Ben")
        code, out, err = wait_for_exit(run.process)
    assert code == 0, out + err
    assert "people answer at" not in err  # it was printed before, once


@pytest.mark.full
def test_each_vote_is_given_by_another_person(tmp_path: Path) -> None:
    human_judge_spec(tmp_path, size=1, protocol={"max_message_rounds": 1}, votes=3)
    with run_with_questions("spec.yaml", "--run-id", "tiny", cwd=tmp_path) as run:
        run.answer("Ann", **VERDICT)
        assert run.post("take", person="Ann") == {"question": None, "has_ended": False, "others": 2}
        answer_all(run, 2, "Ben", "Cid")
        assert wait_for_exit(run.process)[0] == 0


def test_the_python_api_refuses_people_before_the_run_has_a_folder(tmp_path: Path) -> None:
    spec = human_judge_spec(tmp_path, size=1)
    with pytest.raises(UsageError, match=r"models.people: people answer only while `nip-run SPEC`"):
        runner.run(spec, tmp_path / "results")
    assert not (tmp_path / "results" / "runs").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("execution.processes=2", "people answer on the page of a single process (models.people)"),
        ("execution={engine: ray, workers: 2}", "people answer on the page of a single process (models.people)"),
        ("models.people.batch=true", "provider human has no batch"),
        ("models.people.temperature=1", "provider human has no temperature"),
        ("verdict.confidence=logprob", "provider human returns no log-probabilities"),
    ],
)
def test_settings_without_a_meaning_for_people_are_refused(override: str, message: str, tmp_path: Path) -> None:
    human_judge_spec(tmp_path, size=1)
    checked = nip_run_here("check", "spec.yaml", override, cwd=tmp_path)
    assert checked.returncode != 0
    assert message in checked.stderr


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], "people must give 12 to 24 answers (people)\n"),
        (["votes=3", "protocol.max_message_rounds=1"], "must give 36 answers (people); each game needs 3 different"),
        (["models.m={provider: human}"], "must give 12 to 36 answers (m, people); each game needs 2 different people"),
    ],
)
def test_check_says_how_many_answers_people_must_give(overrides: list[str], sentence: str, tmp_path: Path) -> None:
    human_judge_spec(tmp_path)
    checked = nip_run_here("check", "spec.yaml", *overrides, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert sentence in checked.stdout
