"""Runs whose provers state the answer or sub-claim that is judged, labelled by a column or by a Python function."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError, UsageError
from runner.base.package_data import PROTOCOLS
from runner.documents.fetched_files import MARKER, marker_bytes
from runner.game.prompts.templates import template_names
from runner.game.protocols.loader import load_protocol
from runner.results.tasks import Task
from runner.rollouts.agents.environment import Environment
from runner.rollouts.estimate import estimate_costs, max_calls
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome
from runner.runs.execution.spending import max_spending
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from tests.support.hidden_passages import passages_spec, play_script
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here, start_nip_run_silently, wait_for_requests, wait_or_kill
from tests.support.runs import derived_files, metric, only_run, read_calls, run_spec, table
from tests.support.servers.chat_client import run_chat_server

DESIGNS = {"proposer_critic": (24, 4), "prover_estimator": (16, 5)}
"""The number of games of a design's spec, and of the calls in each of them."""
EXACT = {"checker": {"by": "exact", "column": "claim"}}
FUNCTION = {"checker": {"by": "function", "function": "grading:check"}}
ANSWER_RULES: dict[str, Any] = {
    "cycle": [{"speak": {"p0": ["main"]}, "states": "answer"}, {"speak": {"judge": ["main"]}}],
    "parameters": {"max_message_rounds": 2, "min_message_rounds": 2},
    "private": None,
}
CLAIM_RULES: dict[str, Any] = {
    **ANSWER_RULES,
    "cycle": [{"speak": {"p0": ["main"]}, "states": "claims", "pick_claim": True}, {"speak": {"judge": ["main"]}}],
}
TEMPLATES = {"p0": "Say {{ states }}.", "p1": "{{ stance }}", "judge": "{{ accept }} {{ reject }}"}


def stating_spec(folder: Path, rules: dict[str, Any], dataset: dict[str, Any], check: str = "", **changes: Any) -> Path:
    """Write a spec whose first prover states what is judged. `check` is the body of the checker's function."""
    path = passages_spec(folder, rules, dataset=dataset, **changes)
    for name, text in TEMPLATES.items():
        (folder / "prompts" / f"{name}.jinja").write_text(text)
    if check:
        (folder / "prompts" / "grading.py").write_text(f"def check(text, columns):\n    {check}\n")
    return path


# The designs


@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_has_at_most_sixty_lines_and_uses_every_template(name: str) -> None:
    for path in (PROTOCOLS / f"{name}.yaml", ROOT / "specs" / f"{name}.yaml"):
        assert len(path.read_text().splitlines()) <= 60
    templates = {path.stem for path in (ROOT / "prompts" / "arithmetic" / name).glob("*.jinja")}
    assert templates == set(template_names(load_protocol(name)))
    for path in (ROOT / "runner").rglob("*.py"):
        assert name not in path.read_text(), path


@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_plays_without_a_network_and_its_labels_follow_from_the_answers(name: str, tmp_path: Path) -> None:
    games, calls = DESIGNS[name]
    path = ROOT / "specs" / f"{name}.yaml"
    (estimate,) = estimate_costs(Plan(load_spec(path)))
    run = run_spec(path, tmp_path / "results").folder.path
    rows = table(run, "rollouts")
    completions = [row for row in table(run, "completions") if row["model"] != "function"]
    assert estimate.calls == (games * calls, games * calls) == (len(completions),) * 2
    points = {row["id"]: row for row in map(json.loads, (run / "inputs/dataset.jsonl").read_text().splitlines())}
    assert {point["label"] for point in points.values()} == {None}
    labels = Counter(row["y"] for row in rows)
    assert set(labels) == {0, 1}
    for row in rows:
        assert row["y"] == int(is_right(row["judged_text"], points[row["datapoint_id"]].get("target")))
        assert row["correct"] == (row["decision"] == row["y"])
        assert json.loads(row["rewards"])[load_protocol(name).verifier_name] == (1.0 if row["correct"] else -1.0)
    right = sum(row["correct"] for row in rows)
    result = json.loads((run / "metrics.json").read_text())["metrics"]
    assert next(row for row in result if row["metric"] == "accuracy")["value"] == pytest.approx(right / games)
    assert next(row for row in result if row["metric"] == "accuracy_1")["n"] == labels[1]


