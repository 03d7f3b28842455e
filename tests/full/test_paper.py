"""The paper's experiments, offline and at a tenth of their size: each passes `check`, plays, and gives its figures.

Every spec of `specs/paper` with all its seeds, played by the dummy provider on a tenth of the datapoints, in iterations
and tests too. Training has two iterations, but for `ei_nip`, which has all its seven. Then provers against a verifier
that a run has trained, the tests of all its iterations again, and the queries of docs/paper.md.
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
from tests.support.claims import Claims
from tests.support.paths import ROOT

PAPER = ROOT / "specs" / "paper"
OFFLINE = "models.verifier.provider=dummy"
SHARE = 10
ALL_ITERATIONS = "ei_nip"
"""The spec whose run is tested at each of its iterations; it goes on with the run that `ei` has begun."""
ITERATIONS = 2
"""Of the others: an untrained model, one that was trained, and one that was trained again."""
SEEDS = 3


def test_every_experiment_of_the_paper_plays_offline_and_gives_its_figures(tmp_path: Path, claims: Claims) -> None:
    results = tmp_path / "results"
    for path in sorted(PAPER.glob("*.yaml")):
        played(path, results, claims)
    continued(results, claims)
    asked(results, claims)


def played(path: Path, results: Path, claims: Claims) -> None:
    """One spec: checked as it stands, played offline at a tenth."""
    code, said = called("check", str(path))
    claims(
        code == 0, f"{path.stem}: check as it stands, which would ask OpenAI" if code == 0 else f"{path.stem}: {said}"
    )
    small = tenth(path)
    points = load_specs(path, small)
    code, said = called(str(path), *small, "--results", str(results))
    done = [run for spec in points if (run := finished(spec, results))]
    games = sum(plan.size for spec in points for plan in plan_of(spec).all_games())
    whole = code == 0 and len(done) == len(points)
    claims(whole, f"{path.stem}: {len(done)} of {len(points)} points played, {games:,} games" + ("" if whole else said))


def tenth(path: Path) -> list[str]:
    """The overrides that play a spec offline, and a tenth of it."""
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


def finished(spec: Spec, results: Path) -> bool:
    """Whether the run of a point, and every part of it, is done."""
    plan = plan_of(spec)
    run = Results(results).run(plan.run_id)
    if not run.manifest_path.is_file() or run.manifest().status != "done":
        return False
    if not isinstance(plan, TrainingPlan):
        return True
    parts = Results(results).parts_of(plan.run_id)
    return len(parts) == len(plan.all_games()) and all(part.manifest().status == "done" for part in parts)


def continued(results: Path, claims: Claims) -> None:
    """What needs a run that was trained: provers against its verifier, and its tests again."""
    run = next(folder.run_id for folder in Results(results).runs() if folder.run_id.startswith("ei-nip-"))
    path = PAPER / "worst_case_nip.yaml"
    code, said = called(
        str(path), *tenth(path), "sweep=null", "name=worst-case-trained", f"models.verifier.from_run={run}@last",
        "--results", str(results),
    )  # fmt: skip
    lineage = rows(
        results, "SELECT spec->'$.models.verifier.lineage' AS steps FROM runs WHERE name = 'worst-case-trained'"
    )
    steps = [json.loads(row["steps"]) for row in lineage]
    kept = code == 0 and all(step and step[-1]["run_id"] == run for step in steps)
    claims(kept, "worst_case_nip: against the verifier of a run" + ("" if kept else said))
    code, said = called(
        str(PAPER / "ei_nip.yaml"), OFFLINE, "sweep=null", "name=ei-nip-again", f"training.rerun_tests.run={run}",
        "training.test.per_datapoint=10", "training.test.limit=10", "--results", str(results),
    )  # fmt: skip
    again = rows(results, "@always_failed", "repeats=10") if code == 0 else []
    iterations = [row["iteration"] for row in again if row["run"].startswith("ei-nip-again")]
    claims(
        iterations == list(range(8)), "rerun_tests: ten games a datapoint for all iterations" + ("" if again else said)
    )


def asked(results: Path, claims: Claims) -> None:
    """The queries that give the paper's figures."""
    untrained = [row for row in rows(results, "@protocols") if row["name"].startswith("untrained-")]
    protocols = {row["protocol"] for row in untrained if row["seeds"] == SEEDS}
    claims(len(protocols) == 6, f"@protocols: mean accuracy of {len(protocols)} protocols over {SEEDS} seeds")
    uplift = rows(results, "@uplift")
    claims(len({row["protocol"] for row in uplift}) == 5, f"@uplift: {len(uplift)} runs over the lone verifier")
    failed = [row for row in rows(results, "@always_failed", "repeats=10") if row["iteration"] is None]
    claims(len({row["protocol"] for row in failed}) == 6, f"@always_failed: {len(failed)} untrained runs")
    curves = rows(results, "@learning_curve")
    last: dict[str, int] = {}
    for row in curves:
        if row["seeds"] == SEEDS:
            last[row["name"]] = max(row["iteration"], last.get(row["name"], 0))
    long = [name for name, iteration in last.items() if iteration == 7]
    claims(
        len(last) >= 10 and long == ["ei-nip"],
        f"@learning_curve: {len(last)} curves over {SEEDS} seeds, that of nip of 8 tests",
    )
    worst = rows(results, "@worst_prover")
    claims(any(row["provers"] > 1 for row in worst), f"@worst_prover: {len(worst)} runs, ranked by verifier")
    stances = {row["stance"] for row in rows(results, "@stances") if row["run_id"].startswith("stances-nip")}
    claims(stances == {0, 1}, "@stances: both stances were played")


def rows(results: Path, question: str, *parameters: str) -> list[dict[str, Any]]:
    code, said = called("sql", question, *parameters, "--json", "--results", str(results))
    if code != 0:
        raise RuntimeError(said)
    found: list[dict[str, Any]] = json.loads(said)
    return found


def called(*words: str) -> tuple[int, str]:
    """`nip-run` in this process: its exit code and what it said, or what went wrong."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = nip_run([*words, "-q"])
    return code, out.getvalue() if code == 0 else err.getvalue()[-2000:]
