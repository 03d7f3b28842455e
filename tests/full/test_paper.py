"""The experiments of the paper, offline and at a tenth of their size.

Every spec of `specs/paper` must pass `check`, run with all its seeds on the dummy provider, and yield the figures of
docs/paper.md. Training has two iterations instead of all, except in `ei_nip`.
"""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from runner.cli.main import main as nip_run
from runner.results.leaderboard.results_folder import Results
from runner.spec.loader import Spec, load_specs
from runner.training.plan import TrainingPlan, plan_of
from tests.support.paths import ROOT
from tests.support.soft_assertions import SoftAssertions

PAPER = ROOT / "specs" / "paper"
OFFLINE = "models.verifier.provider=dummy"
SHARE = 10
ALL_ITERATIONS = "ei_nip"
"""The spec whose run is tested after each iteration. It continues the run of `ei`."""
ITERATIONS = 2
"""Iterations of the other specs: an untrained model, one trained once and one trained twice."""
SEEDS = 3


def test_paper_experiments_run_offline_and_yield_their_figures(tmp_path: Path, check: SoftAssertions) -> None:
    results = tmp_path / "results"
    for path in sorted(PAPER.glob("*.yaml")):
        run_offline(path, results, check)
    run_with_trained_verifier(results, check)
    check_queries(results, check)


def run_offline(path: Path, results: Path, check: SoftAssertions) -> None:
    """Check the unchanged spec, then run a tenth of it offline."""
    code, output = run_command("check", str(path))
    check(code == 0, f"{path.stem}: the unchanged spec passes `check`" if code == 0 else f"{path.stem}: {output}")
    overrides = make_overrides(path)
    points = load_specs(path, overrides)
    code, output = run_command(str(path), *overrides, "--results", str(results))
    finished_points = [run for spec in points if (run := is_finished(spec, results))]
    games = sum(plan.size for spec in points for plan in plan_of(spec).list_game_plans())
    is_complete = code == 0 and len(finished_points) == len(points)
    check(
        is_complete,
        f"{path.stem}: {len(finished_points)} of {len(points)} points are done, {games:,} games"
        + ("" if is_complete else output),
    )


def make_overrides(path: Path) -> list[str]:
    """Return the overrides that run a tenth of a spec offline."""
    spec = load_specs(path)[0]
    training = spec.experiment.training
    if training is None:
        return [OFFLINE, f"dataset.limit={len(spec.dataset.datapoints) // SHARE}"]
    assert spec.test is not None
    size = training.datapoints_per_iteration or len(spec.dataset.datapoints)
    return [
        OFFLINE,
        f"training.datapoints_per_iteration={-(-size // SHARE)}",
        f"training.test.limit={len(spec.test.datapoints) // SHARE}",
        *([] if path.stem == ALL_ITERATIONS else [f"training.iterations={ITERATIONS}"]),
    ]


def is_finished(spec: Spec, results: Path) -> bool:
    """Return whether the run of a point and all its parts are done."""
    plan = plan_of(spec)
    run = Results(results).run(plan.run_id)
    if not run.manifest_path.is_file() or run.manifest().status != "done":
        return False
    if not isinstance(plan, TrainingPlan):
        return True
    parts = Results(results).parts_of(plan.run_id)
    return len(parts) == len(plan.list_game_plans()) and all(part.manifest().status == "done" for part in parts)


def run_with_trained_verifier(results: Path, check: SoftAssertions) -> None:
    """Run the specs that need a trained run: provers against its verifier, and a repetition of its tests."""
    run = next(folder.run_id for folder in Results(results).runs() if folder.run_id.startswith("ei-nip-"))
    path = PAPER / "worst_case_nip.yaml"
    code, output = run_command(
        str(path), *make_overrides(path), "sweep=null", "name=worst-case-trained",
        f"models.verifier.from_run={run}@last",
        "--results", str(results),
    )  # fmt: skip
    lineage = query_rows(
        results, "SELECT spec->'$.models.verifier.lineage' AS steps FROM runs WHERE name = 'worst-case-trained'"
    )
    steps = [json.loads(row["steps"]) for row in lineage]
    has_lineage = code == 0 and all(step and step[-1]["run_id"] == run for step in steps)
    check(
        has_lineage,
        "worst_case_nip: provers run against the verifier of a trained run" + ("" if has_lineage else output),
    )
    code, output = run_command(
        str(PAPER / "ei_nip.yaml"), OFFLINE, "sweep=null", "name=ei-nip-again", f"training.rerun_tests.run={run}",
        "training.test.per_datapoint=10", "training.test.limit=10", "--results", str(results),
    )  # fmt: skip
    failures = query_rows(results, "@always_failed", "repeats=10") if code == 0 else []
    iterations = [row["iteration"] for row in failures if row["run"].startswith("ei-nip-again")]
    check(
        iterations == list(range(8)),
        "rerun_tests: all iterations are tested again with ten games per datapoint" + ("" if failures else output),
    )


def check_queries(results: Path, check: SoftAssertions) -> None:
    """Check the queries that yield the figures of the paper."""
    untrained = [row for row in query_rows(results, "@protocols") if row["name"].startswith("untrained-")]
    protocols = {row["protocol"] for row in untrained if row["seeds"] == SEEDS}
    check(len(protocols) == 6, f"@protocols returns 6 protocols with {SEEDS} seeds: {len(protocols)}")
    uplift = query_rows(results, "@uplift")
    check(
        len({row["protocol"] for row in uplift}) == 5,
        f"@uplift compares 5 protocols with the verifier alone: {len(uplift)} runs",
    )
    failed = [row for row in query_rows(results, "@always_failed", "repeats=10") if row["iteration"] is None]
    check(
        len({row["protocol"] for row in failed}) == 6,
        f"@always_failed returns 6 protocols: {len(failed)} untrained runs",
    )
    curves = query_rows(results, "@learning_curve")
    last_iterations: dict[str, int] = {}
    for row in curves:
        if row["seeds"] == SEEDS:
            last_iterations[row["name"]] = max(row["iteration"], last_iterations.get(row["name"], 0))
    complete_curves = [name for name, iteration in last_iterations.items() if iteration == 7]
    check(
        len(last_iterations) >= 10 and complete_curves == ["ei-nip"],
        f"@learning_curve returns at least 10 curves with {SEEDS} seeds: {len(last_iterations)}; "
        f"complete: {complete_curves}",
    )
    worst_provers = query_rows(results, "@worst_prover")
    check(
        any(row["provers"] > 1 for row in worst_provers),
        f"@worst_prover ranks runs by verifier: {len(worst_provers)} runs",
    )
    stances = {row["stance"] for row in query_rows(results, "@stances") if row["run_id"].startswith("stances-nip")}
    check(stances == {0, 1}, f"@stances returns both stances: {stances}")


def query_rows(results: Path, query: str, *parameters: str) -> list[dict[str, Any]]:
    code, output = run_command("sql", query, *parameters, "--json", "--results", str(results))
    if code != 0:
        raise RuntimeError(output)
    result: list[dict[str, Any]] = json.loads(output)
    return result


def run_command(*arguments: str) -> tuple[int, str]:
    """Run the command line in this process; return the exit code, and stdout or the end of the error message."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = nip_run([*arguments, "-q"])
    return code, out.getvalue() if code == 0 else err.getvalue()[-2000:]
