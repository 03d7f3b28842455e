"""`nip-run gauge`: planted noise, order effects and drift of a judge; conditions; and usage errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from runner.results.gauge.gauge import gauge_runs
from runner.results.gauge.readings import GaugedRun, Reading
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec, table
from tests.support.servers.noisy_judge import NoisyJudge, noisy_spec, run_noisy_judge
from tests.support.specs import SOLO_OVERRIDES, spec_file

CLAIMS, REPEATS = 30, 3
GaugedJudge = tuple[Path, NoisyJudge, dict[str, Any]]


@pytest.fixture(scope="module")
def gauged_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GaugedJudge]:
    """Gauge a judge that flips 15 % of its verdicts and often chooses `reject` if that option comes first."""
    folder = tmp_path_factory.mktemp("gauge")
    with run_noisy_judge(noise=0.15, first_option=0.6) as judge:
        noisy_spec(folder, judge.base_url, CLAIMS, REPEATS)
        yield folder, judge, run_gauge(folder, "spec.yaml")


def run_gauge(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    process = nip_run_here("gauge", *arguments, "--json", cwd=folder)
    assert process.returncode == code, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def compute_flip_rate(run: Path) -> float:
    """Return the share of pairs of repeats with different verdicts, from the table of a run."""
    by_point: dict[str, list[int]] = {}
    for row in table(run, "rollouts"):
        by_point.setdefault(row["datapoint_id"], []).append(row["decision"])
    pairs = [(a, b) for values in by_point.values() for i, a in enumerate(values) for b in values[:i]]
    return sum(a != b for a, b in pairs) / len(pairs)


@pytest.mark.gate
def test_gauge_measures_planted_noise_and_detects_the_option_order_effect(gauged_judge: GaugedJudge) -> None:
    folder, _, result = gauged_judge
    runs = [folder / "results" / "runs" / run_id for run_id in result["run_ids"]]
    assert result["flips"]["value"] == pytest.approx(sum(map(compute_flip_rate, runs)) / len(runs))
    assert (result["units"], result["readings"], result["score"]) == (CLAIMS, 3 * CLAIMS * REPEATS, "verdict")
    facets = {facet["name"]: facet["matters"] for facet in result["facets"]}
    assert facets == {"prompts": True, "decision_format": False}
    (order,) = [facet for facet in result["facets"] if facet["name"] == "prompts"]
    assert order["levels"][1]["shift"] < -0.1
    assert 0 < result["identical"]["value"] < 1
    assert result["noise_floor"]["value"] == pytest.approx(1.96 * (result["flips"]["value"] / CLAIMS) ** 0.5, rel=1e-3)
    assert [server["fingerprints"] for server in result["servers"]] == [{"fp_old": CLAIMS * REPEATS}] * 3


@pytest.mark.gate
def test_facet_level_is_labeled_by_its_changed_keys_or_else_by_its_run(
    gauged_judge: GaugedJudge, tmp_path: Path
) -> None:
    _, _, result = gauged_judge
    labels = {facet["name"]: [level["label"] for level in facet["levels"]] for facet in result["facets"]}
    assert labels == {
        "prompts": ['prompts="plain"', 'prompts="reject_first"'],
        "decision_format": [
            'decision_format.accept="Decision: accept" decision_format.reject="Decision: reject"',
            'decision_format.accept="Decision: yes" decision_format.reject="Decision: no"',
        ],
    }
    with run_noisy_judge() as judge:
        path = noisy_spec(tmp_path, judge.base_url, 4, 2)
        changes = (f"prompts={tmp_path / 'reject_first'}", "models.judge.temperature=0.5")
        for run_id, overrides in (("a", ()), ("b", changes)):
            run_spec(path, tmp_path / "results", "sweep=null", *overrides, run_id=run_id)
    facets = run_gauge(tmp_path, "a", "b")["facets"]
    assert {facet["name"]: [level["label"] for level in facet["levels"]] for facet in facets} == {
        "prompts": ["a", "b"], "models": ["models.judge.temperature=null", "models.judge.temperature=0.5"],
    }  # fmt: skip


@pytest.mark.gate
def test_repeated_gauge_sends_no_request_and_gives_the_same_result(gauged_judge: GaugedJudge) -> None:
    folder, judge, result = gauged_judge
    requests = judge.requests.total()
    assert run_gauge(folder, "spec.yaml") == result
    assert run_gauge(folder, *result["run_ids"]) == result
    assert judge.requests.total() == requests == 3 * CLAIMS * REPEATS
    assert json.loads((folder / result["file"]).read_text())["icc"] == result["icc"]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("condition", "code", "text"),
    [
        ("icc >= 0.05", 0, "holds"),
        ("flips <= 1 %", 1, "does not hold"),
        ("prompts.p >= 0.05", 1, "does not hold"),
        ("icc >= 0.3", 5, "cannot be decided"),
    ],
)
def test_a_condition_sets_the_exit_code(gauged_judge: GaugedJudge, condition: str, code: int, text: str) -> None:
    folder, _, result = gauged_judge
    process = nip_run_here("gauge", *result["run_ids"], "--expect", condition, cwd=folder)
    assert (process.returncode, f"{text}: {condition}   (" in process.stdout) == (code, True), (
        process.stdout + process.stderr
    )


@pytest.mark.gate
def test_a_condition_on_a_facet_that_was_not_varied_cannot_be_decided(gauged_judge: GaugedJudge) -> None:
    folder, _, result = gauged_judge
    arguments = (*result["run_ids"], "--expect", "time.p >= 0.05", "--expect", "seed.flips <= 10 %")
    process = nip_run_here("gauge", *arguments, cwd=folder)
    assert process.returncode == 5, process.stderr
    for condition in ("time.p >= 0.05", "seed.flips <= 10 %"):
        assert f"cannot be decided: {condition}   (the runs do not vary it)" in process.stdout
    expected = run_gauge(folder, *arguments, code=5)["expected"]
    assert [row["reason"] for row in expected] == ["the runs do not vary it"] * 2


@pytest.mark.gate
def test_compare_mentions_the_noise_floor_of_a_gauged_judge(gauged_judge: GaugedJudge) -> None:
    folder, _, result = gauged_judge
    first, *_, last = result["run_ids"]
    (pair,) = json.loads(nip_run_here("compare", first, last, "--json", cwd=folder).stdout)["pairs"]
    assert any(note.startswith("noise floor of the judge: ") and f"for {CLAIMS} datapoints" in note
               for note in pair["notes"])  # fmt: skip


@pytest.mark.gate
def test_drift_is_found_when_the_same_requests_are_sent_again(gauged_judge: GaugedJudge, tmp_path: Path) -> None:
    folder, judge, _ = gauged_judge
    shutil.copytree(folder, tmp_path / "later")
    judge.leniency, judge.fingerprint = 0.5, "fp_new"
    try:
        later = run_gauge(tmp_path / "later", "spec.yaml", "--again")
    finally:
        judge.leniency, judge.fingerprint = 0.0, "fp_old"
    (time,) = [facet for facet in later["facets"] if facet["name"] == "time"]
    assert (time["matters"], time["levels"][1]["shift"] > 0.1, len(later["run_ids"])) == (True, True, 6)
    text = nip_run_here("gauge", *later["run_ids"], cwd=tmp_path / "later").stdout
    assert "time: drift, p" in text
    assert "the server reported 2 system fingerprints:" in text
    assert "not measured" not in text


@pytest.mark.gate
def test_debates_are_judged_again_with_votes_as_repeats(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, size=6), tmp_path / "results")
    points = 'sweep=[{decision_format.lenient: false}, {decision_format.accept: "Decision: yes"}]'
    result = run_gauge(tmp_path, run.run_id, "votes=3", points)
    assert (result["units"], result["readings"], len(result["run_ids"])) == (6, 36, 2)
    assert {facet["name"] for facet in result["facets"]} == {"decision_format"}
    process = nip_run_here("gauge", *result["run_ids"], run.run_id, cwd=tmp_path)
    assert "has provers, whose messages differ from run to run" in process.stderr


@pytest.mark.parametrize("protocol", ["debate", "nip"])
def test_every_vote_of_a_debate_with_exchanged_stances_is_a_reading(tmp_path: Path, protocol: str) -> None:
    provers = {"prover0": {"model": "m"}, "prover1": {"model": "n"}, "prover": None} if protocol == "debate" else {}
    spec = spec_file(
        tmp_path, size=4, protocol={"use": protocol}, prompts=f"prompts/code_validation/{protocol}", agents=provers,
        models={"n": {"provider": "dummy", "answer_words": 5}}, votes=3, stances="both", fine_tune=None,
        **({"seats": "swap"} if provers else {}),
    )  # fmt: skip
    played = run_spec(spec, tmp_path / "results")
    games = 16 if provers else 8
    result = run_gauge(tmp_path, played.run_id)
    assert (result["units"], result["readings"]) == (games, 3 * games)
    verdicts = [json.loads(row["votes"]) for row in table(played.path, "rollouts")]
    flips = sum(first != second for votes in verdicts for first, second in combinations(votes, 2))
    assert result["flips"]["value"] == pytest.approx(flips / (3 * games))


def test_games_whose_calls_failed_are_counted_and_no_readings(tmp_path: Path) -> None:
    with run_noisy_judge(failing=2) as judge:
        spec = noisy_spec(tmp_path, judge.base_url, 6, 2, retry={"transient": {"attempts": 1}})
        run = run_spec(spec, tmp_path / "results", "rollouts.max_transport_failed=1", "~sweep")
    result = run_gauge(tmp_path, run.run_id)
    assert (result["units"], result["readings"], result["lost"]) == (4, 8, 4)
    process = nip_run_here("gauge", run.run_id, cwd=tmp_path)
    assert "note: 4 games left out, because calls failed" in process.stderr


PROTOCOL = """\
name: asked
answers: listed
agents:
  verifier: {role: verifier, human_name: Judge}
