"""The summary of a run agrees with its records in every state of the run."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from itertools import pairwise
from pathlib import Path

import pytest

from runner.base.errors import NipRunError
from runner.documents.releases.reference import parse_reference
from runner.pages.report.runs_overview import overview
from runner.registry.bundles.runs import build_run_draft
from runner.registry.draft import PublisherChoices
from runner.registry.fetched_release import fetch_release
from runner.registry.transports.locations import connect
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_rows import metric_rows
from runner.runs.finished.stored_problems import load_problems
from tests.support.files import parquet_rows
from tests.support.report_summaries import SummarySection, build_run_pages, build_site, read_summaries
from tests.support.run_bundles import publish_bundles
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file

OLD_RESULTS = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "results"
SERVED_RUN_ID = "served-c534600bdb"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of version 0.1.0, of every kind."""
    return Path(shutil.copytree(OLD_RESULTS, tmp_path_factory.mktemp("old") / "results"))


@pytest.fixture(scope="module")
def served_page(results: Path) -> SummarySection:
    return read_summary(results / "runs" / SERVED_RUN_ID)


def read_summary(run: Path | RunFolder) -> SummarySection:
    (section,) = read_summaries(run).values()
    return section


@pytest.fixture(scope="module")
def current_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of the current version."""
    folder = tmp_path_factory.mktemp("ours")
    run_spec(spec_file(folder / "spec", size=4, fine_tune=None), folder / "results")
    return RunFolder(only_run(folder / "results"))


@pytest.mark.full
def test_page_has_every_metric_that_the_show_command_prints(current_run: RunFolder) -> None:
    metrics, page = json.loads(current_run.metrics.read_text("utf-8")), read_summary(current_run)
    rows = [*page.table("Metrics with"), *page.table("More metrics")]
    page_values = {
        (row.get("Agent", "game"), row["Metric"]): (row["Value"].replace("–", "-"), row["n"]) for row in rows
    }
    printed = {(agent, name): (value.split(" ")[0], f"{n:,}") for agent, name, value, n, _ in metric_rows(metrics) if n}
    assert page_values == printed
    accuracy = next(row for row in rows if row["Metric"] == "accuracy")
    assert accuracy["95 % interval"] in page.text.split("Metrics")[0]


def test_verdicts_by_label_match_the_rollouts(served_page: SummarySection, results: Path) -> None:
    rows = parquet_rows(results / "runs" / SERVED_RUN_ID / "rollouts.parquet")
    for row in served_page.table("Verdicts by label"):
        label = int(row["Should be"] == "accepted")
        for decision, column in ((1, "Accepted"), (0, "Rejected"), (2, "No verdict")):
            matching = [rollout for rollout in rows if (rollout["y"], rollout["decision"]) == (label, decision)]
            assert row[column].split()[0] == str(len(matching))
    by_rounds = served_page.table("Number of rounds")
    assert [row["Rounds"] for row in by_rounds] == sorted({str(row["rounds"]) for row in rows})
    assert by_rounds[-1]["Ended by then"] == "100.0 %"


def test_calls_and_tokens_of_agents_add_up_to_the_runs_total(served_page: SummarySection, results: Path) -> None:
    manifest = RunFolder(results / "runs" / SERVED_RUN_ID).manifest()
    *agents, total_row = served_page.table("Calls, tokens and cost by agent")
    for column, total in (
        ("Answers", manifest.completions),
        ("Prompt tokens", manifest.prompt_tokens),
        ("Answer tokens", manifest.completion_tokens),
    ):
        assert total_row[column] == f"{total:,}"
        assert sum(int(row[column].replace(",", "")) for row in agents) == total
    assert total_row["Cost"] == f"${manifest.cost_usd:,.4f}"


def test_links_of_problems_lead_to_games_of_the_page(served_page: SummarySection, results: Path) -> None:
    assert "calls were repeated because of unparsable answers" in served_page.text
    rollouts = {row["rollout_id"] for row in parquet_rows(results / "runs" / SERVED_RUN_ID / "rollouts.parquet")}
    games = {href.rpartition("/")[2] for href in served_page.links if "/game/" in href}
    assert games
    assert games <= rollouts
    assert not [
        problem for problem in load_problems(RunFolder(results / "runs" / SERVED_RUN_ID)) if problem.kind == "cut"
    ]


def test_protocol_rules_are_shown_in_tables(results: Path) -> None:
    page = read_summary(results / "runs" / "sweep-3942dc58ea")
    agents = {row["Agent"]: row["Role"] for row in page.table("Agents and the channels")}
    assert agents == {"prover0": "prover", "prover1": "prover", "verifier": "verifier"}
    assert any("verifier in" in row["Speaks"] for row in page.table("Speakers by round"))
    assert "svg" in page.tags


@pytest.mark.full
def test_heading_levels_are_not_skipped_and_no_style_is_inline(results: Path) -> None:
    runs = [results / "runs" / name for name in (SERVED_RUN_ID, "trees-9c3a6124d5", "sweep-3942dc58ea")]
    for page_summary in (page for run in runs for page in read_summaries(run).values()):
        levels = [1, *(level for level, _ in page_summary.headings)]
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert "style" not in page_summary.attributes
        assert all(rows[0] for rows in page_summary.tables.values())


# States


def test_stopped_run_shows_its_progress_and_the_command_that_resumes_it(results: Path) -> None:
    folder = RunFolder(results / "runs" / "killed-0a7bdc90e0")
    site, _ = build_site(folder)
    page = SummarySection(str(site.sections[0].html))
    count = site.about["runs"][0]["count"]
    assert count
    assert f"The run was stopped: {count} of" in page.text
    assert f"resume: nip-run results/runs/{folder.run_id}" in page.text
    assert str(results.parent) not in page.text
    accuracy = next(row for row in page.table("Metrics with") if row["Metric"] == "accuracy")
    assert accuracy["n"] == str(count)


def test_run_without_games_has_a_page(results: Path, tmp_path: Path) -> None:
    empty = Path(shutil.copytree(results / "runs" / "killed-0a7bdc90e0", tmp_path / "results" / "runs" / "empty"))
    (empty / "journal.jsonl").unlink()
    page = read_summary(empty)
    assert "The run was stopped: 0 of" in page.text
    assert not [caption for caption in page.tables if caption.startswith(("Verdicts", "Metrics"))]


@pytest.mark.full
def test_replay_links_to_the_run_of_its_answers(results: Path) -> None:
    replay = results / "runs" / f"{SERVED_RUN_ID}-replay"
    assert f"#/run/{SERVED_RUN_ID}" not in read_summary(replay).links
    _, replay_pages = build_run_pages(results / "runs" / SERVED_RUN_ID, replay)
    page = SummarySection(str(replay_pages.section.html))
    assert page.links[f"#/run/{SERVED_RUN_ID}"] == f"the answers of {SERVED_RUN_ID}"
    assert "no model was called" in page.text


def test_damaged_file_is_named(results: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(results / "runs" / SERVED_RUN_ID, tmp_path / "results" / "runs" / SERVED_RUN_ID))
    (run / "metrics.json").write_text("{")
    with pytest.raises(NipRunError, match=r"metrics\.json"):
        build_site(run)


@pytest.mark.full
def test_commands_are_shell_quoted_and_contain_no_local_folder(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "runs" / SERVED_RUN_ID, tmp_path / "my $(runs)" / "runs" / SERVED_RUN_ID)
    with chdir(tmp_path):
        page = read_summary(Path("my $(runs)") / "runs" / SERVED_RUN_ID)
    assert f"nip-run 'my $(runs)/runs/{SERVED_RUN_ID}' --again" in page.text
    with chdir(tmp_path.parent):
        page_from_parent = read_summary(Path(tmp_path.name) / "my $(runs)" / "runs" / SERVED_RUN_ID)
    assert f"nip-run 'my $(runs)/runs/{SERVED_RUN_ID}' --again" in page_from_parent.text
    page_from_elsewhere = read_summary(tmp_path / "my $(runs)" / "runs" / SERVED_RUN_ID)
    assert f"nip-run 'my $(runs)/runs/{SERVED_RUN_ID}' --again" in page_from_elsewhere.text
    assert str(tmp_path) not in page_from_elsewhere.text


@pytest.mark.gate
def test_run_published_without_its_rows_says_so_and_keeps_its_numbers(current_run: RunFolder, tmp_path: Path) -> None:
    results = Results.of(current_run)
    draft = build_run_draft(current_run, results, PublisherChoices("shy", licence="MIT", dataset_licence="none"))
    reference = publish_bundles(tmp_path / "registry", draft.bundle())
    with connect(str(tmp_path / "registry")) as registry:
        fetch_release(registry, parse_reference(reference), tmp_path / "got")
    page = read_summary(RunFolder.from_release(tmp_path / "got" / "data"))
    assert "the rows of its dataset are not in the release" in page.text
    assert "without the rows of its dataset" in page.text
    assert page.table("Verdicts by label") == read_summary(current_run).table("Verdicts by label")


# Several


@pytest.mark.full
def test_overview_lists_runs_side_by_side_and_pools_the_seeds_of_a_sweep(results: Path) -> None:
    names = ("sweep-3942dc58ea", "sweep-838e83c049")
    for name in names:
        Results(results).board.append(RunFolder(results / "runs" / name))
    html = str(overview(build_run_pages(*(results / "runs" / name for name in names))).html)
    page = SummarySection(html)
    assert html.count("<svg") == html.count("Accuracy of each point</title>") == 1  # and no chart per run
    assert html.index("Points of the sweep") < html.index("Runs side by side")
    assert "rank: 95 % confidence set of ranks, from tests of all pairs" in html
    assert [row["Run"] for row in page.table("Runs side by side")] == list(names)
    assert {f"#/run/{name}" for name in names} <= page.links.keys()
    (point,) = page.table("Points of the sweep")
    assert (point["Seeds"], point["n"]) == ("2", "4")