def is_right(text: str, target: str | None) -> bool:
    """Judge an answer or a sum independently of the code under test."""
    if target is not None:
        return text == target
    first, second, total = map(int, re.fullmatch(r"(\d+) \+ (\d+) = (\d+)", text).groups())  # type: ignore[union-attr]
    return first + second == total


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.full
def test_a_design_can_be_replayed_rebuilt_shown_and_reported(name: str, tmp_path: Path) -> None:
    run = run_spec(ROOT / "specs" / f"{name}.yaml", tmp_path / "results").folder.path
    replayed = run_spec(ROOT / "specs" / f"{name}.yaml", tmp_path / "replayed", replay=ReplayOf(run)).folder.path
    assert derived_files(run) == derived_files(replayed)
    done = nip_run_here("verify", str(run), cwd=tmp_path)
    assert "all recorded numbers follow from the journal" in done.stdout
    row = table(run, "rollouts")[0]
    output = nip_run_here("show", str(run), row["rollout_id"], cwd=tmp_path).stdout
    label = "accept" if row["y"] else "reject"
    assert f"{row['judged_text']} (label: {label})" in output
    assert re.search(rf"^outcome: decided, verdict: \w+ \((right|wrong)\), label: {label}$", output, re.MULTILINE)
    assert nip_run_here("report", str(run), "-o", "report.html", cwd=tmp_path).returncode == 0
    judge = load_protocol(name).verifier_name
    done = nip_run_here("export", str(run), "--format", "inspect", "--subject", judge, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_the_proposer_design_plays_at_a_server_that_never_gets_the_right_answers(tmp_path: Path) -> None:
    text = "I computed it.\nAnswer: 2231\nDecision: accept"
    spec = ROOT / "specs" / "proposer_critic.yaml"
    with run_chat_server(text=text, record=1000) as server:
        overrides = ["models.offline={model: tiny, base_url: " + server.base_url + ", chat_format: openai}"]
        run = run_spec(spec, tmp_path / "results", *overrides, "fine_tune=null").folder.path
        chats = [json.loads(request["body"])["messages"] for request in server.recorded_requests()]
    rows = {row["id"]: row for row in map(json.loads, (run / "inputs/dataset.jsonl").read_text().splitlines())}
    for row in table(run, "rollouts"):
        assert row["y"] == row["correct"] == (rows[row["datapoint_id"]]["target"] == "2231")
    first_chats = [chat for chat in chats if len(chat) == 1]
    assert len(first_chats) == 24
    for chat in first_chats:
        point = next(row for row in rows.values() if row["question"] in chat[0]["content"])
        prompt_words = re.findall(r"\w+", chat[0]["content"].replace(point["question"], ""))
        assert point["target"] not in prompt_words


@pytest.mark.full
def test_the_estimator_design_continues_with_the_picked_claim_at_a_server(tmp_path: Path) -> None:
    claims, estimates = (
        "Claim 1: 1 + 1 = 2\nClaim 2: 50",
        "Claim 1: 90%\nClaim 2: 5%\nDecision: accept\nConfidence: 60%",
    )
    with run_chat_server(text=claims, record=1000) as prover, run_chat_server(text=estimates, record=1000) as estimator:
        overrides = [
            f"+models.{name}={{model: tiny, base_url: {server.base_url}, chat_format: openai}}"
            for name, server in (("a", prover), ("b", estimator))
        ]
        run = run_spec(
            ROOT / "specs" / "prover_estimator.yaml", tmp_path / "results", *overrides, "fine_tune=null",
            "agents.prover.model=a", "agents.estimator.model=b", "dataset.limit=8",
        ).folder.path  # fmt: skip
        requests = [*prover.recorded_requests(), *estimator.recorded_requests()]
    chats = [json.loads(request["body"])["messages"] for request in requests]
    final = [chat[0]["content"] for chat in chats if "Decide whether this sub-claim" in chat[0]["content"]]
    judged = [row["judged_text"] for row in table(run, "rollouts")]
    assert {*judged} == {"1 + 1 = 2", "50"}
    assert [row["y"] for row in table(run, "rollouts")] == [int(text == "1 + 1 = 2") for text in judged]
    assert Counter(text for text in judged) == Counter(
        text.partition("<sub_claim>\n")[2].partition("\n")[0] for text in final
    )
    splits = [chat[0]["content"] for chat in chats if "This is split 2 of 2" in chat[0]["content"]]
    assert len(splits) == 8
    statements = [json.loads(row["statements"]) for row in table(run, "rollouts")]
    assert all([part["round"] for part in parts] == [0, 1, 2, 3] for parts in statements)
    assert all(parts[0]["labels"] == [1, 0] and parts[1]["estimates"] == [0.9, 0.05] for parts in statements)


# Labels


@pytest.mark.full
def test_a_budget_counts_no_call_of_a_function(tmp_path: Path) -> None:
    with run_chat_server(text="I computed it.\nAnswer: 22\nDecision: accept") as server:
        model = {
            "provider": "openai", "model": "x", "base_url": server.base_url, "max_tokens": 200,
            "price": {"input": 1, "output": 10},
        }  # fmt: skip
        path = stating_spec(tmp_path, ANSWER_RULES, FUNCTION, "return True", models={"m": model}, budget={"usd": 5})
        run = run_spec(path, tmp_path / "results")
        assert max_spending(saved_plan(run.folder), run.folder).completions == server.requests > 0
    assert run.manifest.cost_usd_at_most == run.manifest.cost_usd


@pytest.mark.parametrize("label", [0, 1])
def test_only_the_label_depends_on_the_checker(label: int, tmp_path: Path) -> None:
    path = stating_spec(tmp_path, ANSWER_RULES, FUNCTION, "return True")
    answers = {"p0": "Answer: Rome", "p0.checker": f"Label: {label}"}
    rollout, script = asyncio.run(play_script(path, answers))
    assert (rollout.label, rollout.correct) == (label, label == 1)
    assert rollout.rewards == {"p0": 1.0, "p1": 0.0, "judge": 1.0 if label else -1.0}
    player_requests = [request for request in script.requests if request.sample.agent != "p0.checker"]
    assert [request.messages for request in player_requests][1][-1]["content"] == "Answer: Rome"
    assert not any("label" in str(request.messages).lower() for request in player_requests)
    (check,) = script.prompts("p0.checker")
    assert json.loads(check)["text"] == "Rome"
    assert json.loads(check)["columns"]["claim"] == "Claim 0"


def test_an_answer_is_compared_with_a_column_that_no_agent_sees(tmp_path: Path) -> None:
    path = stating_spec(tmp_path, ANSWER_RULES, EXACT)
    for answer, label in (("claim 0.", 1), ("claim 1", 0)):
        rollout, _ = asyncio.run(play_script(path, {"p0": f"Answer: {answer}"}))
        assert (rollout.label, rollout.subject and rollout.subject.text) == (label, answer)
    (tmp_path / "prompts" / "judge.jinja").write_text("{{ claim }} {{ accept }} {{ reject }}")
    with pytest.raises(SpecError, match=r"judge\.jinja:1:4: claim: the column has the right answer"):
        load_spec(path)


def test_an_unusable_answer_is_requested_again_and_then_ends_the_game_without_a_label(tmp_path: Path) -> None:
    path = stating_spec(tmp_path, ANSWER_RULES, {"checker": {"by": "number", "column": "id"}})
    (tmp_path / "data.jsonl").write_text('{"id": "d7", "passage": "p", "claim": "c"}\n')
    number = {"checker": {"by": "number", "column": "passage"}}
    path = stating_spec(tmp_path, ANSWER_RULES, number, retry={"invalid_response": {"then": "empty_message"}})
    (tmp_path / "data.jsonl").write_text('{"id": "d7", "passage": "seven is 7", "claim": "c"}\n')
    rollout, script = asyncio.run(play_script(path, {"p0": ["I do not know", "Answer: 6 or 7", "Answer: 7 apples"]}))
    assert (rollout.label, len(script.prompts("p0")), rollout.rounds[0].retry_counts["p0"]) == (1, 3, 2)
    rollout, script = asyncio.run(play_script(path, {"p0": "Answer: none"}))
    assert (rollout.outcome, rollout.label, rollout.correct) == (Outcome.INVALID_RESPONSE, None, None)
    assert "StatementError: the answer must state exactly one number" in (rollout.error or "")


def test_games_without_a_label_do_not_count_in_accuracy(tmp_path: Path) -> None:
    with run_chat_server(text="Decision: accept") as server:
        path = stating_spec(tmp_path, ANSWER_RULES, EXACT, base_url=server.base_url, size=3)
        result = run_spec(path, tmp_path / "results")
    assert Counter(row["outcome"] for row in table(result.folder.path, "rollouts")) == {"invalid_response": 3}
    assert {(row["y"], row["correct"]) for row in table(result.folder.path, "rollouts")} == {(None, None)}
    assert metric(result, "accuracy")["value"] is None


# Checkers that fail


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("return 1 / 0", r"failed on '\d+': ZeroDivisionError: division by zero \(line 2\)"),
        ("return 1", r"failed on '\d+': it returned 1; return True or False"),
        ("return exit(3)", r"failed on '\d+': SystemExit: 3 \(line 2\)"),
        ("return columns['answer'] == text", r"failed on '\d+': KeyError: 'answer'"),
    ],
)
def test_a_failing_checker_is_an_error_of_its_game_and_gives_no_label(check: str, message: str, tmp_path: Path) -> None:
    check = f"{check} if columns['claim'] == 'Claim 1' else True"
    path = stating_spec(tmp_path, ANSWER_RULES, FUNCTION, check, size=4, rollouts={"max_transport_failed": 0.5})
    result = run_spec(path, tmp_path / "results")
    rows = {row["datapoint_id"]: row for row in table(result.folder.path, "rollouts")}
    failed_row = rows.pop("d1")
    assert re.search(f"CheckerError: the checker grading:check {message}", failed_row["error"])
    assert (failed_row["outcome"], failed_row["y"], failed_row["correct"]) == ("transport_failed", None, None)
    assert [row["y"] for row in rows.values()] == [1, 1, 1]
    assert metric(result, "accuracy")["n"] == 3
    output = nip_run_here("show", str(result.folder.path), cwd=tmp_path).stdout
    assert "1 of 4 rollouts have no label, because the checker failed" in output.replace("\n", " ")