channels:
  main: {members: [verifier]}
cycle:
  - speak: {verifier: [main]}
  - speak: {}
parameters: {max_message_rounds: 2, verifier_first: true}
"""
PROMPT = """\
{{ question }}
{% for letter, text in answers %}{{ letter }}) {{ text }}
{% endfor %}{{ decision_line }}
"""


@pytest.mark.gate
def test_the_position_of_the_right_answer_is_a_facet_of_a_judge_of_listed_answers(tmp_path: Path) -> None:
    (tmp_path / "asked.yaml").write_text(PROTOCOL)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "verifier.jinja").write_text(PROMPT)
    rows = ({"id": f"q{i}", "question": f"{i}?", "answers": ["yes", "no"], "label": "no"} for i in range(6))
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "asked", "dataset": {"path": "data.jsonl", "answers": "answers", "right_answers": "text"},
        "protocol": {"use": "asked.yaml"}, "prompts": "prompts", "models": {"m": {"provider": "dummy"}},
        "agents": {"verifier": {"model": "m"}}, "rollouts": {"per_datapoint": 6},
    }  # fmt: skip
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    result = run_gauge(tmp_path, "spec.yaml")
    assert [facet["name"] for facet in result["facets"]] == ["answer_position"]
    assert [level["label"][-1] for level in result["facets"][0]["levels"]] == ["1", "2"]
    (run,) = (tmp_path / "results" / "runs").iterdir()
    right = [row["correct"] for row in table(run, "rollouts")]
    means = [level["mean"] * level["readings"] for level in result["facets"][0]["levels"]]
    assert sum(means) == pytest.approx(sum(right))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that judged each datapoint once."""
    folder = tmp_path_factory.mktemp("single")
    run_spec(spec_file(folder, size=4), folder / "results", *SOLO_OVERRIDES, run_id="once")
    return folder


