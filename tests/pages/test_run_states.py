"""Pages of stopped, rejudged, fetched and reproduced runs, as reports and as live views."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from runner.base.errors import NipRunError
from runner.documents.releases.reference import parse_reference
from runner.registry.bundles.runs import build_run_draft
from runner.registry.draft import PublisherChoices
from runner.registry.fetched_release import fetch_release
from runner.registry.transports.locations import connect
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from tests.pages.live.test_states import follow_runs
from tests.support.processes import nip_run_here
from tests.support.report_summaries import SummarySection, build_site, read_summaries
from tests.support.run_bundles import publish_bundles
from tests.support.runs import only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

PRICED = {"m": {"price": {"input": 100.0, "output": 400.0}, "max_completion_tokens": 60}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with one run, which its stopping rule `until` stopped."""
    folder = tmp_path_factory.mktemp("states")
    path = spec_file(
        folder / "spec", size=50, until={"width": 0.6}, fine_tune=None,
        protocol={"use": "nip", "max_message_rounds": 3},
    )  # fmt: skip
    run_spec(path, folder / "results", run_id="decided")
    return folder / "results"


def load_run_page(run_or_path: Path | RunFolder) -> SummarySection:
    """Return a run's page and check that report and view have the same one."""
    folder = run_or_path if isinstance(run_or_path, RunFolder) else RunFolder(run_or_path)
    site, _ = build_site(folder)
    with follow_runs(folder) as live:
        assert str(site.sections[0].html) in live.page().decode()
    return SummarySection(str(site.sections[0].html))


@pytest.mark.full
def test_run_stopped_by_its_stopping_rule_shows_the_number_of_games(results: Path) -> None:
    assert "Stopping rule: stopped after 12 of 50 games" in load_run_page(results / "runs" / "decided").text


@pytest.mark.full
def test_run_stopped_by_its_budget_shows_the_command_that_raises_it(tmp_path: Path) -> None:
    with run_chat_server() as server, pytest.raises(NipRunError, match="used up"):
        path = spec_file(
            tmp_path, server.base_url, size=8, models=PRICED, budget={"usd": 0.5}, rollouts={"concurrency": 1}
        )
        run_spec(path, tmp_path / "results", run_id="poor")
    with chdir(tmp_path):
        run_page = load_run_page(Path("results/runs/poor"))
    assert "stopped by its budget" in run_page.text
    assert run_page.text.count("nip-run results/runs/poor budget.usd=N") == 2
    assert load_run_page(tmp_path / "results" / "runs" / "poor").text == run_page.text, "names a folder of this machine"


def test_run_whose_games_all_failed_shows_them_without_verdicts(tmp_path: Path) -> None:
    with run_chat_server(kind="server_error") as server:
        path = spec_file(tmp_path, server.base_url, size=2, fine_tune=None, retry={"transient": {"attempts": 1}})
        run_spec(path, tmp_path / "results", run_id="lost")
    run_page = load_run_page(tmp_path / "results" / "runs" / "lost")
    assert "The run failed: 2 of 2 games are finished." in run_page.text
    assert "2 of 2 rollouts failed in transport" in run_page.text
    assert [row["No verdict"] for row in run_page.table("Verdicts by label")] == ["1 100.0 %"] * 2
    assert "2 without a verdict were lost in transport, and metrics leave them out" in run_page.text
    assert "0 decided, 2 lost" in run_page.text


def test_outcomes_of_games_without_labels_are_not_split_by_label(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, fine_tune=None)
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text("utf-8").splitlines()]
    unlabeled = "".join(json.dumps({**row, "label": None}) + "\n" for row in rows)
    (tmp_path / "data.jsonl").write_text(unlabeled, "utf-8")
    run_spec(path, tmp_path / "results", run_id="hidden")
    run_page = load_run_page(tmp_path / "results" / "runs" / "hidden")
    [row] = run_page.table("How games ended")
    assert (row["Outcome"], row["Games"]) == ("decided", "2")
    assert "Should be accepted" not in row
    assert "✓ right" not in run_page.text


@pytest.mark.full
def test_rejudged_run_names_its_source_and_its_moved_copy_has_the_same_page(results: Path, tmp_path: Path) -> None:
    arguments = (
        "rejudge",
        "decided",
        "+models.j={provider: dummy}",
        "agents.verifier.model=j",
        "--run-id",
        "judged",
        "-q",
    )
    results_copy = Path(shutil.copytree(results, tmp_path / "results"))
    process = nip_run_here(*arguments, "--results", "results", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    with chdir(tmp_path):
        run_page = load_run_page(Path("results/runs/judged"))
        Path("results").rename("other")
        moved_page = load_run_page(Path("other/runs/judged"))
    assert results_copy.name == "results"
    assert "Judges the debates of decided; only the judge was called" in run_page.text
    assert "only 12 of 50 games are judged" in run_page.text
    assert moved_page.text.replace("other/runs", "results/runs") == run_page.text


@pytest.mark.full
@pytest.mark.parametrize("has_rows", [True, False])
def test_fetched_run_names_its_origin_and_shows_how_to_reproduce_it(tmp_path: Path, has_rows: bool) -> None:
    run_spec(spec_file(tmp_path / "spec", size=1, fine_tune=None), tmp_path / "results")
    local_run = RunFolder(only_run(tmp_path / "results"))
    choices = PublisherChoices("acme", licence="MIT", dataset_licence="MIT" if has_rows else "none")
    reference = publish_bundles(
        tmp_path / "registry", build_run_draft(local_run, Results.of(local_run), choices).bundle()
    )
    with connect(str(tmp_path / "registry")) as registry:
        fetch_release(registry, parse_reference(reference), tmp_path / "got")
    fetched_page = load_run_page(RunFolder.from_release(tmp_path / "got" / "data"))
    assert f"Fetched from a registry as {reference}." in fetched_page.text
    assert ("--fresh --set dataset.path=FILE" in fetched_page.text) != has_rows
    assert ("without the rows of its dataset" in fetched_page.text) != has_rows
    if has_rows:
        with chdir(tmp_path):
            process = nip_run_here("reproduce", "got", "-q", cwd=tmp_path)
            assert process.returncode == 0, process.stderr
            (reproduced_path,) = Path("results/runs").glob("*-reproduced")
            reproduced_page = load_run_page(reproduced_path)
        assert "This run is a replay: every answer comes from another run" in reproduced_page.text
        assert reference in reproduced_page.text
        assert reproduced_page.table("Verdicts by label") == read_summaries(local_run).popitem()[1].table(
            "Verdicts by label"
        )
        assert "data/spec.yaml" not in reproduced_page.text.split("Origin")[0]
