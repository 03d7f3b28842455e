"""A run that was stopped, judged again, got or reproduced has a page that says what it is, served or mailed."""

from __future__ import annotations

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
from tests.pages.live.test_states import followed
from tests.support.processes import nip_run_here
from tests.support.report_summaries import SummarySection, build_site, read_summaries
from tests.support.run_bundles import publish_bundles
from tests.support.runs import only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

PRICED = {"m": {"price": {"input": 100.0, "output": 400.0}, "max_completion_tokens": 60}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that `until` stopped, and nothing else."""
    folder = tmp_path_factory.mktemp("states")
    path = spec_file(
        folder / "spec", size=50, until={"width": 0.6}, fine_tune=None,
        protocol={"use": "nip", "max_message_rounds": 3},
    )  # fmt: skip
    run_spec(path, folder / "results", run_id="decided")
    return folder / "results"


def page(run: Path | RunFolder) -> SummarySection:
    """A run's page, which is the same in a report and in a view."""
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    site, _ = build_site(folder)
    with followed(folder) as live:
        assert str(site.sections[0].html) in live.page().decode()
    return SummarySection(str(site.sections[0].html))


@pytest.mark.full
def test_a_run_that_until_stopped_says_after_how_many_games(results: Path) -> None:
    assert "Stopping rule: stopped after 12 of 50 games" in page(results / "runs" / "decided").text


@pytest.mark.full
def test_a_run_that_its_budget_stopped_says_so_and_its_command_raises_it(tmp_path: Path) -> None:
    with run_chat_server() as server, pytest.raises(NipRunError, match="used up"):
        path = spec_file(
            tmp_path, server.base_url, size=8, models=PRICED, budget={"usd": 0.5}, rollouts={"concurrency": 1}
        )
        run_spec(path, tmp_path / "results", run_id="poor")
    with chdir(tmp_path):
        found = page(Path("results/runs/poor"))
    assert "stopped by its budget" in found.text
    assert found.text.count("nip-run results/runs/poor budget.usd=N") == 2


def test_a_run_all_of_whose_games_failed_has_its_games_and_no_verdict(tmp_path: Path) -> None:
    with run_chat_server(kind="server_error") as server:
        path = spec_file(tmp_path, server.base_url, size=2, fine_tune=None, retry={"transient": {"attempts": 1}})
        run_spec(path, tmp_path / "results", run_id="lost")
    found = page(tmp_path / "results" / "runs" / "lost")
    assert "The run failed: 2 of 2 games are finished." in found.text
    assert "2 of 2 rollouts failed in transport" in found.text
    assert [row["No verdict"] for row in found.table("Verdicts by label")] == ["1 100.0 %"] * 2


@pytest.mark.full
def test_a_judging_says_whose_debates_it_judges_and_its_copy_has_the_same_page(results: Path, tmp_path: Path) -> None:
    words = ("rejudge", "decided", "+models.j={provider: dummy}", "agents.verifier.model=j", "--run-id", "judged", "-q")
    mine = Path(shutil.copytree(results, tmp_path / "results"))
    done = nip_run_here(*words, "--results", "results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with chdir(tmp_path):
        found = page(Path("results/runs/judged"))
        Path("results").rename("other")
        copied = page(Path("other/runs/judged"))
    assert mine.name == "results"
    assert "Judges the debates of decided; only the judge was called" in found.text
    assert "only 12 of 50 games are judged" in found.text
    assert copied.text.replace("other/runs", "results/runs") == found.text


@pytest.mark.full
@pytest.mark.parametrize("rows", [True, False])
def test_a_run_that_was_got_says_from_where_and_how_it_is_played_again(tmp_path: Path, rows: bool) -> None:
    run_spec(spec_file(tmp_path / "spec", size=1, fine_tune=None), tmp_path / "results")
    own = RunFolder(only_run(tmp_path / "results"))
    choices = PublisherChoices("acme", licence="MIT", dataset_licence="MIT" if rows else "none")
    reference = publish_bundles(tmp_path / "registry", build_run_draft(own, Results.of(own), choices).bundle())
    with connect(str(tmp_path / "registry")) as registry:
        fetch_release(registry, parse_reference(reference), tmp_path / "got")
    found = page(RunFolder.from_release(tmp_path / "got" / "data"))
    assert f"Fetched from a registry as {reference}." in found.text
    assert ("--fresh --set dataset.path=FILE" in found.text) != rows
    assert ("without the rows of its dataset" in found.text) != rows
    if rows:
        with chdir(tmp_path):
            done = nip_run_here("reproduce", "got", "-q", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            (again,) = Path("results/runs").glob("*-reproduced")
            reproduced = page(again)
        assert "This run is a replay: every answer comes from another run" in reproduced.text
        assert reference in reproduced.text
        assert reproduced.table("Verdicts by label") == read_summaries(own).popitem()[1].table("Verdicts by label")
        assert "data/spec.yaml" not in reproduced.text.split("Origin")[0]
