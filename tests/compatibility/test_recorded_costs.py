"""A run that billed only prompt, cached and answer tokens keeps its recorded cost in all outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.pages.report.games import games_of
from runner.pages.report.run_totals import RunTally
from runner.registry.recomputed_run import recompute_run
from runner.registry.verification.verify import find_run_problems
from runner.results.comparison.scores import load_scores
from runner.results.folder import RunFolder
from runner.results.metric_definitions import compared_metric
from runner.runs.finished.reconstruction import played_plan
from tests.models.test_bills import SOLO, make_reply, make_usage
from tests.support.runs import run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

RECORDED_COST = 4 * (100_000 * 5 + 1_000 * 25) / 1e6
"""Cost of four calls. Tokens written to a cache had the prompt price; now they cost 1.25 times as much."""


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """The spec of a finished run, with a manifest as version 0.2.0.dev wrote it."""
    model = {"price": {"input": 5.0, "output": 25.0}, "max_completion_tokens": 1_000}
    with run_chat_server(reply=make_reply(make_usage(100_000, 1_000, written=100_000))) as server:
        options = {**SOLO, "dataset": {"limit": 4}}
        spec = spec_file(tmp_path, server.base_url, size=4, models={"m": model}, **options)
        folder = run_spec(spec, tmp_path / "results").folder
    manifest = json.loads(folder.manifest_path.read_bytes())
    assert manifest["cost_usd"] == pytest.approx(2.6)
    for name in ("prices", "cache_write_tokens"):
        manifest.pop(name, None)
    manifest |= {"cost_usd": RECORDED_COST, "cost_usd_at_most": RECORDED_COST}
    folder.manifest_path.write_text(json.dumps(manifest))
    return spec


def find_run_folder(spec: Path) -> RunFolder:
    (path,) = (spec.parent / "results" / "runs").iterdir()
    return RunFolder(path)


def test_sealing_an_old_run_again_keeps_its_recorded_cost(old_run: Path) -> None:
    find_run_folder(old_run).metrics.unlink()
    result = run_spec(old_run, old_run.parent / "results")
    assert result.folder.metrics.is_file()
    assert result.manifest.cost_usd == RECORDED_COST
    assert "prices" not in json.loads(result.folder.manifest_path.read_bytes())


def test_pages_and_checks_of_an_old_run_show_its_recorded_cost(old_run: Path) -> None:
    folder = find_run_folder(old_run)
    tally = RunTally(played_plan(folder), measures=False)
    for game in games_of(folder):
        tally.add(game.details)
    (verifier,) = tally.agents
    assert verifier.usd == pytest.approx(RECORDED_COST)
    with recompute_run(folder) as recomputed:
        assert recomputed.counts["cost_usd"] == pytest.approx(RECORDED_COST)


def test_compare_counts_the_recorded_cost_of_an_old_run(old_run: Path) -> None:
    scores = load_scores(find_run_folder(old_run), [compared_metric("cost", ["verifier"])]).scores["cost"]
    assert not isinstance(scores, UsageError)
    assert sum(cost or 0 for cost in scores) == pytest.approx(RECORDED_COST)


def test_verify_says_when_a_recorded_cost_does_not_follow_from_the_journal(old_run: Path) -> None:
    folder = find_run_folder(old_run)
    assert list(find_run_problems(folder)) == []
    manifest = json.loads(folder.manifest_path.read_bytes())
    folder.manifest_path.write_text(json.dumps(manifest | {"cost_usd": 0.01}))
    assert [line for line in find_run_problems(folder) if "cost_usd 0.01" in line]
