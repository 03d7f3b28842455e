"""`nip-run plan`: sample sizes by the power formula, with the costs that `check` estimates."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest

from runner import compare, estimate, sample_size
from runner.base.errors import UsageError
from runner.spec.loader import load_spec
from runner.statistics.sign_flip import FEWEST_GROUPS
from runner.statistics.variance_components import UNKNOWN, groups_needed, smallest_difference
from tests.results.comparison.planted import other_system_override, play_with_planted_verdicts, write_solo_spec
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec, table
from tests.support.specs import dataset_file, spec_file

PRICED: dict[str, Any] = {"models": {"m": {"price": {"input": 1.0, "output": 2.0}}}, "fine_tune": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a spec and two runs of it, with two repeats each and different seeds."""
    root = tmp_path_factory.mktemp("plan")
    path = spec_file(root, **PRICED)
    for seed in (1, 2):
        run_spec(path, root / "results", f"seed={seed}", "rollouts.per_datapoint=2", run_id=f"s{seed}")
    return root


def run_plan(folder: Path, *arguments: str) -> dict[str, Any]:
    process = nip_run_here("plan", "spec.yaml", *arguments, "--json", cwd=folder)
    assert process.returncode == 0, process.stderr
    (plan,) = json.loads(process.stdout)
    assert isinstance(plan, dict)
    return plan


@pytest.mark.full
def test_plan_without_a_run_assumes_the_maximum_variance(folder: Path) -> None:
    plan = run_plan(folder, "--detect", "0.15")
    (row,) = plan["rows"]
    assert (row["datapoints"], row["games"], row["fits"]) == (180, 180, False)
    assert row["smallest_difference"] == pytest.approx(smallest_difference(12, lambda _: 0.5))
    estimates = estimate(load_spec(folder / "spec.yaml"))
    assert row["calls"] == [
        round(sum(model_estimate.calls[end] for model_estimate in estimates) * 180 / 12) for end in (0, 1)
    ]
    costs = [model_estimate.cost_usd for model_estimate in estimates if model_estimate.cost_usd is not None]
    assert row["cost_usd"] == pytest.approx([sum(cost[end] for cost in costs) * 180 / 12 for end in (0, 1)])


def test_plan_from_a_run_shows_how_repeats_reduce_the_sample_size(folder: Path) -> None:
    run = run_spec(folder / "spec.yaml", folder / "results", "seed=1", "rollouts.per_datapoint=2", run_id="s1")
    split = run.metrics["variance"]
    plan = run_plan(folder, "--detect", "0.3", "--from", "s1")
    needed = {row["repeats"]: row["groups"] for row in plan["rows"]}
    assert needed == {
        r: groups_needed(0.3, 2 * split["between"] + 2 * split["within"] / r, 1 / r) for r in (1, 2, 3, 5, 10)
    }
    assert needed[10] < needed[1]


def test_plan_from_two_runs_uses_the_variance_of_their_difference(folder: Path) -> None:
    plan = run_plan(folder, "--detect", "0.3", "--from", "s1", "s2")
    assert "the variance of the difference between s1 and s2: " in plan["variance"]["source"]


WRONG_VERDICTS = {"a": (2, 0, 1, 0, 2, 0, 1, 0, 2, 0), "b": (0, 1, 0, 2, 0, 1, 0, 2, 0, 1)}
"""The number of wrong verdicts in each group of four datapoints, by run."""


