"""Progress, manifest, journal and budget of a run show the same usage totals."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.models.interface import Usage
from runner.models.layers.budget import Budget, BudgetSettings
from runner.models.settings import Price
from runner.models.usage_totals import UsageTotals
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Progress
from runner.runs.execution.spending import max_spending
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import OWN_RUN
from runner.runs.session import session
from runner.runs.session.run import RunOptions
from runner.spec.loader import load_spec
from runner.training.dispatch import run_spec
from tests.support.servers.batch_client import run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

PRICE = Price(input=2.0, output=6.0, cached_input=1.0)


def test_usage_totals_can_be_added_and_subtracted() -> None:
    totals, other_totals = UsageTotals(), UsageTotals(0.5, 10, 1)
    totals.count(Usage(10, 5, 4), PRICE)
    assert totals == UsageTotals(46e-6, 15, 1, 10, 5, 4)
    assert totals + other_totals == UsageTotals(0.5 + 46e-6, 25, 2, 10, 5, 4)
    assert totals + other_totals - other_totals == UsageTotals(0.5 + 46e-6 - 0.5, 15, 1, 10, 5, 4)
    totals.count(Usage(1, 1), None, 0)
    assert totals == UsageTotals(46e-6, 17, 1, 11, 6, 4)


@pytest.mark.full
@pytest.mark.parametrize("share", [False, True])
def test_progress_manifest_journal_and_budget_show_the_same_figures(tmp_path: Path, share: bool) -> None:
    progress_reports: list[Progress] = []
    budget = Budget(BudgetSettings(usd=100.0))
    with run_batch_provider() as provider:
        model = {"share_prompts": share, "max_completion_tokens": 50, "price": {"input": 2.0, "output": 6.0}}
        path = spec_file(tmp_path, provider.base_url, size=4, models={"m": model}, rollouts={"per_datapoint": 3})
        spec = load_spec(path)
        options = RunOptions(budget=budget, on_progress=progress_reports.append)
        result = run_spec(spec, Results(tmp_path / "results"), options, OWN_RUN)
        billed, usd = provider.stats()["billed"], provider.billed_usd(2.0, 6.0)
    manifest, progress = result.manifest, progress_reports[-1]
    journal = max_spending(Plan(spec), result.folder)
    assert budget.spent.tokens == journal.tokens == billed["prompt_tokens"] + billed["completion_tokens"]
    assert manifest.prompt_tokens == progress.prompt_tokens == journal.prompt_tokens == billed["prompt_tokens"]
    assert manifest.completion_tokens == progress.completion_tokens == billed["completion_tokens"]
    assert manifest.completions == progress.calls
    assert journal.completions == budget.spent.completions
    assert (journal.completions < progress.calls) == share
    for figure in (manifest.cost_usd, progress.cost_usd, journal.usd, budget.spent.usd):
        assert figure == pytest.approx(usd, abs=1e-9)
    assert manifest.cost_usd_at_most == manifest.cost_usd


@pytest.mark.full
def test_a_new_run_knows_its_highest_cost_without_reading_its_journal_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "measure_spending", None)
    model = {"max_completion_tokens": 50, "price": {"input": 2.0, "output": 6.0}}
    with run_chat_server(seed=3, faults={"server_error": 0.3}) as server:
        spec = load_spec(spec_file(tmp_path, server.base_url, size=4, models={"m": model}))
        result = run_spec(spec, Results(tmp_path / "results"), RunOptions(), OWN_RUN)
    manifest = result.manifest
    assert manifest.failed_calls
    assert manifest.cost_usd is not None
    assert manifest.cost_usd_at_most == round(max_spending(Plan(spec), result.folder).usd, 9) > manifest.cost_usd


def test_a_longer_run_with_another_price_says_that_earlier_calls_are_counted_at_it(tmp_path: Path) -> None:
    path, results = spec_file(tmp_path, size=4, fine_tune=None), Results(tmp_path / "results")

    def play(price: float, repeats: int) -> FinishedRun:
        overrides = [f"models.m.price={{input: {price}, output: {price}}}", f"rollouts.per_datapoint={repeats}"]
        return run_spec(load_spec(path, overrides), results, RunOptions(), OWN_RUN)

    first, repriced, longer = play(100, 1), play(1, 1), play(2, 2)
    assert first.manifest.cost_usd == repriced.manifest.cost_usd
    assert (first.manifest.cost_usd or 0) > (longer.manifest.cost_usd or 0) > 0
    notes = [[note for note in result.notes if "price" in note] for result in (first, repriced, longer)]
    was = "models.m: the price was ${0} in, ${0} out for earlier calls, and is now ${1} in, ${1} out; cost_usd ".format
    kept, counted = (
        "keeps the earlier price until the run plays more games",
        "counts all calls of the run at the new price",
    )
    assert notes == [[], [was(100, 1) + kept], [was(1, 2) + counted]]


def test_a_run_without_a_price_has_counts_and_no_cost(tmp_path: Path) -> None:
    progress_reports: list[Progress] = []
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, size=2)
        result = run_spec(
            load_spec(path), Results(tmp_path / "results"), RunOptions(on_progress=progress_reports.append), OWN_RUN
        )
    assert progress_reports[-1].calls == (result.manifest.completions or 0) > 0
    assert progress_reports[-1].cost_usd is None
    assert (result.manifest.cost_usd, result.manifest.cost_usd_at_most) == (None, None)
