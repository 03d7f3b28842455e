"""The summary of a run says what its records say, in whatever state the run is."""

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

OLD = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "results"
SERVED = "served-c534600bdb"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of 0.1.0, of every kind."""
    return Path(shutil.copytree(OLD, tmp_path_factory.mktemp("old") / "results"))


@pytest.fixture(scope="module")
def served(results: Path) -> SummarySection:
    return summary(results / "runs" / SERVED)


def summary(run: Path | RunFolder) -> SummarySection:
    (found,) = read_summaries(run).values()
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of this version."""
    folder = tmp_path_factory.mktemp("ours")
    run_spec(spec_file(folder / "spec", size=4, fine_tune=None), folder / "results")
    return RunFolder(only_run(folder / "results"))


@pytest.mark.full
def test_a_page_has_every_metric_that_show_prints(ours: RunFolder) -> None:
    metrics, found = json.loads(ours.metrics.read_text("utf-8")), summary(ours)
    shown = [*found.table("Metrics with"), *found.table("More metrics")]
    told = {(row.get("Agent", "game"), row["Metric"]): (row["Value"].replace("–", "-"), row["n"]) for row in shown}
    printed = {(of, name): (value.split(" ")[0], f"{n:,}") for of, name, value, n, _ in metric_rows(metrics) if n}
    assert told == printed
    accuracy = next(row for row in shown if row["Metric"] == "accuracy")
    assert accuracy["95 % interval"] in found.text.split("Metrics")[0]


def test_verdicts_stand_beside_labels_as_the_rollouts_have_them(served: SummarySection, results: Path) -> None:
    rows = parquet_rows(results / "runs" / SERVED / "rollouts.parquet")
    for row in served.table("Verdicts by label"):
        label = int(row["Should be"] == "accepted")
        for decision, column in ((1, "Accepted"), (0, "Rejected"), (2, "No verdict")):
            is_so = [one for one in rows if (one["y"], one["decision"]) == (label, decision)]
            assert row[column].split()[0] == str(len(is_so))
    by_rounds = served.table("Number of rounds")
    assert [row["Rounds"] for row in by_rounds] == sorted({str(row["rounds"]) for row in rows})
    assert by_rounds[-1]["Ended by then"] == "100.0 %"


def test_what_agents_took_adds_up_to_what_the_run_took(served: SummarySection, results: Path) -> None:
    manifest = RunFolder(results / "runs" / SERVED).manifest()
    *agents, everyone = served.table("Calls, tokens and cost by agent")
    for column, said in (
        ("Answers", manifest.completions),
        ("Prompt tokens", manifest.prompt_tokens),
        ("Answer tokens", manifest.completion_tokens),
    ):
        assert everyone[column] == f"{said:,}"
        assert sum(int(row[column].replace(",", "")) for row in agents) == said
    assert everyone["Cost"] == f"${manifest.cost_usd:,.4f}"


def test_what_went_wrong_leads_to_games_that_the_page_has(served: SummarySection, results: Path) -> None:
    assert "calls were repeated because of unparsable answers" in served.text
    rollouts = {row["rollout_id"] for row in parquet_rows(results / "runs" / SERVED / "rollouts.parquet")}
    games = {href.rpartition("/")[2] for href in served.links if "/game/" in href}
    assert games
    assert games <= rollouts
    assert not [trouble for trouble in load_problems(RunFolder(results / "runs" / SERVED)) if trouble.kind == "cut"]


def test_the_rules_are_told_in_tables_too(results: Path) -> None:
    found = summary(results / "runs" / "sweep-3942dc58ea")
    agents = {row["Agent"]: row["Role"] for row in found.table("Agents and the channels")}
    assert agents == {"prover0": "prover", "prover1": "prover", "verifier": "verifier"}
    assert any("verifier in" in row["Speaks"] for row in found.table("Speakers by round"))
    assert "svg" in found.tags


@pytest.mark.full
def test_headings_go_down_one_at_a_time_and_nothing_is_styled_inline(results: Path) -> None:
    runs = [results / "runs" / name for name in (SERVED, "trees-9c3a6124d5", "sweep-3942dc58ea")]
    for found in (page for run in runs for page in read_summaries(run).values()):
        levels = [1, *(level for level, _ in found.headings)]
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert "style" not in found.attributes
        assert all(rows[0] for rows in found.tables.values())


