"""Other features with listed answers, as the table in `docs/how-to/ask-questions-with-several-answers.md` promises."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runner.api.queries import compare
from runner.base.errors import SpecError
from runner.base.exit_codes import ExitCode
from runner.exports.mlflow.games import GamesRecordBuilder
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.runs.finished.result import FinishedRun
from runner.spec.loader import load_spec
from tests.support.listed_answers import answer_spec, use_model_server
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here
from tests.support.runs import metric, run_spec, table
from tests.support.servers.answers import run_answer_server

pytestmark = pytest.mark.full

SCHEMAS = ROOT / "tests" / "fixtures" / "every_eval_ever"


@pytest.fixture(scope="module")
def debate_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("played")
    return run_spec(answer_spec(folder, "answer_debate", 12, 4), folder / "results")


def run_command(*arguments: str | Path, cwd: Path, code: int = 0) -> str:
    done = nip_run_here(*arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_mlflow_gets_the_metrics_and_each_game_with_its_letters(debate_run: FinishedRun) -> None:
    with closing(GamesRecordBuilder(RunFolder(debate_run.path), journal=False)) as games:
        record = games.record()
        traces = list(record.traces())
    final_metrics = {point.key: point.value for point in record.metrics if point.step == 12}
    for name in ("accuracy", "answer_brier", "answer_log_score"):
        assert final_metrics[name] == metric(debate_run, name)["value"]
    rows = table(debate_run.path, "rollouts")
    assert len(traces) == len(rows) == 12
    for trace, row in zip(traces, rows, strict=True):
        assert row["answer"] in json.dumps([trace.inputs, trace.outputs, dict(trace.tags)])


@pytest.mark.parametrize("subject", ["verifier", "prover0"])
def test_a_record_of_every_eval_ever_is_valid_and_names_answers_by_letter(
    debate_run: FinishedRun, tmp_path: Path, subject: str
) -> None:
    organization = ("--organization", "Acme Evals", "--relationship", "third_party")
    arguments = (
        "export",
        debate_run.path,
        "--format",
        "every-eval-ever",
        "--subject",
        subject,
        "--out",
        tmp_path,
        *organization,
    )
    run_command(*arguments, cwd=tmp_path)
    (path,) = tmp_path.glob("data/*/*/*/*.json")
    record = json.loads(path.read_text())
    samples = [json.loads(line) for line in path.with_name(f"{path.stem}_samples.jsonl").read_text().splitlines()]
    for name, values in (("eval", [record]), ("instance_level_eval", samples)):
        validator = jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
        for value in values:
            validator.validate(value)
    rows = {row["rollout_id"]: row for row in table(debate_run.path, "rollouts")}
    for sample in samples:
        row = rows[sample["metadata"]["rollout_id"]]
        assert sample["evaluation"]["is_correct"] == row["correct"]
        assert sample["input"]["reference"] == json.loads(row["right_answers"])


def test_scout_gets_every_agents_chat(debate_run: FinishedRun, tmp_path: Path) -> None:
    run_command("export", debate_run.path, "--format", "scout", "--out", tmp_path, cwd=tmp_path)
    assert list(tmp_path.glob("*.parquet"))


def test_a_sweep_ranks_its_runs_by_accuracy(tmp_path: Path) -> None:
    path = answer_spec(tmp_path, "answer_debate", 8, 3, sweep={"verdict.form": ["answer", "distribution", "scores"]})
    run_command("run", path, "-q", cwd=tmp_path)
    runs = list(Results(tmp_path / "results").runs())
    assert len(runs) == 3
    leaderboard = json.loads(run_command("leaderboard", "--json", cwd=tmp_path))
    values = [row["accuracy"] for row in leaderboard]
    assert len(values) == 3
    assert values == sorted(values, reverse=True)


def test_a_run_stops_once_its_accuracy_is_known_well_enough(tmp_path: Path) -> None:
    result = run_spec(answer_spec(tmp_path, "consultancy", 60, 3, until={"width": 0.7}), tmp_path / "results")
    until = result.metrics["until"]
    assert until["decided"]
    assert until["games"] == len(table(result.path, "rollouts")) < 60
    assert metric(result, "accuracy")["ci_high"] - metric(result, "accuracy")["ci_low"] <= 0.7


def test_a_published_run_is_fetched_and_reproduced(tmp_path: Path) -> None:
    with run_answer_server(lambda _, texts, argued: "Decision: " + ", ".join(
        f"{letter} {0.7 if letter == argued[0] else 0.3 / (len(texts) - 1)}" for letter in texts
    )) as server:  # fmt: skip
        agents = {"prover0": {"model": "m"}, "prover1": {"model": "m"}, "verifier": {"model": "j"}}
        path = answer_spec(tmp_path, "answer_debate", 8, 3, agents=agents, **use_model_server(server.base_url))
        original = run_spec(path, tmp_path / "results")
        run_command(
            "publish", original.path, "--to", "registry", "--as", "acme", "--licence", "MIT", "--force", cwd=tmp_path
        )
        reference = f"run/acme/{original.run_id}@1"
        run_command("get", reference, "got", "--from", "registry", cwd=tmp_path)
        assert "follows from the transcripts" in run_command("reproduce", "got", cwd=tmp_path)
        fresh = run_command(
            "reproduce", "got", "--fresh", "--json", "--set", f"models.m.base_url={server.base_url}",
            "--set", f"models.j.base_url={server.base_url}", cwd=tmp_path, code=ExitCode.UNDECIDED,
        )  # fmt: skip
    assert '"differing": 0' in fresh


def test_another_judge_decides_about_the_same_debates_in_the_same_order(
    debate_run: FinishedRun, tmp_path: Path
) -> None:
    run_command(
        "rejudge", debate_run.path, "+models.other={provider: dummy}", "agents.verifier.model=other", cwd=tmp_path
    )
    (judged,) = (tmp_path / "results" / "runs").iterdir()
    rows = [table(path, "rollouts") for path in (debate_run.path, judged)]
    for column in ("datapoint_id", "answer_order", "right_answers", "argued_answers"):
        assert [row[column] for row in rows[0]] == [row[column] for row in rows[1]]
    (pair,) = compare(debate_run.path, judged, metric="accuracy").pairs
    assert (pair.paired, pair.datapoints) == (True, 12)


def test_swapped_seats_are_played(tmp_path: Path) -> None:
    agents = {"prover0": {"model": "m"}, "prover1": {"model": "n"}, "verifier": {"model": "m"}}
    result = run_spec(
        answer_spec(tmp_path, "answer_debate", 6, 3, models=TWO_MODELS, seats="swap", agents=agents),
        tmp_path / "results",
    )
    assert len(table(result.path, "rollouts")) == 12
    assert not {row["metric"] for row in result.metrics["metrics"]} & {"swap_effect", "seat_score"}


def test_a_forced_guess_decides_for_the_first_right_answer(tmp_path: Path) -> None:
    path = answer_spec(tmp_path, "answer_debate", 6, 3)
    result = run_spec(path, tmp_path / "results", "protocol.force_guess=y")
    assert all(row["answer"] == json.loads(row["right_answers"])[0] for row in table(result.path, "rollouts"))


@pytest.mark.parametrize("by", ["preference", "critic", "function"])
def test_a_selector_chooses_a_candidate_for_an_argument(tmp_path: Path, by: str) -> None:
    prompts = tmp_path / "prompts"
    shutil.copytree(ROOT / "prompts" / "question_answering" / "answer_debate", prompts)
    candidates = "{% for text in speech_candidates %}{{ loop.index }}. {{ text }}\n{% endfor %}"
    for name in ("prover0", "prover1"):
        (prompts / f"{name}.preference.jinja").write_text(candidates + "Best: NUMBER")
        (prompts / f"{name}.critic.jinja").write_text("Criticize the case for {{ answer_letter }}. Score: NUMBER")
        (prompts / f"{name}.function.py").write_text("def select(candidates, game):\n    return 1\n")
    path = answer_spec(tmp_path, "answer_debate", 6, 3, prompts="prompts")
    (tmp_path / "own.yaml").write_text(BEST_OF.replace("by: judge", f"by: {by}"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "protocol": {"use": "own.yaml"}}))
    result = run_spec(path, tmp_path / "results")
    calls = [row for row in table(result.path, "completions") if row["agent"] in ("prover0", "prover1")]
    rounds = {(row["rollout_id"], row["round"], row["agent"]) for row in calls}
    assert len(calls) == 3 * len(rounds)
    assert sum(row["selected"] for row in calls) == len(rounds) >= 12


PLAYERS = {"players": {"a": {"model": "m"}, "b": {"model": "n"}}}
TWO_MODELS = {"m": {"provider": "dummy"}, "n": {"provider": "dummy"}}
BEST_OF = """
name: own
extends: answer_debate
cycle:
  - speak: {prover0: [main], prover1: [main]}
    best_of: {n: 3, by: judge}
  - speak: {verifier: [main]}