@pytest.mark.gate
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["once"], "each unit has a single verdict"),
        (["once", "spec.yaml"], "give either specs or finished runs, not both"),
        (["once", "--again"], "--again plays a spec again"),
        (["once", "--expect", "icc >= base"], "a gauge has no base"),
        (["once", "--expect", "icc > = 1"], "--expect: expected"),
        (["spec.yaml", "--expect", "prompt.p >= 0.05"], "did you mean 'prompts.p'?"),
        (["once", "--expect", "flips <= 5"], "flips is at most 1 (100 %)"),
        (["once", "--datapoints", "0"], "the number must be 1 or more"),
    ],
)
def test_gauge_usage_errors_exit_2_with_the_reason(single: Path, arguments: list[str], message: str) -> None:
    process = nip_run_here("gauge", *arguments, cwd=single)
    assert (process.returncode, message in process.stderr) == (2, True), process.stderr


@pytest.mark.gate
def test_conditions_and_json_use_the_noise_floor_for_the_given_datapoint_count(gauged_judge: GaugedJudge) -> None:
    folder, _, result = gauged_judge
    arguments = (*result["run_ids"], "--datapoints", str(100 * CLAIMS), "--expect", "noise_floor <= 0.5")
    floors = run_gauge(folder, *arguments)
    assert floors["noise_floor"]["value"] == pytest.approx(result["noise_floor"]["value"] / 10)
    assert floors["expected"][0]["value"] == floors["noise_floor"]["value"]


@pytest.mark.gate
def test_runs_with_different_datapoints_under_the_same_ids_cannot_be_gauged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = [{"id": str(i), "input": f"{name} {i}", "transcript": f"{name} {i}", "label": i % 2} for i in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        process = nip_run_here(
            "specs/monitors/direct.yaml", "dataset.transcripts=null", "dataset.group_by=null", "benchmark=test/v1",
            f"dataset.path={tmp_path / name}.jsonl", "--run-id", name, cwd=tmp_path,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
    process = nip_run_here("gauge", "a", "b", cwd=tmp_path)
    assert (process.returncode, "have different datapoints with the id '0'" in process.stderr) == (2, True), (
        process.stderr
    )


@pytest.mark.gate
def test_a_condition_on_an_unknown_measure_lists_the_measures(gauged_judge: GaugedJudge) -> None:
    folder, _, result = gauged_judge
    process = nip_run_here("gauge", *result["run_ids"], "--expect", "agreement >= 1", cwd=folder)
    assert process.returncode == 2
    assert "a gauge has icc, retest_icc, identical, flips, noise_floor, prompts.flips" in process.stderr


def test_equal_verdicts_at_two_levels_do_not_give_an_interval_without_width() -> None:
    readings = [
        Reading((f"p{unit}",), f"p{unit}", f"request {unit}", f"answer {unit}", unit % 2, True, None, None)
        for unit in range(40)
        for _ in range(2)
    ]
    runs = [
        GaugedRun(name, "", "judge", {"prompts": name}, tuple(readings), 0, spec_values={"prompts": {}})
        for name in ("first", "second")
    ]
    gauge = gauge_runs(runs)
    level = gauge.facets[0].levels[1]
    assert level.shift == 0.0
    assert level.ci_low is not None
    assert level.ci_high is not None
    assert level.ci_low < -0.05
    assert level.ci_high > 0.05
    for name in ("variant", "retest"):
        component = gauge.components[name]
        assert (component.value, component.interval) == (0.0, None)
        assert "leaves its error open" in str(component.reason)
