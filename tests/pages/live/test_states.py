"""A run in any state has a page that is served, and it says what the run's report says."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from orjson import loads

from runner.pages.live.live_runs import LiveRuns
from runner.results.folder import RunFolder
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import wait_until
from tests.support.report_pages import parse_page
from tests.support.report_summaries import build_site

pytestmark = pytest.mark.full

OLD = Path(__file__).parents[2] / "fixtures" / "v0_1_0" / "results"
RUNS = sorted(path.name for path in (OLD / "runs").iterdir())
CHEAP = ("killed-0a7bdc90e0", "trees-9c3a6124d5")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of 0.1.0: finished, killed, replayed, judged, of trees, of sweeps, training runs with their parts."""
    return Path(shutil.copytree(OLD, tmp_path_factory.mktemp("old") / "results"))


@contextmanager
def followed(*runs: Path | RunFolder) -> Iterator[LiveRuns]:
    """Runs that are followed, once all that is there of them is read."""
    live = LiveRuns([run if isinstance(run, RunFolder) else RunFolder(run) for run in runs])
    thread = threading.Thread(target=live.follow, daemon=True)
    thread.start()
    try:
        wait_until(lambda: all(one.get("reading") is False for one in loads(live.state())["runs"]))
        yield live
    finally:
        live.close()
        thread.join(HANG_SECONDS)


@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.full) for name in RUNS]
)
def test_a_run_of_0_1_0_is_viewed_with_the_words_of_its_report(name: str, results: Path) -> None:
    run = results / "runs" / name
    site, _ = build_site(run)
    with followed(run) as live:
        page = live.page().decode()
    assert f"<title>{site.title}</title>" in page
    for section in site.sections:
        assert f'data-route="{section.route}"' in page
        assert str(section.html) in page


def no_journal(run: Path) -> None:
    (run / "journal.jsonl").unlink()


def half_a_line(run: Path) -> None:
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b'{"half": ')


def flipped(run: Path) -> None:
    journal = run / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    data[300] ^= 1
    journal.write_bytes(data)


def no_metrics(run: Path) -> None:
    (run / "metrics.json").unlink()


def no_inputs(run: Path) -> None:
    shutil.rmtree(run / "inputs")


def no_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (flipped, "damaged at byte"),
        pytest.param(no_journal, "The run's journal is missing", marks=pytest.mark.full),
        pytest.param(half_a_line, "12 decided", marks=pytest.mark.full),
        pytest.param(no_metrics, "Accuracy", marks=pytest.mark.full),
        pytest.param(no_inputs, "inputs", marks=pytest.mark.full),
        pytest.param(no_manifest, "manifest.json", marks=pytest.mark.full),
    ],
)
def test_a_folder_that_is_not_whole_is_shown_as_far_as_it_goes(
    harm: Callable[[Path], None], said: str, results: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(results / "runs" / "finished-ba8eb189c3", tmp_path / "results" / "runs" / "mine"))
    harm(run)
    with followed(run) as live:
        assert said in parse_page(live.page()).text + live.state().decode()


def test_the_headline_of_a_run_whose_journal_is_damaged_says_how_many_games_it_had(
    results: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(results / "runs" / "finished-ba8eb189c3", tmp_path / "results" / "runs" / "mine"))
    flipped(run)
    with followed(run) as live:
        page = parse_page(live.page()).text
    assert "Games12the games cannot be read" in page
    assert "The games of this run cannot be read: " in page
    assert "damaged at byte" in page