@pytest.mark.full
def test_a_game_whose_checker_failed_is_played_again_by_the_same_command(tmp_path: Path) -> None:
    flag = tmp_path / "works"
    check = f"import os; assert os.path.exists({str(flag)!r}), 'the sandbox is down'; return True"
    path = stating_spec(tmp_path, ANSWER_RULES, FUNCTION, check, size=2)
    run = run_spec(path, tmp_path / "results").folder.path
    assert Counter(row["outcome"] for row in table(run, "rollouts")) == {"transport_failed": 2}
    calls = read_calls(run)
    flag.touch()
    run_spec(path, tmp_path / "results")
    assert Counter(row["y"] for row in table(run, "rollouts")) == {1: 2}
    assert [call for call in read_calls(run) if call in calls] == calls, "no answer was requested again"


@pytest.mark.full
def test_reading_a_run_executes_no_checker(tmp_path: Path) -> None:
    counter = tmp_path / "calls"
    check = f"with open({str(counter)!r}, 'a') as file:\n        file.write('x')\n    return True"
    run = run_spec(stating_spec(tmp_path, CLAIM_RULES, FUNCTION, check), tmp_path / "results").folder.path
    texts = json.loads(table(run, "rollouts")[0]["statements"])[0]["texts"]
    (tmp_path / "prompts" / "grading.py").unlink()
    for command in (("verify", str(run)), ("show", str(run))):
        assert nip_run_here(*command, cwd=tmp_path).returncode == 0
    assert counter.read_text() == "x" * len(texts)


