"""The comparison page agrees with `compare`, and each pair of games shares a datapoint."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner import run
from runner.base.errors import UsageError
from runner.pages.report.comparison import compare_runs, count_pairs, game_pairs, page_reader, run_pairs
from runner.pages.report.run_site import runs_site
from runner.results.comparison.comparison import ComparisonOptions, compare_by_metric, compare_systems
from runner.results.comparison.systems import SystemReader, load_system
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import Show, metrics_shown
from runner.spec.loader import load_spec
from tests.results.comparison.planted import other_system_override, play_with_planted_verdicts, write_solo_spec
from tests.support.report_summaries import read_summaries
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    folder = tmp_path_factory.mktemp("compared")
    path = spec_file(folder, size=12, fine_tune=None)
    for seed in (1, 2, 3):
        run(load_spec(path, [f"seed={seed}"]), folder / "results")
    return list(Results(folder / "results").runs())


def build_comparison(runs: list[RunFolder]) -> tuple[Any, dict[str, Any]]:
    stored: dict[str, bytes] = {}
    comparison = compare_runs(runs, stored.__setitem__)
    return comparison, {name: json.loads(gzip.decompress(piece)) for name, piece in stored.items()}


@pytest.mark.full
def test_page_has_the_verdict_and_flips_of_the_compare_command(runs: list[RunFolder]) -> None:
    comparison, _ = build_comparison(runs[:2])
    report = compare_systems([[run_folder.path] for run_folder in runs[:2]], Results.of(runs[0]), ComparisonOptions())
    (section,) = comparison.sections
    assert section.route == f"compare/{runs[0].run_id}/{runs[1].run_id}"
    assert report.pairs[0].verdict in section.html
    for flip in report.flips:
        assert f"/pair/{flip.base_rollout}/{flip.other_rollout}" in section.html


@pytest.mark.gate
def test_page_names_datapoints_that_are_left_out(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=12, fine_tune=None)
    for size in (12, 4):
        run(load_spec(path, [f"dataset.limit={size}"]), tmp_path / "results", run_id=f"of-{size}")
    results = Results(tmp_path / "results")
    comparison, _ = build_comparison([results.run("of-12"), results.run("of-4")])
    (section,) = comparison.sections
    assert "Datapoints of of-12 that are left out" in section.html
    assert "the other run lacks them: 8 (such as p10, p11, p4, p5, p6)." in section.html
    assert "Datapoints of of-4" not in section.html


@pytest.mark.full
def test_pairs_share_a_datapoint_and_flipped_ones_come_first(runs: list[RunFolder]) -> None:
    comparison, data = build_comparison(runs[:2])
    columns = data[comparison.about[0]["pairs"]]["columns"]
    base_system, compared_system = (load_system([folder.path], Results.of(folder)) for folder in runs[:2])
    system_pairs = list(game_pairs(base_system, compared_system, SystemReader()))
    assert len(columns["datapoint"]) == len(system_pairs) == 12
    assert sorted(columns["datapoint"]) == sorted({pair.datapoint for pair in system_pairs})
    equal = [base == other for base, other in zip(columns["base_right"], columns["other_right"], strict=True)]
    assert equal == sorted(equal)
    assert not all(equal)
    counts = count_pairs(system_pairs)
    assert sum(counts.values()) == 12
    assert counts["base"] + counts["other"] == equal.count(False)


@pytest.mark.full
def test_few_runs_are_compared_pairwise_and_many_only_with_the_first(runs: list[RunFolder]) -> None:
    comparison, _ = build_comparison(runs)
    assert len(comparison.about) == 3
    assert comparison.sections[0].route == "compare"
    assert all(about["base"] in comparison.sections[0].html for about in comparison.about)
    assert run_pairs([*runs, *runs]) == run_pairs(runs)


@pytest.mark.full
def test_runs_that_cannot_be_compared_have_a_page_with_the_reason(runs: list[RunFolder], tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4, fine_tune=None)
    run(
        load_spec(path, ["rollouts.num_responses_per_timestep=2", "protocol.max_message_rounds=3"]),
        tmp_path / "results",
    )
    (tree_run,) = Results(tmp_path / "results").runs()
    (tree_run.path / "rollouts.parquet").rename(tree_run.path / "away")
    manifest = json.loads(tree_run.manifest_path.read_text("utf-8"))
    tree_run.manifest_path.write_text(json.dumps({**manifest, "status": "running"}), "utf-8")
    comparison, data = build_comparison([runs[0], tree_run])
    assert (comparison.about, data) == ([], {})
    assert "These two runs cannot be compared" in comparison.sections[0].html


@pytest.mark.full
def test_site_of_two_runs_has_their_comparison_and_a_link_to_it(runs: list[RunFolder]) -> None:
    stored: dict[str, bytes] = {}
    site = runs_site(runs[:2], stored.__setitem__)
    route = f"compare/{runs[0].run_id}/{runs[1].run_id}"
    assert (route, "Compare") in site.links
    assert site.about["compares"][0]["pairs"] in stored
    assert not runs_site(runs[:1], stored.__setitem__).about["compares"]


@pytest.mark.full
def test_metrics_of_the_page_equal_separate_comparisons(runs: list[RunFolder]) -> None:
    metrics = metrics_shown(Show.COMPARISON)
    (rows,) = compare_by_metric([(runs[0], runs[1])], metrics, page_reader())
    assert not isinstance(rows, UsageError)
    names = [[run_folder.path] for run_folder in runs[:2]]
    results = Results.of(runs[0])
    separate_rows = [compare_systems(names, results, ComparisonOptions(row.metric)).pairs[0] for row in rows]
    assert rows == separate_rows
    inapplicable = {
        "brier_stated",
        "brier_logprob",
        "answer_brier",
        "answer_log_score",
    }  # these runs have neither confidence nor listed answers
    assert {row.metric for row in rows} == set(metrics) - inapplicable


def _is_below(count: int, i: int, _: int) -> bool:
    return i < count


@pytest.mark.full
def test_all_pairs_of_a_page_are_adjusted_together_and_the_page_says_so(tmp_path: Path) -> None:
    """The two best runs differ with p = 0.031, which is not significant as one of three comparisons."""
    path, results = write_solo_spec(tmp_path, size=20), tmp_path / "results"
    for number, (name, correct_count) in enumerate({"low": 6, "middle": 12, "high": 18}.items()):
        play_with_planted_verdicts(
            path, results, name, partial(_is_below, correct_count), other_system_override(number)
        )
    folders = [RunFolder(results / "runs" / name) for name in ("low", "middle", "high")]
    unadjusted = compare_systems([[folders[1].path], [folders[2].path]], Results(results), ComparisonOptions()).pairs[0]
    assert unadjusted.p == 2 / 2**6
    assert unadjusted.verdict.startswith("high is better")
    listing, *pages = (section.html for section in build_comparison(folders)[0].sections)
    assert "intervals and p-values are adjusted for 3 comparisons (Holm)" in listing
    assert listing.count("no evidence of a difference") == 2
    assert listing.count("high is better") == 1
    assert listing.count("; interval and p-value are adjusted for 3 comparisons (Holm)") == 3
    for page in pages:
        assert "intervals and p-values are adjusted for 3 comparisons (Holm), except for McNemar" in page
        assert "95 % interval, adjusted</th>" in page
    (pair,) = (page for page in pages if "high compared with middle" in page)
    rows = compare_by_metric(run_pairs(folders), ["accuracy"], page_reader())
    (row,) = next(
        metric_rows
        for metric_rows in rows
        if not isinstance(metric_rows, UsageError) and metric_rows[0].base == "middle"
    )
    assert row.p_corrected == pytest.approx(2 * 2 / 2**6)
    low, high = row.adjusted_interval
    assert low is not None
    assert high is not None
    assert f"{low:.3f} to {high:.3f}" in pair
    (single_section,) = build_comparison(folders[1:])[0].sections
    assert "adjusted" not in single_section.html


@pytest.mark.full
def test_comparison_shows_small_costs_and_the_overview_shows_lost_games(tmp_path: Path) -> None:
    """The server stops answering after some games of the second run."""
    price = {"m": {"price": {"input": 0.01, "output": 0.04}}}
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, fine_tune=None, models=price)
        run(load_spec(path), tmp_path / "results", run_id="complete")
    allowed: dict[str, Any] = {
        "rollouts": {"max_transport_failed": 1.0, "concurrency": 1},
        "retry": {"transient": {"attempts": 1}},
    }
    with run_chat_server(kind="server_error", after=20) as server:
        path = spec_file(tmp_path, server.base_url, fine_tune=None, models=price, seed=8, **allowed)
        run(load_spec(path), tmp_path / "results", run_id="partial")
    folders = [RunFolder(tmp_path / "results" / "runs" / name) for name in ("complete", "partial")]
    lost = folders[1].manifest().transport_failed
    assert lost
    sections = read_summaries(*folders)
    assert [row["Lost"] for row in sections["runs"].table("Runs side by side")] == ["0", str(lost)]
    cost = next(row for row in sections["compare/complete/partial"].table("partial minus") if row["Metric"] == "cost")
    pair = compare_systems(
        [[folder.path] for folder in folders], Results.of(folders[0]), ComparisonOptions("cost")
    ).pairs[0]
    assert float(cost["Difference"]) == pytest.approx(pair.difference, rel=0.06)


def test_overview_of_several_runs_begins_with_the_verdict_of_compare(runs: list[RunFolder]) -> None:
    site = runs_site(runs[:2], lambda *_: None)
    verdict = (
        compare_systems([[run_folder.path] for run_folder in runs[:2]], Results.of(runs[0]), ComparisonOptions())
        .pairs[0]
        .verdict
    )
    overview = site.sections[0].html
    assert overview.lstrip().lower().startswith(f'<p class="lead">{verdict}'.lower())
    assert f'href="#/compare/{runs[0].run_id}/{runs[1].run_id}"' in overview
    assert ("matrix", "Datapoints") in site.links
