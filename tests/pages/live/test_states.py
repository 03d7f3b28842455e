"""Runs in any state have a live page with the same contents as their report."""

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

OLD_RESULTS = Path(__file__).parents[2] / "fixtures" / "v0_1_0" / "results"
RUNS = sorted(path.name for path in (OLD_RESULTS / "runs").iterdir())
FAST_RUNS = ("killed-0a7bdc90e0", "trees-9c3a6124d5")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of version 0.1.0: finished, killed, replayed, rejudged, tree, sweep and training runs."""
    return Path(shutil.copytree(OLD_RESULTS, tmp_path_factory.mktemp("old") / "results"))


@contextmanager
def follow_runs(*runs: Path | RunFolder) -> Iterator[LiveRuns]:
    """Follow runs and yield them once everything is read."""
    live = LiveRuns([run if isinstance(run, RunFolder) else RunFolder(run) for run in runs])
    thread = threading.Thread(target=live.follow, daemon=True)
    thread.start()
    try:
        wait_until(lambda: all(run_state.get("reading") is False for run_state in loads(live.state())["runs"]))
        yield live
    finally:
        live.close()
        thread.join(HANG_SECONDS)


@pytest.mark.parametrize(
    "name", [name if name in FAST_RUNS else pytest.param(name, marks=pytest.mark.full) for name in RUNS]
)
def test_view_of_a_0_1_0_run_has_the_sections_of_its_report(name: str, results: Path) -> None:
    run = results / "runs" / name
    site, _ = build_site(run)
    with follow_runs(run) as live:
        page = live.page().decode()
    assert f"<title>{site.title}</title>" in page
    for section in site.sections:
        assert f'data-route="{section.route}"' in page
        assert str(section.html) in page


def remove_journal(run: Path) -> None:
    (run / "journal.jsonl").unlink()


def append_half_a_line(run: Path) -> None:
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b'{"half": ')


def flip_a_bit(run: Path) -> None:
    journal = run / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    data[300] ^= 1
    journal.write_bytes(data)


def remove_metrics(run: Path) -> None:
    (run / "metrics.json").unlink()


def remove_inputs(run: Path) -> None:
    shutil.rmtree(run / "inputs")


def remove_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (flip_a_bit, "damaged at byte"),
        pytest.param(remove_journal, "The run's journal is missing", marks=pytest.mark.full),
        pytest.param(append_half_a_line, "12 decided", marks=pytest.mark.full),
        pytest.param(remove_metrics, "Accuracy", marks=pytest.mark.full),
        pytest.param(remove_inputs, "inputs", marks=pytest.mark.full),
        pytest.param(remove_manifest, "manifest.json", marks=pytest.mark.full),
    ],
)
def test_incomplete_run_folder_is_shown_as_far_as_possible(
    damage: Callable[[Path], None], expected: str, results: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(results / "runs" / "finished-ba8eb189c3", tmp_path / "results" / "runs" / "mine"))
    damage(run)
    with follow_runs(run) as live:
        assert expected in parse_page(live.page()).text + live.state().decode()


def test_headline_of_a_run_with_a_damaged_journal_shows_its_number_of_games(results: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(results / "runs" / "finished-ba8eb189c3", tmp_path / "results" / "runs" / "mine"))
    flip_a_bit(run)
    with follow_runs(run) as live:
        page = parse_page(live.page()).text
    assert "Games12the games cannot be read" in page
    assert "The games of this run cannot be read: " in page
    assert "damaged at byte" in page