def test_a_checker_from_a_downloaded_folder_runs_only_with_consent(tmp_path: Path) -> None:
    path = stating_spec(tmp_path / "got", ANSWER_RULES, FUNCTION, "return True")
    (tmp_path / "got" / MARKER).write_bytes(marker_bytes("run/acme/x@1", "0" * 64, "file:/r"))
    with pytest.raises(UsageError, match="allow-command"):
        run_spec(path, tmp_path / "results")
    run_spec(path, tmp_path / "results", allow_commands=["python"])


# Errors before play


def test_wrong_settings_of_a_checker_are_errors_before_play(tmp_path: Path) -> None:
    early_rules = {**ANSWER_RULES, "parameters": {"max_message_rounds": 2, "min_message_rounds": 1}}
    early_rules = {**early_rules, "cycle": [{"speak": {"judge": ["main"]}}, *ANSWER_RULES["cycle"]]}
    no_checker = {"checker": None}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (ANSWER_RULES, no_checker, "dataset.checker: a prover of hidden states the answer that is judged; set"),
        ({"private": None}, EXACT, "dataset.checker: no step of hidden states what a checker labels; remove it"),
        (CLAIM_RULES, EXACT, "dataset.checker.by: exact compares answers, but hidden continues with sub-claims"),
        (ANSWER_RULES, {"checker": {"by": "exact"}}, "by: exact needs the key column"),
        (ANSWER_RULES, {"checker": {"by": "function"}}, "by: function needs the key function"),
        (ANSWER_RULES, {"checker": {**EXACT["checker"], "function": "a:b"}}, "dataset.checker.function: has no"),
        (ANSWER_RULES, {"checker": {**EXACT["checker"], "tolerance": 1.0}}, "dataset.checker.tolerance: has no"),
        (ANSWER_RULES, {"checker": {"by": "exact", "column": "clam"}}, "no column 'clam'; did you mean 'claim'"),
        (ANSWER_RULES, {"checker": {"by": "exact", "column": "label"}}, "the name is reserved, so rename the column"),
        (ANSWER_RULES, {"checker": {"by": "function", "function": "a.b"}}, "dataset.checker.function"),
        (ANSWER_RULES, {"checker": {"by": "function", "function": "no:check"}}, r"no Python file .*; its folder"),
        (ANSWER_RULES, {"checker": {"by": "function", "function": "grading:test"}}, r"a function test\(text, c"),
        (early_rules, EXACT, "the verifier of hidden may decide in round 0, before round 1 states what it judges"),
    ]  # fmt: skip
    for index, (rules, dataset, message) in enumerate(cases):
        with pytest.raises(SpecError, match=message):
            load_spec(stating_spec(tmp_path / str(index), rules, dataset, "return True"))