# States


def test_a_run_that_stopped_says_how_far_it_came_and_how_it_goes_on(results: Path) -> None:
    folder = RunFolder(results / "runs" / "killed-0a7bdc90e0")
    site, _ = build_site(folder)
    found = SummarySection(str(site.sections[0].html))
    count = site.about["runs"][0]["count"]
    assert count
    assert f"The run was stopped: {count} of" in found.text
    assert f"nip-run {folder.path}" in found.text
    accuracy = next(row for row in found.table("Metrics with") if row["Metric"] == "accuracy")
    assert accuracy["n"] == str(count)


def test_a_run_without_a_game_has_a_page(results: Path, tmp_path: Path) -> None:
    empty = Path(shutil.copytree(results / "runs" / "killed-0a7bdc90e0", tmp_path / "results" / "runs" / "empty"))
    (empty / "journal.jsonl").unlink()
    found = summary(empty)
    assert "The run was stopped: 0 of" in found.text
    assert not [caption for caption in found.tables if caption.startswith(("Verdicts", "Metrics"))]


@pytest.mark.full
def test_a_replay_leads_to_the_run_whose_answers_it_has(results: Path) -> None:
    replay = results / "runs" / f"{SERVED}-replay"
    assert f"#/run/{SERVED}" not in summary(replay).links
    _, made = build_run_pages(results / "runs" / SERVED, replay)
    found = SummarySection(str(made.section.html))
    assert found.links[f"#/run/{SERVED}"] == f"the answers of {SERVED}"
    assert "no model was called" in found.text


def test_a_damaged_file_is_named(results: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(results / "runs" / SERVED, tmp_path / "results" / "runs" / SERVED))
    (run / "metrics.json").write_text("{")
    with pytest.raises(NipRunError, match=r"metrics\.json"):
        build_site(run)


@pytest.mark.full
def test_commands_are_quoted_for_a_shell_and_name_no_folder_of_this_machine(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "runs" / SERVED, tmp_path / "my $(runs)" / "runs" / SERVED)
    with chdir(tmp_path):
        found = summary(Path("my $(runs)") / "runs" / SERVED)
    assert f"nip-run 'my $(runs)/runs/{SERVED}' --again" in found.text
    far = summary(tmp_path / "my $(runs)" / "runs" / SERVED)
    assert f"nip-run 'my $(runs)/runs/{SERVED}' --again" in far.text
    assert str(tmp_path) not in far.text


@pytest.mark.gate
def test_a_run_that_was_published_without_its_rows_says_so_and_has_its_numbers(ours: RunFolder, tmp_path: Path) -> None:
    results = Results.of(ours)
    made = build_run_draft(ours, results, PublisherChoices("shy", licence="MIT", dataset_licence="none"))
    reference = publish_bundles(tmp_path / "registry", made.bundle())
    with connect(str(tmp_path / "registry")) as registry:
        fetch_release(registry, parse_reference(reference), tmp_path / "got")
    found = summary(RunFolder.from_release(tmp_path / "got" / "data"))
    assert "the rows of its dataset are not in the release" in found.text
    assert "without the rows of its dataset" in found.text
    assert found.table("Verdicts by label") == summary(ours).table("Verdicts by label")


# Several


@pytest.mark.full
def test_runs_stand_side_by_side_and_the_seeds_of_a_sweep_as_one(results: Path) -> None:
    names = ("sweep-3942dc58ea", "sweep-838e83c049")
    for name in names:
        Results(results).board.append(RunFolder(results / "runs" / name))
    html = str(overview(build_run_pages(*(results / "runs" / name for name in names))).html)
    found = SummarySection(html)
    assert html.count("<svg") == html.count("Accuracy of each point</title>") == 1  # and none of each run
    assert html.index("Points of the sweep") < html.index("Runs side by side")
    assert "rank: 95 % confidence set of ranks, from tests of all pairs" in html
    assert [row["Run"] for row in found.table("Runs side by side")] == list(names)
    assert {f"#/run/{name}" for name in names} <= found.links.keys()
    (point,) = found.table("Points of the sweep")
    assert (point["Seeds"], point["n"]) == ("2", "4")
