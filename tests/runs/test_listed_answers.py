"""Runs whose verdicts choose from listed answers: a planted judge at a loopback server, and the dummy provider."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.api.queries import compare
from runner.base.errors import SpecError, UsageError
from runner.rollouts.agents.environment import Environment
from runner.spec.loader import load_spec
from tests.support.listed_answers import NAMES, answer_spec, use_model_server, write_data
from tests.support.processes import nip_run_here
from tests.support.runs import metric, run_spec, table
from tests.support.servers.answers import run_answer_server

PROTOCOLS = ("answer_debate", "consultancy", "open_consultancy")


def find_right_answer(question: str, answers: int) -> str:
    return NAMES[int(question.removeprefix("Question ").removesuffix("?")) % answers]


def format_distribution(p: Mapping[str, float]) -> str:
    return "Decision: " + ", ".join(f"{letter} {value:.6f}" for letter, value in p.items())


def make_judge(p_if_right: float, p_if_wrong: float, answers: int = 2) -> Any:
    """Return a judge that gives a consultant's answer one probability if it is right, and another if it is wrong."""

    def judge(question: str, texts: Mapping[str, str], argued: list[str]) -> str:
        p = p_if_right if texts[argued[0]] == find_right_answer(question, answers) else p_if_wrong
        rest = (1 - p) / (answers - 1)
        return format_distribution({letter: p if letter == argued[0] else rest for letter in texts})

    return judge


def test_a_planted_judge_gives_the_expected_agent_score_difference(tmp_path: Path) -> None:
    """Use the example of arXiv 2504.03731: ln 0.8 - ln 0.6, for any order of the answers in a game."""
    with run_answer_server(make_judge(0.8, 0.6)) as server:
        agents = {"prover": {"model": "m"}, "verifier": {"model": "j"}}
        path = answer_spec(tmp_path, "consultancy", stances="both", agents=agents, **use_model_server(server.base_url))
        result = run_spec(path, tmp_path / "results")
    assert server.requests == {"prover": 24, "judge": 24}
    row = metric(result, "answer_score_difference_log", "prover")
    assert row["value"] == pytest.approx(math.log(0.8) - math.log(0.6))
    assert metric(result, "answer_score_difference", "prover")["value"] == 0.0  # it always follows the consultant
    assert metric(result, "win_rate", "prover")["value"] == 1.0
    assert metric(result, "accuracy")["value"] == 0.5
    assert metric(result, "answer_log_score")["value"] == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2)
    assert metric(result, "answer_brier")["value"] == pytest.approx((2 * 0.2**2 + 2 * 0.6**2) / 2)
    assert metric(result, "answer_ece")["value"] == pytest.approx((0.2 + 0.6) / 2)