"""
PANEL = """
name: own
extends: answer_debate
agents: {second: {role: verifier, human_name: Second}}
panel: {rule: majority}
"""
REFUSED_SETTINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a forced guess of zero": ("answer_debate", {"protocol.force_guess": "zero"}, "force_guess"),
    "both stances of open provers": ("open_consultancy", {"stances": "both"}, "stances"),
    "a tournament": (
        "answer_debate",
        {"kind": "tournament", "models": TWO_MODELS, "tournament": PLAYERS},
        "the verdicts of answer_debate choose from listed answers; use a protocol without them",
    ),
    "the judge's probability": (BEST_OF, {}, "`judge` needs a single verifier that accepts or rejects"),
    "a panel": (PANEL, {}, "a panel decides to accept or reject, not between listed answers"),
}


@pytest.mark.parametrize("case", REFUSED_SETTINGS)
def test_unsupported_settings_are_refused_before_any_call(tmp_path: Path, case: str) -> None:
    protocol, changes, message = REFUSED_SETTINGS[case]
    path = answer_spec(tmp_path, "answer_debate" if "\n" in protocol else protocol, 4, 4)
    if "\n" in protocol:
        (tmp_path / "own.yaml").write_text(protocol)
        path.write_text(json.dumps({**json.loads(path.read_text()), "protocol": {"use": "own.yaml"}}))
    with pytest.raises(SpecError, match=message):
        load_spec(path, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