def test_the_column_of_a_number_checker_must_have_numbers(tmp_path: Path) -> None:
    path = stating_spec(tmp_path, ANSWER_RULES, {"checker": {"by": "number", "column": "passage"}})
    (tmp_path / "data.jsonl").write_text('{"id": "d1", "passage": "1 or 2", "claim": "c"}\n')
    with pytest.raises(SpecError, match="column 'passage' must have exactly one number; rows without it: d1"):
        load_spec(path)


def test_claims_without_a_checker_keep_the_label_of_the_datapoint(tmp_path: Path) -> None:
    path = stating_spec(tmp_path, CLAIM_RULES, {}, size=4)
    rows = table(run_spec(path, tmp_path / "results").folder.path, "rollouts")
    assert [row["y"] for row in rows] == [0, 1, 0, 1]
    assert all("labels" not in json.loads(row["statements"])[0] for row in rows)


def test_the_array_environment_refuses_a_protocol_with_statements() -> None:
    with pytest.raises(ValueError, match="state answers or sub-claims"):
        Environment(load_protocol("prover_estimator"))


@pytest.mark.full
def test_check_shows_statements_the_claim_pick_and_labels(tmp_path: Path) -> None:
    path = str(ROOT / "specs" / "prover_estimator.yaml")
    output = nip_run_here("check", path, cwd=tmp_path).stdout
    for line in (
        "(answers are labeled by the function equations:check)", "sends * -> command:python",
        "round 0: the message of prover must state: claims (2 to 4)",
        "round 1: the message of estimator must state: estimates",
        "round 3: then the rollout's seed picks a sub-claim, and the game continues with it", "at most 240 calls",
    ):  # fmt: skip
        assert line in output, line
    deeper = load_spec(Path(path), ["protocol.max_depth=3", "protocol.max_message_rounds=7"])
    assert max_calls(estimate_costs(Plan(deeper)), deeper.experiment) == 16 * 7 * 3
    assert "error" not in nip_run_here("check", path, "--json", cwd=tmp_path).stderr