@pytest.mark.gate
def test_a_debate_about_four_answers_has_the_score_difference_of_its_judge(tmp_path: Path) -> None:
    """The judge's probabilities depend on question and answer; each debater's difference is the mean over games."""

    def compute_weight(question: str, text: str) -> float:
        return 0.1 + ((len(question) * 7 + int(question[9:-1]) * 13 + NAMES.index(text) * 5) % 10) / 10

    def judge(question: str, texts: Mapping[str, str], argued: list[str]) -> str:
        weights = {
            letter: compute_weight(question, text) * (3 if letter in argued else 1) for letter, text in texts.items()
        }
        return format_distribution({letter: weight / sum(weights.values()) for letter, weight in weights.items()})

    with run_answer_server(judge) as server:
        agents = {"prover0": {"model": "m"}, "prover1": {"model": "m"}, "verifier": {"model": "j"}}
        path = answer_spec(
            tmp_path, "answer_debate", 16, 4, stances="both", agents=agents, **use_model_server(server.base_url)
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
    rows = table(result.path, "rollouts")
    for prover in ("prover0", "prover1"):
        total = 0.0
        for row in rows:  # the sum over answers of the log score times 1 for a right and -1 for a wrong answer
            letter, scores = json.loads(row["argued_answers"])[prover], json.loads(row["answer_scores"])
            value = 1 if letter in json.loads(row["right_answers"]) else -1
            total += value * math.log(scores[letter])
        assert metric(result, "answer_score_difference_log", prover)["value"] == pytest.approx(total / 16)


def test_an_unusable_verdict_is_requested_again_in_an_open_consultancy(tmp_path: Path) -> None:
    verdicts_by_question: dict[str, int] = {}

    def judge(question: str, texts: Mapping[str, str], argued: list[str]) -> str:
        verdicts_by_question[question] = verdicts_by_question.get(question, 0) + 1
        return "Decision: Z" if verdicts_by_question[question] == 1 else f"Decision: {argued[0]}"

    with run_answer_server(judge) as server:
        agents = {"prover": {"model": "m"}, "verifier": {"model": "j"}}
        path = answer_spec(
            tmp_path, "open_consultancy", 4, verdict={"form": "answer"}, agents=agents,
            retry={"invalid_response": {"attempts": 2}}, **use_model_server(server.base_url, prover="Rome"),
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
    rows = table(result.path, "rollouts")
    assert server.requests == {"Rome": 4, "judge": 8}
    assert metric(result, "retries_per_round", "verifier")["value"] == 0.5
    assert [row["correct"] for row in rows] == [i % 2 == 1 for i in range(4)]
    assert all(row["answer"] == json.loads(row["argued_answers"])["prover"] for row in rows)
    assert all(row["decision"] is None and row["y"] is None for row in rows)


def test_the_judges_prompt_does_not_show_which_answer_is_right(tmp_path: Path) -> None:
    """Two datasets that differ only in their labels: the judge's first prompts are the same."""
    first_prompts = []
    for shift in (0, 1):
        folder = tmp_path / str(shift)
        folder.mkdir()
        path = answer_spec(folder, "answer_debate", 6, 3)
        rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
        relabelled = [{**row, "label": NAMES[(i + shift) % 3]} for i, row in enumerate(rows)]
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in relabelled))
        done = nip_run_here("render", path, "verifier", "--json", "--results", folder / "results", cwd=folder)
        assert done.returncode == 0, done.stderr
        first_prompts.append(json.loads(done.stdout))
    assert json.dumps(first_prompts[0]["messages"][0]) == json.dumps(first_prompts[1]["messages"][0])


# The dummy provider


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", ["answer", "distribution", "scores"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_plays_with_every_form_and_its_tables_agree(tmp_path: Path, protocol: str, form: str) -> None:
    result = run_spec(answer_spec(tmp_path, protocol, 8, 4, verdict={"form": form}), tmp_path / "results")
    rows = table(result.path, "rollouts")
    points = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    assert (result.status, len(rows)) == ("done", 8)
    for row, point in zip(rows, points, strict=True):
        order, right = json.loads(row["answer_order"]), json.loads(row["right_answers"])
        assert sorted(order) == [1, 2, 3, 4]
        assert [point["answers"][order["ABCD".index(letter)] - 1] for letter in right] == [point["label"]]
        assert row["correct"] == (row["answer"] in right)
        assert (row["y"], row["decision"], row["stance"]) == (None, None, None)
        scores = None if row["answer_scores"] is None else json.loads(row["answer_scores"])
        assert (scores is None) == (form == "answer")
        assert (row["p_right"] is None) == (form != "distribution")
        if scores is not None:
            assert scores[row["answer"]] == max(scores.values())
            assert row["p_right"] in (None, pytest.approx(sum(scores[letter] for letter in right)))
    names = {row["metric"] for row in result.metrics["metrics"]}
    assert ("answer_brier" in names) == ("answer_ece" in names) == (form == "distribution")
    assert not names & {"decision", "precision", "recall", "balanced_accuracy", "completeness", "soundness_error"}


