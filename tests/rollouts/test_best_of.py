"""One of several candidates for an answer is selected, and every candidate and judgment is recorded."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunError, SpecError, UsageError
from runner.base.exit_codes import ExitCode
from runner.documents.fetched_files import MARKER, marker_bytes
from runner.models.api_keys import allowed_commands
from runner.rollouts.agents.environment import Environment
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.rollouts.template_check import check_templates
from runner.runs.execution import selector_functions
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from tests.support.hidden_passages import Script, passages_spec, play_script
from tests.support.processes import (
    nip_run_here,
    start_nip_run_silently,
    wait_for_requests,
    wait_or_kill,
    wait_until,
)
from tests.support.runs import derived_files, journal_records, only_run, read_calls, run_spec, table
from tests.support.servers.chat_client import run_chat_server

LOGPROBS: dict[str, Any] = {"models": {"m": {"logprobs": True, "top_logprobs": 5}}}


def best_of_rules(by: str, n: int = 3) -> dict[str, Any]:
    return {
        "cycle": [{"speak": {"p0": ["main"]}, "best_of": {"n": n, "by": by}}, {"speak": {"judge": ["main"]}}],
        "parameters": {"max_message_rounds": 2, "min_message_rounds": 2},
    }


def play(path: Path, answers: dict[str, Any]) -> tuple[Rollout, Script]:
    return asyncio.run(play_script(path, answers))


def first_message(rollout: Rollout) -> str:
    return rollout.rounds[0].messages[0].text


def count_calls_by_agent(script: Script) -> Counter[str]:
    return Counter(request.sample.agent for request in script.requests)


# Selectors


@pytest.mark.parametrize("end", ["**Best: 3**", "Best: 3.", "Best: #3. It is short."])
def test_preference_prompt_selects_a_candidate_by_number(tmp_path: Path, end: str) -> None:
    path = passages_spec(tmp_path, best_of_rules("preference"))
    answers = {"p0": ["one", "two", "three"], "p0.preference": f"Best: 1 or 2? I say\n{end}"}
    rollout, script = play(path, answers)
    assert first_message(rollout) == "three"
    assert count_calls_by_agent(script) == {"p0": 3, "p0.preference": 1, "judge": 1}
    assert "1. one\n2. two\n3. three" in script.prompts("p0.preference")[0]
    assert "one" not in script.prompts("judge")[0]
    assert [call.selected for call in rollout.calls] == [False, False, True, None, None]


def test_critic_scores_each_candidate_and_the_first_of_the_best_wins(tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules("critic"))
    answers = {"p0": ["one", "two", "three"], "p0.critic": ["Weak. Score: 2", "Good. Score: 7.5", "Score: 7.5"]}
    rollout, script = play(path, answers)
    assert first_message(rollout) == "two"
    assert [(call.selected, call.score) for call in rollout.calls[:3]] == [(False, 2), (True, 7.5), (False, 7.5)]
    prompts = script.prompts("p0.critic")
    assert [next(text for text in ("one", "two", "three") if text in prompt) for prompt in prompts] == [
        "one", "two", "three",
    ]  # fmt: skip
    assert all("Criticize for accept." in prompt for prompt in prompts)


@pytest.mark.gate
def test_judge_selects_the_candidate_that_makes_the_stance_most_probable(tmp_path: Path) -> None:
    for agent in ("p0", "p1"):
        cycle = [{"speak": {agent: ["main"]}, "best_of": {"n": 4, "by": "judge"}}, {"speak": {"judge": ["main"]}}]
        folder = tmp_path / agent
        run = run_spec(
            passages_spec(folder, {**best_of_rules("judge"), "cycle": cycle}, size=6, **LOGPROBS), folder / "r"
        )
        rows = [row for row in table(run.folder.path, "completions") if row["agent"] == agent]
        assert len(rows) == 24
        for start in range(0, 24, 4):
            candidates = rows[start : start + 4]
            best = max(candidates, key=lambda row: row["score"])
            assert [row["selected"] for row in candidates] == [row is best for row in candidates]
        judged = [row for row in table(run.folder.path, "completions") if row["agent"] == f"{agent}.judge"]
        for candidate, verdict in zip(rows, judged, strict=True):
            # The dummy model may choose either verdict, so the score need not agree with it.
            assert 0 < candidate["score"] < 1
            assert re.search("Decision: (accept|reject)", verdict["raw_message"])


@pytest.mark.full
def test_judge_score_is_the_probability_of_the_speakers_stance(tmp_path: Path) -> None:
    scores = {}
    for stance in ("accept", "reject"):
        changed_rules = {**best_of_rules("judge"), "agents": {"p0": {"stance": stance}}}
        run = run_spec(passages_spec(tmp_path / stance, changed_rules, **LOGPROBS), tmp_path / stance / "results")
        rows = table(run.folder.path, "completions")
        scores[stance] = [row["score"] for row in rows if row["agent"] == "p0"]
    assert scores["accept"] == pytest.approx([1 - score for score in scores["reject"]])


def test_python_function_selects_a_candidate(tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules("function"), size=4)
    (tmp_path / "prompts" / "p0.function.py").write_text(
        "def select(candidates, game):\n"
        "    assert game['agent'] == 'p0' and game['stance'] == 'accept' and 'cat' in game['columns']['passage']\n"
        "    return max(range(len(candidates)), key=lambda i: len(candidates[i]))\n"
    )
    run = run_spec(path, tmp_path / "results").folder.path
    rows = [row for row in table(run, "completions") if row["agent"] == "p0"]
    for start in range(0, len(rows), 3):
        candidates = rows[start : start + 3]
        longest = max(candidates, key=lambda row: len(row["raw_message"]))
        assert [row["selected"] for row in candidates] == [row is longest for row in candidates]


# Errors


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def select(candidates, game):\n    return 9\n",
            "select in p0.function.py returned 9; return an index from 0",
        ),
        ("def select(candidates, game):\n    return 1 / 0\n", r"p0.function.py failed: ZeroDivisionError.*\(line 2\)"),
        ("x = 1 / 0\ndef select(c, g):\n    return 0\n", r"p0.function.py fails when it is loaded: Zero.*\(line 1\)"),
    ],
)
def test_failing_function_stops_the_run_and_names_its_line(source: str, message: str, tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules("function"))
    (tmp_path / "prompts" / "p0.function.py").write_text(source)
    with pytest.raises(RunError, match=message):
        run_spec(path, tmp_path / "results")


@pytest.mark.full
def test_function_that_does_not_return_stops_the_run_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stop = passages_spec(tmp_path, best_of_rules("function")), tmp_path / "stop"
    (tmp_path / "prompts" / "p0.function.py").write_text(
        "import time\nfrom pathlib import Path\n\n\ndef select(candidates, game):\n"
        f"    while not Path({str(stop)!r}).exists():\n        time.sleep(0.01)\n    return 0\n"
    )
    monkeypatch.setattr(selector_functions, "TIME_LIMIT", 0.2)
    try:
        with pytest.raises(RunError, match=r"select in p0\.function\.py did not return within 0\.2 seconds"):
            run_spec(path, tmp_path / "results")
    finally:
        stop.touch()


@pytest.mark.full
def test_signal_stops_a_run_whose_function_does_not_return(tmp_path: Path) -> None:
    passages_spec(tmp_path, best_of_rules("function"))
    started = tmp_path / "started"
    (tmp_path / "prompts" / "p0.function.py").write_text(
        "from pathlib import Path\n\n\ndef select(candidates, game):\n"
        f"    Path({str(started)!r}).touch()\n    while True:\n        pass\n"
    )
    process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
    try:
        wait_until(started.exists)
        process.terminate()
        assert wait_or_kill(process) == ExitCode.INTERRUPTED
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def choose(a, b):\n    return 0\n", "the file needs a function select"),
        ("\ndef select(candidates):\n    return 0\n", r"p0\.function\.py:2:1.*the file needs a function select"),
        ("x = 1\ndef select(:\n", r"p0\.function\.py:2:1.*not valid Python"),
    ],
)
def test_file_without_the_select_function_is_refused_before_play(source: str, message: str, tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules("function"))
    (tmp_path / "prompts" / "p0.function.py").write_text(source)
    with pytest.raises(SpecError, match=message):
        load_spec(path)


def test_invalid_best_of_settings_are_refused_before_play(tmp_path: Path) -> None:
    judge = {"cycle": [{"speak": {"judge": ["main"]}, "best_of": {"n": 2, "by": "critic"}}]}
    cases: list[Any] = [
        (best_of_rules("judge"), {}, "set models.m.logprobs=true and models.m.top_logprobs=5"),
        (
            best_of_rules("preference"),
            {"agents": {"p0": {"model": "m", "selector": "small"}}},
            "no model group 'small'",
        ),
        (judge, {}, r"cycle\.0\.best_of: only provers have candidates, and judge is the verifier"),
        (
            best_of_rules("critic"),
            {"rollouts": {"num_responses_per_timestep": 2}},
            "trees have all candidates as branches",
        ),
        (best_of_rules("vote"), {}, "best_of.by"),
        (
            {**best_of_rules("judge"), "answers": "listed"},
            {},
            r"cycle\.0\.best_of\.by: `judge` needs a single verifier",
        ),
        (best_of_rules("critic", 1), {}, "best_of.n"),
    ]
    for number, (changed_rules, changes, message) in enumerate(cases):
        with pytest.raises(SpecError, match=message):
            load_spec(passages_spec(tmp_path / str(number), changed_rules, **changes))


def test_missing_selector_template_is_named(tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules("critic"))
    (tmp_path / "prompts" / "p0.critic.jinja").unlink()
    with pytest.raises(SpecError, match=r"no template .*p0\.critic\.jinja"):
        load_spec(path)


def test_unusable_judgments_are_retried_then_the_first_candidate_is_used(tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules("preference"))
    answers = {"p0": ["one", "two", "three"], "p0.preference": ["Best: 4", "none", "Best: 2"]}
    rollout, script = play(path, answers)
    assert (first_message(rollout), count_calls_by_agent(script)["p0.preference"]) == ("two", 3)
    rollout, _ = play(path, {**answers, "p0": ["one", "two", "three"], "p0.preference": "none"})
    assert first_message(rollout) == "one"
    assert [call.selected for call in rollout.calls[:3]] == [False] * 3


@pytest.mark.full
@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ("preference", "the answer does not end with 'Best: NUMBER'"),
        ("critic", "the answer does not end with 'Score: NUMBER'"),
        ("judge", "the answer has no log-probabilities of both verdicts"),
    ],
)
def test_run_without_usable_judgments_finishes_and_counts_failed_selections(
    by: str, reason: str, tmp_path: Path
) -> None:
    with run_chat_server(text="Decision: accept") as server:
        models = {"m": {"logprobs": True, "top_logprobs": 5}} if by == "judge" else {}
        path = passages_spec(tmp_path, best_of_rules(by), base_url=server.base_url, size=3, models=models)
        run = run_spec(path, tmp_path / "results")
    assert run.manifest.status == "done"
    assert any("3 of 6 messages were not selected from their candidates" in note for note in run.notes)
    assert any(note.split("; ")[1].endswith(reason) for note in run.notes if "were repeated" in note)
    metrics = {(row["agent"], row["metric"]): row for row in run.metrics["metrics"]}
    row = metrics["p0", "failed_selections"]
    assert (row["value"], row["n"]) == (1.0, 3)
    assert ("p1", "failed_selections") not in metrics
    assert {row["selected"] for row in table(run.folder.path, "completions")} == {False, None}
    rollout_id = table(run.folder.path, "rollouts")[0]["rollout_id"]
    stdout = nip_run_here("show", run.run_id, rollout_id, cwd=tmp_path).stdout
    assert f"candidate 1 of 3, because no judgment by {by} was usable" in stdout


def test_selector_template_may_use_each_candidate_by_index(tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules("preference"))
    template = tmp_path / "prompts" / "p0.preference.jinja"
    template.write_text("{{ speech_candidates[0] }}, {{ speech_candidates[2] }}? Best: NUMBER")
    estimate_costs(Plan(load_spec(path)))
    check_templates(Plan(load_spec(path)))
    template.write_text("{{ speech_candidates[3] }}? Best: NUMBER")
    with pytest.raises(SpecError, match=r"p0\.preference\.jinja.*speech_candidates|no element 3"):
        check_templates(Plan(load_spec(path)))


# Costs and records


@pytest.mark.sample(1)
@pytest.mark.parametrize(("by", "calls"), [("preference", 5), ("critic", 7), ("judge", 7), ("function", 4)])
def test_cost_estimate_counts_candidates_and_judgments(by: str, calls: int, tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules(by), size=5, **LOGPROBS)
    (estimate,) = estimate_costs(Plan(load_spec(path)))
    assert estimate.calls == (5 * calls, 5 * calls)
    run = run_spec(path, tmp_path / "results").folder.path
    model_calls = [row for row in table(run, "completions") if row["model"] != "function"]
    assert len(model_calls) == 5 * calls


def test_selector_may_have_its_own_model_group(tmp_path: Path) -> None:
    models = {"m": {"provider": "dummy"}, "small": {"provider": "dummy"}, "unused": {"provider": "dummy"}}
    agents = {"p0": {"model": "m", "selector": "small"}}
    path = passages_spec(tmp_path, best_of_rules("critic"), models=models, agents=agents)
    plan = Plan(load_spec(path))
    assert {estimate.group: estimate.calls[1] for estimate in estimate_costs(plan)} == {"m": 4, "small": 3}
    other_models = {**models, "small": {"provider": "dummy", "answer_words": 30}}
    changed_plan = Plan(load_spec(passages_spec(tmp_path, best_of_rules("critic"), models=other_models, agents=agents)))
    assert plan.game_hash != changed_plan.game_hash
    assert run_spec(path, tmp_path / "results").manifest.completions == 7


def test_steps_may_have_different_numbers_of_candidates(tmp_path: Path) -> None:
    cycle = [
        *({"speak": {"p0": ["main"]}, "best_of": {"n": n, "by": "critic"}} for n in (4, 2)),
        {"speak": {"judge": ["main"]}},
    ]
    changed_rules = {"cycle": cycle, "parameters": {"max_message_rounds": 3, "min_message_rounds": 3}}
    path = passages_spec(tmp_path, changed_rules)
    (estimate,) = estimate_costs(Plan(load_spec(path)))
    rows = table(run_spec(path, tmp_path / "results").folder.path, "completions")
    counts = Counter((row["round"], row["agent"]) for row in rows)
    assert counts == {(0, "p0"): 4, (0, "p0.critic"): 4, (1, "p0"): 2, (1, "p0.critic"): 2, (2, "judge"): 1}
    assert estimate.calls == (13, 13)


@pytest.mark.full
@pytest.mark.parametrize("by", ["preference", "critic", "judge", "function"])
def test_replayed_and_rebuilt_runs_have_the_same_tables(by: str, tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules(by), size=4, **LOGPROBS)
    first = run_spec(path, tmp_path / "results").folder.path
    replayed = run_spec(path, tmp_path / "replayed", replay=ReplayOf(first)).folder.path
    assert derived_files(first) == derived_files(replayed)
    done = nip_run_here("verify", str(first), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all recorded numbers follow from the journal" in done.stdout


@pytest.mark.full
def test_reading_a_run_executes_no_selector_function(tmp_path: Path) -> None:
    path = passages_spec(tmp_path, best_of_rules("function"))
    counter = tmp_path / "calls"
    (tmp_path / "prompts" / "p0.function.py").write_text(
        "def select(candidates, game):\n"
        f"    with open({str(counter)!r}, 'a') as file:\n        file.write('x')\n    return 1\n"
    )
    run = run_spec(path, tmp_path / "results").folder.path
    run_spec(path, tmp_path / "replayed", replay=ReplayOf(run))
    for command in (("verify", str(run)), ("show", str(run)), ("export", str(run), "--format", "inspect")):
        assert nip_run_here(*command, cwd=tmp_path).returncode == 0
    assert counter.read_text() == "x"


@pytest.mark.gate
def test_cache_answers_every_candidate_and_judgment_of_a_second_run(tmp_path: Path) -> None:
    with run_chat_server(text="I think so. Score: 3") as server:
        path = passages_spec(
            tmp_path, best_of_rules("critic"), base_url=server.base_url, size=3, cache="cache.sqlite",
            retry={"invalid_response": {"attempts": 1}},
        )  # fmt: skip
        first = run_spec(path, tmp_path / "one").folder.path
        requests = server.requests
        second = run_spec(path, tmp_path / "two").folder.path
        assert server.requests == requests == 3 * 5  # the three candidates of a game are one call
    assert derived_files(first) == derived_files(second)


@pytest.mark.gate
def test_candidates_are_one_call_if_the_server_supports_several_choices(tmp_path: Path) -> None:
    with run_chat_server(record=100) as server:
        path = passages_spec(
            tmp_path, best_of_rules("preference", 4), base_url=server.base_url, size=3,
            retry={"invalid_response": {"attempts": 1}},
        )  # fmt: skip
        run = run_spec(path, tmp_path / "results").folder.path
        bodies = [json.loads(request["body"]) for request in server.recorded_requests()]
        assert server.requests == 3 * 3
    assert Counter(body.get("n", 1) for body in bodies) == {1: 6, 4: 3}
    assert len([row for row in table(run, "completions") if row["agent"] == "p0"]) == 12
    samples = Counter(tuple(record["sample"]) for record in journal_records(run) if record["kind"] == "call")
    assert set(samples.values()) == {1}
    done = nip_run_here("verify", str(run), cwd=tmp_path)
    assert "all recorded numbers follow from the journal" in done.stdout


@pytest.mark.full
def test_resumed_run_repeats_no_recorded_call(tmp_path: Path) -> None:
    with run_chat_server(text="Score: 4. Decision: accept", latency=[0.0, 0.02]) as server:
        changes: dict[str, Any] = {"base_url": server.base_url, "size": 12, "rollouts": {"concurrency": 3}}
        path = passages_spec(tmp_path, best_of_rules("critic"), models={"m": {"share_prompts": False}}, **changes)
        expected = derived_files(run_spec(path, tmp_path / "whole").folder.path)
        call_count = server.requests
        for goal in (9, 30, 60):
            process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
            wait_for_requests(server, "requests", call_count + goal, process)
            process.kill()
            process.wait()
        assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)) == 0
        run = only_run(tmp_path / "results")
        assert Counter(read_calls(run)).most_common(1)[0][1] == 1
        assert len(read_calls(run)) == call_count
    assert derived_files(run) == expected


# Consent


def test_function_from_a_downloaded_folder_needs_consent(tmp_path: Path) -> None:
    downloaded = tmp_path / "got"
    path = passages_spec(downloaded, best_of_rules("function"))
    counter = tmp_path / "calls"
    (downloaded / "prompts" / "p0.function.py").write_text(
        f"from pathlib import Path\nPath({str(counter)!r}).touch()\ndef select(candidates, game):\n    return 1\n"
    )
    (downloaded / MARKER).write_bytes(marker_bytes("run/acme/x@1", "0" * 64, "file:/r"))
    own_spec = tmp_path / "own.yaml"
    paths = {"prompts": "got/prompts", "protocol": {"use": "got/rules.yaml"}, "dataset": {"path": "got/data.jsonl"}}
    own_spec.write_text(json.dumps({**json.loads(path.read_text()), **paths}))
    for spec in (path, own_spec):
        with pytest.raises(UsageError, match="allow-command"):
            run_spec(spec, tmp_path / "results")
    assert not counter.exists()
    run_spec(path, tmp_path / "results", allow_commands=["python"])
    assert counter.exists()


def test_check_shows_that_a_function_runs(tmp_path: Path) -> None:
    passages_spec(tmp_path, best_of_rules("function"))
    assert "command:python" in nip_run_here("check", "spec.yaml", cwd=tmp_path).stdout
    assert allowed_commands(["python"])


# Display


def test_show_prints_the_selected_candidate_and_the_private_notes(tmp_path: Path) -> None:
    changed_rules = {**best_of_rules("critic"), "agents": {"p0": {"scratchpad": "Say:"}}}
    run = run_spec(passages_spec(tmp_path, changed_rules), tmp_path / "results").folder.path
    stdout = nip_run_here("show", str(run), "d0", cwd=tmp_path).stdout
    selected = next(row for row in table(run, "completions") if row["selected"])
    number = (selected["vote"] or 0) + 1
    assert f"candidate {number} of 3 by critic, score {selected['score']:g})" in stdout
    notes, _, message = selected["raw_message"].partition("Say:")
    assert f"private notes: delivered to no one)\n  | {notes.strip()}\n" in stdout
    assert message.strip() in stdout


def test_array_environment_refuses_a_protocol_with_candidates(tmp_path: Path) -> None:
    spec = load_spec(passages_spec(tmp_path, best_of_rules("critic")))
    with pytest.raises(ValueError, match="selects answers from candidates"):
        Environment(spec.protocol)