@pytest.mark.full
def test_runs_with_the_same_checker_are_compared_and_share_a_task(tmp_path: Path) -> None:
    spec = ROOT / "specs" / "proposer_critic.yaml"
    other_checker = "dataset.checker={by: exact, column: topic}"
    runs = [
        run_spec(spec, tmp_path, f"seed={i}", *extra).folder for i, extra in ((0, ()), (1, ()), (2, (other_checker,)))
    ]
    tasks = [Task.of_run(run, None).sha256 for run in runs]
    assert tasks[0] == tasks[1] != tasks[2]
    done = nip_run_here("compare", runs[0].run_id, runs[1].run_id, "--results", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accuracy: two samples of one system" in done.stdout
    assert re.search(r"\(label by checker \w{8}\): right in", done.stdout)
    rows = {run.run_id: {row["datapoint_id"]: row["y"] for row in table(run.path, "rollouts")} for run in runs[:2]}
    assert len({tuple(labels.items()) for labels in rows.values()}) == 2, "labels differ between the runs"


# Kills, workers, trees and other judges


@pytest.mark.full
@pytest.mark.parametrize("rules", [ANSWER_RULES, CLAIM_RULES], ids=["answer", "claims"])
def test_a_killed_run_repeats_no_recorded_call(rules: dict[str, Any], tmp_path: Path) -> None:
    text = "Answer: 3\nClaim 1: 3\nClaim 2: 4\nDecision: accept"
    with run_chat_server(text=text, latency=[0.0, 0.02]) as server:
        path = stating_spec(
            tmp_path, rules, FUNCTION, "return columns['claim'][-1] in '13' and '3' in text", base_url=server.base_url,
            size=24, rollouts={"concurrency": 3},
        )  # fmt: skip
        expected = derived_files(run_spec(path, tmp_path / "whole").folder.path)
        needed = server.requests
        for goal in (5, 15, 30):
            process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
            wait_for_requests(server, "requests", needed + goal, process)
            process.kill()
            process.wait()
        assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)) == 0
    run = only_run(tmp_path / "results")
    assert Counter(read_calls(run)).most_common(1)[0][1] == 1
    assert derived_files(run) == expected
    assert {row["y"] for row in table(run, "rollouts")} == {0, 1}


@pytest.mark.full
def test_worker_processes_give_the_same_labels(tmp_path: Path) -> None:
    spec, workers = ROOT / "specs" / "prover_estimator.yaml", "execution={engine: processes, processes: 2}"
    single_process_run = run_spec(spec, tmp_path / "one").folder.path
    parallel_run = run_spec(spec, tmp_path / "two", workers).folder.path
    assert derived_files(single_process_run) == derived_files(parallel_run)


@pytest.mark.full
def test_another_judge_gets_the_labels_of_the_run_whose_games_it_judges(tmp_path: Path) -> None:
    for name in DESIGNS:
        spec = ROOT / "specs" / f"{name}.yaml"
        run = run_spec(spec, tmp_path / name, "seed=1").folder.path
        done = nip_run_here("rejudge", str(run), "--results", str(tmp_path / name), "seed=1", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        (judged,) = [path for path in (tmp_path / name / "runs").iterdir() if path != run]
        labels = [{row["datapoint_id"]: row["y"] for row in table(path, "rollouts")} for path in (run, judged)]
        assert labels[0] == labels[1]
        assert nip_run_here("verify", str(judged), cwd=tmp_path).returncode == 0


@pytest.mark.full
def test_each_branch_of_a_tree_has_the_label_of_its_own_answer(tmp_path: Path) -> None:
    path = stating_spec(tmp_path, ANSWER_RULES, EXACT, size=4, rollouts={"num_responses_per_timestep": 2})
    run = run_spec(path, tmp_path / "results").folder.path
    rows = table(run, "rollouts")
    assert {row["y"] for row in rows} == {0, 1}
    for row in rows:
        assert row["y"] == int(row["judged_text"] == f"Claim {row['datapoint_id'][1:]}")
    assert "all recorded numbers follow" in nip_run_here("verify", str(run), cwd=tmp_path).stdout