def test_a_saved_run_rebuilds_the_same_tables(tmp_path: Path) -> None:
    path = answer_spec(tmp_path, "answer_debate", 6, 3, votes=3)
    first = run_spec(path, tmp_path / "results")
    files_before = {name: (first.path / name).read_bytes() for name in ("rollouts.parquet", "metrics.json")}
    for name in files_before:
        (first.path / name).unlink()
    (first.path / "manifest.json").unlink()
    rebuilt = run_spec(path, tmp_path / "results")
    assert {name: (rebuilt.path / name).read_bytes() for name in files_before} == files_before
    resumed = run_spec(rebuilt.path / "spec.yaml", tmp_path / "results")
    assert (resumed.run_id, {name: (resumed.path / name).read_bytes() for name in files_before}) == (
        first.run_id,
        files_before,
    )


@pytest.mark.gate
def test_runs_are_compared_by_metrics_of_listed_answers_and_other_metrics_are_refused(tmp_path: Path) -> None:
    debate = run_spec(answer_spec(tmp_path, "answer_debate", 12, 4), tmp_path / "results")
    consultancy = run_spec(answer_spec(tmp_path, "consultancy", 12, 4), tmp_path / "results")
    for name in ("accuracy", "decided", "answer_log_score", "answer_brier"):
        (row,) = compare(debate.path, consultancy.path, metric=name).pairs
        assert row.paired
        assert row.datapoints == 12
    for name in ("completeness", "balanced_accuracy", "brier_stated", "accuracy_1"):
        with pytest.raises(UsageError, match=f"{name} has no meaning for {debate.run_id}, whose verdicts choose"):
            compare(debate.path, consultancy.path, metric=name)