def _write_grouped_runs(folder: Path) -> Path:
    """Return the folder of a spec with 10 groups of 4 datapoints, and of two runs with planted verdicts."""
    path = write_solo_spec(folder, size=40, dataset={"group_by": "family"})
    data = folder / "data.jsonl"
    rows = [json.loads(line) | {"family": f"f{i // 4}"} for i, line in enumerate(data.read_text().splitlines())]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    play_with_planted_verdicts(path, folder / "results", "a", lambda i, _: i % 4 >= WRONG_VERDICTS["a"][i // 4])
    play_with_planted_verdicts(
        path, folder / "results", "b", lambda i, _: i % 4 >= WRONG_VERDICTS["b"][i // 4], other_system_override(1)
    )
    return folder


@pytest.mark.full
def test_plan_from_runs_with_grouped_datapoints_agrees_with_compare(tmp_path: Path) -> None:
    """One game changes a group of four by a quarter, not by 1."""
    folder = _write_grouped_runs(tmp_path)
    pair = compare("a", "b", results=folder / "results").pairs[0]
    assert pair.detectable is not None
    (row,) = run_plan(folder, "--detect", str(pair.detectable + 1e-6), "--from", "a", "b")["rows"]
    assert row["smallest_difference"] == pytest.approx(pair.detectable)
    assert (row["groups"], row["fits"]) == (10, True)
    (row,) = run_plan(folder, "--detect", "0.3", "--from", "a")["rows"]
    group_scores = [1 - wrong / 4 for wrong in WRONG_VERDICTS["a"]]
    assert row["groups"] == groups_needed(0.3, 2 * variance(group_scores), 1 / 4)
    (row,) = run_plan(folder, "--detect", "0.3")["rows"]  # each group is assumed to be right or wrong as a whole
    assert row["groups"] == groups_needed(0.3, UNKNOWN)


@pytest.mark.full
def test_plan_from_two_runs_uses_only_the_datapoints_they_share(tmp_path: Path) -> None:
    """Groups with the same name but different datapoints do not count as shared."""
    folder = _write_grouped_runs(tmp_path)
    lines = (folder / "data.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for name, changed in (("half", rows[20:]), ("all", rows)):
        for row in changed:
            row["solution"] = f"another for {row['id']}"
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run_spec(
            folder / "spec.yaml",
            folder / "results",
            f"dataset.path={folder}/{name}.jsonl",
            other_system_override(2),
            run_id=name,
        )
    variance = run_plan(folder, "--detect", "0.3", "--from", "a", "half")["variance"]
    assert variance["groups"] == 5
    assert (
        "on 20 shared datapoints; half against a: datapoints differ: 20 with another solution (such as 'p20')"
        in variance["source"]
    )
    process = nip_run_here("plan", "spec.yaml", "--detect", "0.3", "--from", "a", "all", cwd=folder)
    assert process.returncode == 2
    assert (
        "runs a and all share fewer than two groups of datapoints; all against a: datapoints differ: "
        "40 with another solution (such as 'p0'); name two runs on the same dataset"
    ) in " ".join(process.stderr.split())


@pytest.mark.full
def test_games_of_a_block_do_not_count_as_repeats(folder: Path, tmp_path: Path) -> None:
    """A datapoint counts once, with the mean over the games of its block, as in metrics.json."""
    path = spec_file(
        tmp_path, fine_tune=None, protocol={"use": "debate", "max_message_rounds": 3}, seats="swap",
        prompts="prompts/code_validation/debate", models={"other": {"provider": "dummy"}},
        agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "other"}},
    )  # fmt: skip
    run = run_spec(path, tmp_path / "results", run_id="blocks")
    assert run.metrics["variance"] is None
    scores: dict[str, list[float]] = {}
    for row in table(run.path, "rollouts"):
        scores.setdefault(row["datapoint_id"], []).append(float(row["correct"]))
    assert {len(block_scores) for block_scores in scores.values()} == {2}
    plan_variance = run_plan(tmp_path, "--detect", "0.3", "--from", "blocks")["variance"]
    assert (plan_variance["by_chance"], plan_variance["split"]) == (0, False)
    assert "the run has only one repeat" in plan_variance["source"]
    means = [fmean(block_scores) for block_scores in scores.values()]
    assert plan_variance["fixed"] == pytest.approx(2 * variance(means))


@pytest.mark.full
def test_run_without_wrong_verdicts_still_has_some_variance(folder: Path, tmp_path: Path) -> None:
    """The plan assumes one wrong datapoint, and never fewer groups than the test needs."""
    data = dataset_file(tmp_path, 12)
    run = run_spec(folder / "spec.yaml", folder / "results", "seed=1", "rollouts.per_datapoint=2", run_id="s1")
    right = {row["datapoint_id"] for row in table(run.path, "rollouts") if row["correct"]}
    right -= {row["datapoint_id"] for row in table(run.path, "rollouts") if not row["correct"]}
    assert len(right) > 1
    data.write_text("".join(line + "\n" for line in data.read_text().splitlines() if json.loads(line)["id"] in right))
    spec = folder / "spec.yaml"
    same = run_spec(
        spec, tmp_path / "results", "seed=1", f"dataset.path={data}", "rollouts.per_datapoint=2", run_id="one"
    )
    assert (same.metrics["variance"]["between"], same.metrics["variance"]["within"]) == (0, 0)
    sizes = {}
    for detect in ("0.05", "0.9"):
        process = nip_run_here("plan", spec, "--detect", detect, "--from", same.path, "--json", cwd=folder)
        (plan,) = json.loads(process.stdout)
        sizes[detect] = {row["groups"] for row in plan["rows"]}
    assert plan["variance"]["fixed"] == pytest.approx(2 / (len(right) + 1))
    assert min(sizes["0.05"]) > 500
    assert min(sizes["0.9"]) >= FEWEST_GROUPS


def test_fixed_baseline_run_keeps_its_repeats(folder: Path) -> None:
    replayed_baseline = run_plan(folder, "--detect", "0.3", "--from", "s1")["variance"]
    fixed_baseline = run_plan(folder, "--detect", "0.3", "--against", "s1")["variance"]
    assert fixed_baseline["by_chance"] == pytest.approx(replayed_baseline["by_chance"] / 2)
    assert fixed_baseline["fixed"] == pytest.approx(replayed_baseline["fixed"] + replayed_baseline["by_chance"] / 4)


def test_plan_prints_the_difference_that_the_dataset_can_detect(folder: Path) -> None:
    process = nip_run_here("plan", "spec.yaml", "--detect", "0.15", cwd=folder)
    text = " ".join(process.stdout.split())
    assert "The dataset is too small: it has 12 datapoints. With 1 repeat you could detect 83.1 points." in text
    large = nip_run_here("plan", "spec.yaml", "--detect", "0.9", "--from", "s1", cwd=folder)
    assert "The dataset is large enough: it has 12 datapoints. Fewest games: 1 repeat," in (large.stdout)
    assert "The true variance, and the sample size with it, may be 0.5 to 2.9 times as large" in large.stdout
    data = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    (folder / "paired.jsonl").write_text(
        "".join(json.dumps({**row, "of": i // 2}) + "\n" for i, row in enumerate(data))
    )
    grouped = ("dataset.path=paired.jsonl", "dataset.group_by=of")
    pairs = nip_run_here("plan", "spec.yaml", *grouped, "--detect", "0.15", cwd=folder)
    assert "Assumption: all datapoints of a group are right or wrong together" in pairs.stdout
    assert "you could detect nothing: the test needs 6 groups that differ" in pairs.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to plan: add --detect D"),
        (("--detect", "5"), "must be between 0 and 1, such as 0.05, not 5"),
        (("--detect", "0.1", "--from", "none"), "no run 'none'"),
        (("--detect", "0.1", "--from", "s1", "s2", "s1"), "give one or two runs for the variance, not 3"),
        (("--detect", "0.1", "--from", "s1", "--against", "s2"), "not allowed with argument"),
    ],
)
def test_plan_usage_errors_exit_2_with_the_reason(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    process = nip_run_here("plan", "spec.yaml", *arguments, cwd=folder)
    assert (process.returncode, message in process.stderr) == (2, True), process.stderr


def test_a_training_spec_has_no_sample_size() -> None:
    with pytest.raises(UsageError, match="only benchmarks can be planned"):
        sample_size("specs/expert_iteration.yaml", 0.1)
