"""Unusable answers while a run is played: one warning with an example, and the limit `rollouts.max_unusable`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import TooManyUnusable
from runner.runs.execution.unusable_answers import MIN_ANSWERS, AnswerCounts
from runner.spec.loader import load_spec
from runner.training.plan import plan_of
from tests.support.processes import nip_run_here
from tests.support.runs import journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

BAD = "No \x1b[31mverdict\u202e from me.\nAsk\tagain. Decision: undecided " + "x" * 300
GOOD = "All cases are handled.\nDecision: accept"
CONCURRENCY = 4


def write_spec(folder: Path, server: LoopbackServer, **changes: Any) -> Path:
    """Write a spec of 40 games with a single verdict and a single attempt each."""
    rollouts = {"concurrency": CONCURRENCY, **changes.pop("rollouts", {})}
    return spec_file(
        folder, server.base_url, size=40, protocol={"use": "solo_verifier", "max_message_rounds": None},
        prompts="prompts/code_validation/solo_verifier", agents={"prover": None}, rollouts=rollouts,
        **{"retry": {"invalid_response": {"attempts": 1}}, **changes},
    )  # fmt: skip


def count_answers(folder: Path) -> int:
    run = only_run(folder / "results")
    return sum(record["kind"] == "call" for record in journal_records(run))


@pytest.mark.parametrize(
    ("unusable", "answers", "is_alarming"),
    [(19, 19, False), (20, 20, True), (16, 20, True), (15, 20, False), (33, 50, False), (35, 50, True),
     (501, 1000, False), (600, 1000, True), (0, 1000, False)],
)  # fmt: skip
def test_a_share_is_alarming_once_it_is_significantly_above_a_half(
    unusable: int, answers: int, is_alarming: bool
) -> None:
    assert AnswerCounts(answers, unusable).is_alarming is is_alarming


def test_a_share_at_the_limit_is_allowed_and_so_is_any_share_before_20_answers() -> None:
    assert not AnswerCounts(20, 10).exceeds(0.5)
    assert AnswerCounts(20, 11).exceeds(0.5)
    assert AnswerCounts(20, 1).exceeds(0.0)
    assert not AnswerCounts(19, 19).exceeds(0.0)
    assert not AnswerCounts(20, 20).exceeds(None)
    assert not AnswerCounts(20, 20).exceeds(1.0)


@pytest.mark.gate
@pytest.mark.parametrize("execution", [{}, {"processes": 2}])
def test_the_run_stops_once_the_share_is_exceeded_and_the_same_command_resumes(
    tmp_path: Path, execution: dict[str, int]
) -> None:
    with run_chat_server(text=BAD) as server:
        write_spec(tmp_path, server, rollouts={"max_unusable": 0.5}, execution=execution)
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert "more than rollouts.max_unusable (0.5) allows" in done.stderr
        assert "repeat the command to resume" in done.stderr
        request_count = server.requests
        # Workers report their counts with a delay, and calls in flight still arrive.
        assert MIN_ANSWERS <= request_count <= MIN_ANSWERS + (40 if execution else 2 * CONCURRENCY)
        assert count_answers(tmp_path) == request_count, "every answer that was paid for is saved"
        if execution:
            return
        server.change(text=GOOD)
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        assert server.requests == 40
    manifest = json.loads((only_run(tmp_path / "results") / "manifest.json").read_text())
    assert manifest["status"] == "done"


@pytest.mark.full
def test_a_run_whose_server_was_repaired_is_not_stopped_by_earlier_answers(tmp_path: Path) -> None:
    with run_chat_server(text=BAD) as server:
        path = write_spec(tmp_path, server, rollouts={"max_unusable": 0.1})
        with pytest.raises(TooManyUnusable, match=r"of \d+ answers since this command started cannot be used"):
            run_spec(path, tmp_path / "results")
        server.change(text=GOOD)
        assert run_spec(path, tmp_path / "results").manifest.status == "done"
        assert server.requests == 40


def test_a_run_with_few_unusable_answers_is_completed(tmp_path: Path) -> None:
    with run_chat_server(text=GOOD, faults={"bad_decision": 0.2}, max_faults=1000) as server:
        path = write_spec(tmp_path, server, rollouts={"max_unusable": 0.5})
        assert run_spec(path, tmp_path / "results").manifest.status == "done"


@pytest.mark.gate
def test_a_replay_costs_nothing_and_is_never_stopped(tmp_path: Path) -> None:
    with run_chat_server(text=BAD) as server:
        path = write_spec(tmp_path, server)
        run = run_spec(path, tmp_path / "results").folder.path
    replay = nip_run_here("spec.yaml", "-q", "--replay", str(run), "rollouts.max_unusable=0", cwd=tmp_path)
    assert replay.returncode == 0, replay.stderr


def test_each_repeated_request_counts_as_an_answer(tmp_path: Path) -> None:
    with run_chat_server(text=BAD) as server:
        path = write_spec(tmp_path, server, rollouts={"max_unusable": 0.5}, retry={"invalid_response": {"attempts": 3}})
        with pytest.raises(TooManyUnusable):
            run_spec(path, tmp_path / "results")
        assert MIN_ANSWERS <= server.requests <= MIN_ANSWERS + 2 * CONCURRENCY


@pytest.mark.gate
def test_many_unusable_answers_give_one_warning_with_an_example_and_advice(tmp_path: Path) -> None:
    with run_chat_server(text=BAD) as server:
        write_spec(tmp_path, server)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "warning: 20 of 20 answers" in line]
    assert "verifier (tiny) in round 0 of " in line
    assert "answered 'No \\x1b[31mverdict\\u202e from me.\\nAsk\\tagain. Decision: undecided xxx" in line
    assert "x" * 150 not in line
    assert "check that the template of verifier asks for the format that the protocol parses" in line
    assert "rollouts.max_unusable" in line
    assert done.stderr.count("answers since this command started") == 1


def test_the_limit_is_not_part_of_the_run_identity(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = write_spec(tmp_path, server)
    ids = {plan_of(load_spec(path, overrides)).run_id for overrides in ([], ["rollouts.max_unusable=0.5"])}
    assert len(ids) == 1


def test_an_answer_without_a_required_verdict_is_unusable(tmp_path: Path) -> None:
    with run_chat_server(text="The solution looks plausible to me.") as server:
        write_spec(tmp_path, server, rollouts={"max_unusable": 0.5})
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "more than rollouts.max_unusable (0.5) allows" in done.stderr
    assert "the verifier must decide" in done.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("text", ["", " \n"])
def test_an_answer_without_content_is_unusable_although_the_game_continues(tmp_path: Path, text: str) -> None:
    with run_chat_server(text=text) as server:
        path = spec_file(tmp_path, server.base_url, size=20, rollouts={"max_unusable": 0.5})
        with pytest.raises(TooManyUnusable, match=r"answered '': the answer has no content; raise models\.m\."):
            run_spec(path, tmp_path / "results")
        assert MIN_ANSWERS <= server.requests < 60