@pytest.fixture(scope="module")
def debate_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished debate about four answers."""
    folder = tmp_path_factory.mktemp("played")
    return run_spec(answer_spec(folder, "answer_debate", 12, 4), folder / "results").path


def run_command(run: Path, *arguments: str) -> str:
    """Return what a command on a run prints."""
    done = nip_run_here(*arguments, "--results", run.parents[1], cwd=run.parents[1])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lists_and_transcripts_show_letters_and_never_accept_or_reject(debate_run: Path) -> None:
    listed = json.loads(run_command(debate_run, "show", debate_run.name, "--json"))["rollouts"]
    rows = table(debate_run, "rollouts")
    assert [(row["decision"], row["label"]) for row in listed] == [
        (row["answer"], ", ".join(json.loads(row["right_answers"]))) for row in rows
    ]
    wrong_rows = json.loads(run_command(debate_run, "show", debate_run.name, "--wrong", "--json"))["rollouts"]
    assert [row["rollout_id"] for row in wrong_rows] == [row["rollout_id"] for row in rows if not row["correct"]]
    text = run_command(debate_run, "show", debate_run.name, rows[0]["rollout_id"])
    argued = json.loads(rows[0]["argued_answers"])
    assert f"prover0 (Debater_1; argues for {argued['prover0']})" in text
    assert f"verdict: {rows[0]['answer']} (" in text
    assert "probabilities: A 0." in text
    assert not [verdict for verdict in ("accept", "reject") if verdict in text]


def test_the_page_of_a_run_counts_right_and_wrong_answers(debate_run: Path, tmp_path: Path) -> None:
    run_command(debate_run, "report", debate_run.name, "-o", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "Right answer chosen" in page
    assert "Should be accepted" not in page


def test_exports_name_answers_by_the_letters_of_the_game(debate_run: Path, tmp_path: Path) -> None:
    run_command(debate_run, "export", debate_run.name, "--format", "inspect", "--out", str(tmp_path))
    with zipfile.ZipFile(next(tmp_path.glob("*.eval"))) as log:
        samples = [json.loads(log.read(name)) for name in log.namelist() if name.startswith("samples/")]
    rows = {row["rollout_id"]: row for row in table(debate_run, "rollouts")}
    assert len(samples) == len(rows) == 12
    for sample in samples:
        row = rows[sample["uuid"]]
        assert sample["target"] == json.loads(row["right_answers"])
        assert sample["scores"]["nip_run"]["answer"] == row["answer"] if "nip_run" in sample["scores"] else True
        answers = json.loads(sample["input"])["answers"]
        assert list(answers.values()) == sample["choices"]
        assert [NAMES[number - 1] for number in json.loads(row["answer_order"])] == sample["choices"]


def test_a_true_verdict_replaces_a_guess_in_fine_tuning_files_and_verl_is_refused(
    debate_run: Path, tmp_path: Path
) -> None:
    run_command(
        debate_run,
        "export",
        debate_run.name,
        "--format",
        "openai",
        "--agent",
        "verifier",
        "--true-labels",
        "--out",
        str(tmp_path),
    )
    files = list(tmp_path.rglob("verifier.sft.jsonl"))
    last_messages = [json.loads(line)["messages"][-1]["content"] for line in files[0].read_text().splitlines()]
    verdicts = [text for text in last_messages if text.startswith("Decision: ")]
    assert len(verdicts) == 12
    assert all(sorted(re.findall(r"[01]", text)) == ["0", "0", "0", "1"] for text in verdicts)
    refused = nip_run_here(
        "export", debate_run.name, "--format", "verl", "--results", debate_run.parents[1], cwd=tmp_path
    )
    assert refused.returncode != 0
    assert "verl files have labels 0 and 1, which listed answers do not have" in refused.stderr


REFUSED_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no answers": ({"dataset": {"path": "data.jsonl"}}, "answer_debate lists answers; set dataset.answers"),
    "confidence": ({"verdict": {"confidence": "stated"}}, "use verdict.form: distribution instead"),
    "texts": ({"decision_format": {"accept": "Decision: yes", "reject": "Decision: no"}}, "has no effect if answers"),
    "trees": ({"rollouts": {"num_responses_per_timestep": 2}}, "trees of responses need accept or reject"),
    "verl": ({"fine_tune": {"formats": ["verl"]}}, "remove verl"),
    "hidden": (
        {"dataset": {"path": "hidden.jsonl", "answers": "answers"}},
        "the dataset hides which answers are right",
    ),
}


@pytest.mark.parametrize("case", REFUSED_SETTINGS)
def test_settings_without_meaning_are_refused_before_any_call(tmp_path: Path, case: str) -> None:
    changes, message = REFUSED_SETTINGS[case]
    path = answer_spec(tmp_path, "answer_debate", 4, 4, **changes)
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    hidden = "".join(json.dumps({**row, "label": None}) + "\n" for row in rows)
    (tmp_path / "hidden.jsonl").write_text(hidden)
    with pytest.raises(SpecError, match=message):
        load_spec(path)


def test_answers_need_a_protocol_that_lists_them(tmp_path: Path) -> None:
    path = answer_spec(tmp_path, "answer_debate", 4, 4)
    with pytest.raises(SpecError) as caught:
        load_spec(path, {"protocol": {"use": "nip"}, "prompts": "prompts/code_validation/nip"})
    assert "the verdicts of nip accept or reject; remove dataset.answers" in str(caught.value)
    assert "the verdicts of nip accept or reject; use verdict.confidence instead" in str(caught.value)


def test_hidden_right_answers_are_played_and_leave_metrics_unknown(tmp_path: Path) -> None:
    path = answer_spec(tmp_path, "open_consultancy", 4, 4)
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({**row, "label": None}) + "\n" for row in rows))
    result = run_spec(path, tmp_path / "results")
    assert metric(result, "accuracy")["reason"] == "no labels"
    assert not [row for row in result.metrics["metrics"] if row["metric"].startswith("answer_")]
    assert all(row["correct"] is None and row["right_answers"] is None for row in table(result.path, "rollouts"))


@pytest.mark.full
def test_figures_of_listed_answers_show_the_probability_of_the_chosen_answer(tmp_path: Path) -> None:
    result = run_spec(answer_spec(tmp_path, "consultancy", 20), tmp_path / "results")
    assert nip_run_here("report", result.run_id, "-o", "page.html", "-q", cwd=tmp_path).returncode == 0
    done = nip_run_here("plot", "reliability", result.run_id, "-o", "figure.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("page.html", "figure.svg"):
        text = (tmp_path / name).read_text()
        assert "x axis: P(chosen answer)" in text
        assert "share of right answers" in text
        assert "share of right solutions" not in text
    assert "Confidence in the chosen answer" in (tmp_path / "page.html").read_text()
    other = run_spec(answer_spec(tmp_path, "consultancy", 20), tmp_path / "results", "seed=5")
    done = nip_run_here("plot", "reliability", result.run_id, other.run_id, "-o", "figure.svg", cwd=tmp_path)
    assert done.returncode == 2
    assert "several seeds with listed answers cannot be pooled; plot one run" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "line"), [("answer", "<letter>"), ("distribution", "A <probability>, B <probability>")]
)
def test_the_advice_on_undecided_games_names_the_form_of_the_verdict(tmp_path: Path, form: str, line: str) -> None:
    with run_answer_server(lambda *_: "I do not know.") as server:
        agents = {"prover": {"model": "m"}, "verifier": {"model": "j"}}
        path = answer_spec(
            tmp_path, "consultancy", 4, agents=agents, verdict={"form": form}, **use_model_server(server.base_url)
        )
        result = run_spec(path, tmp_path / "results")
    (note,) = [note for note in result.notes if "ended undecided" in note]
    assert f"Decision: {line}" in note
    assert "accept" not in note


@pytest.mark.full
def test_hidden_right_answers_are_unknown_in_lists_and_pages(tmp_path: Path) -> None:
    path = answer_spec(tmp_path, "open_consultancy", 4, 4)
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({**row, "label": None}) + "\n" for row in rows))
    result = run_spec(path, tmp_path / "results")
    done = nip_run_here("show", result.run_id, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = json.loads(nip_run_here("show", result.run_id, "--wrong", "--json", cwd=tmp_path).stdout)
    assert listed["rollouts"] == []
    assert nip_run_here("report", result.run_id, "-o", "page.html", "-q", cwd=tmp_path).returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert ">Answer chosen</th>" in page
    assert "ight answer chosen" not in page


def test_arrays_refuse_listed_answers(tmp_path: Path) -> None:
    spec = load_spec(answer_spec(tmp_path, "answer_debate", 4, 4))
    with pytest.raises(ValueError, match="arrays have no listed answers"):
        Environment(spec.protocol)


@pytest.mark.gate
def test_expert_iteration_trains_on_listed_answers(tmp_path: Path) -> None:
    models = {"p": {"provider": "dummy"}, "v": {"provider": "dummy"}}
    training = {
        "method": "expert_iteration", "iterations": 1, "datapoints_per_iteration": 12,
        "selection": {"method": "threshold", "reward_threshold": 0.9},
        "guess_replacement": {"proportion": 1.0}, "test": {"scheme": "none"},
        "trainers": {"p": {"backend": "dummy"}, "v": {"backend": "dummy"}},
    }  # fmt: skip
    path = answer_spec(
        tmp_path, "consultancy", 12, 4, kind="training", models=models, training=training,
        agents={"prover": {"model": "p"}, "verifier": {"model": "v"}}, verdict={"form": "answer"},
    )  # fmt: skip
    result = run_spec(path, tmp_path / "results")
    files = sorted(result.path.rglob("v.sft.jsonl"))
    last_messages = [json.loads(line)["messages"][-1]["content"] for line in files[0].read_text().splitlines()]
    (games,) = [folder for folder in result.path.parent.iterdir() if folder.name.endswith("-i0")]
    right_answers = [json.loads(row["right_answers"]) for row in table(games, "rollouts")]
    assert sorted(text for text in last_messages if text.startswith("Decision: ")) == sorted(
        f"Decision: {letter}" for (letter,) in right_answers
    )


def test_init_writes_a_spec_for_data_with_lists_of_answers(tmp_path: Path) -> None:
    write_data(tmp_path, 12, 3)
    done = nip_run_here("init", "mine", "--data", tmp_path / "data.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    spec = load_spec(tmp_path / "mine" / "spec.yaml")
    assert spec.protocol.name == "answer_debate"
    assert [point.saved_label for point in spec.dataset.datapoints[:3]] == [[1], [2], [3]]
    refused = nip_run_here("init", "other", "--data", tmp_path / "data.jsonl", "--protocol", "nip", cwd=tmp_path)
    assert "needs a column with labels, such as true and false" in refused.stderr
