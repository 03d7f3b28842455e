"""Notes in a browser: stored in the browser for a report, and next to the run for a live view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.results.folder import RunFolder
from runner.results.notes import Notes
from tests.browser.conftest import PageOpener
from tests.support.processes import nip_run_here
from tests.support.runs import only_run
from tests.support.specs import spec_file
from tests.support.view_process import ViewProcess, run_view


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of one run, `tiny`."""
    folder = tmp_path_factory.mktemp("noted")
    spec_file(folder, size=4)
    assert nip_run_here("spec.yaml", "--run-id", "tiny", cwd=folder).returncode == 0
    return folder / "results"


@pytest.fixture(scope="module")
def view(results: Path) -> Iterator[ViewProcess]:
    with run_view("tiny", cwd=results.parent) as process:
        process.wait_for_state("tiny", lambda state: state["games"]["count"] == 4)
        yield process


def notes_panel(page: Any) -> Any:
    return page.locator("#view section.notes")


def open_first_game(page: Any) -> str:
    """Open the first game of the list and return its id."""
    page.evaluate("() => { location.hash = '#/run/tiny/games'; }")
    page.locator("table.games tbody a").first.click()
    notes_panel(page).wait_for()
    game_id: str = page.url.rpartition("/")[2]
    return game_id


def write_note(page: Any, text: str, tags: str, confirmation: str) -> None:
    notes_panel(page).get_by_label("Note", exact=True).fill(text)
    notes_panel(page).get_by_label("Tags").fill(tags)
    notes_panel(page).get_by_role("button", name="Save", exact=True).click()
    notes_panel(page).get_by_text(confirmation).wait_for()


def count_listed_games(page: Any, query: str) -> str:
    """Return the list's text with the number of its games."""
    page.evaluate("words => { location.hash = `#/run/tiny/games?${words}`; }", query)
    page.wait_for_function("() => /^[0-9].* games$/.test(document.querySelector('#view p.count')?.textContent ?? '')")
    count_text: str = page.locator("p.count").inner_text()
    return count_text


def test_report_stores_notes_in_the_browser_until_they_are_imported(
    results: Path, open_watched: PageOpener, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    report_process = nip_run_here("report", "tiny", "-o", path, cwd=results.parent)
    assert report_process.returncode == 0, report_process.stderr
    page = open_watched().open(path)
    game = open_first_game(page)
    write_note(page, "A hint <b>that</b> is none", "Hint, odd", "Saved in this browser.")
    write_note(page, "second thoughts", "", "Saved in this browser.")
    notes_panel(page).get_by_role("button", name="Remove the note second").click()
    notes_panel(page).get_by_text("Removed.").wait_for()
    page.reload()
    notes_panel(page).get_by_text("A hint <b>that</b> is none").wait_for()
    assert notes_panel(page).get_by_role("listitem").count() == 1
    assert count_listed_games(page, "only=noted") == "1 of 4 games"
    assert count_listed_games(page, "q=odd") == "1 of 4 games"
    assert count_listed_games(page, "q=oddly") == "0 of 4 games"
    page.evaluate("game => { location.hash = `#/run/tiny/game/${game}`; }", game)
    with page.expect_download() as download:
        notes_panel(page).get_by_role("button", name="Save notes as a file").click()
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    import_process = nip_run_here("notes", "tiny", "--import", saved, cwd=results.parent)
    assert import_process.returncode == 0, import_process.stderr
    notes = Notes(RunFolder(only_run(results)))
    (note,) = notes.all()
    assert (note.rollout_id, note.text, note.tags) == (game, "A hint <b>that</b> is none", ("Hint", "odd"))
    notes.remove(note.id)


def test_view_stores_notes_next_to_the_run_and_removes_them(
    results: Path, view: ViewProcess, open_watched: PageOpener
) -> None:
    notes = Notes(RunFolder(only_run(results)))
    page = open_watched().open(view.address)
    game = open_first_game(page)
    write_note(page, "seen live", "later", "Saved in the run's folder.")
    (note,) = notes.all()
    assert (note.rollout_id, note.text, note.tags) == (game, "seen live", ("later",))
    assert count_listed_games(page, "q=later") == "1 of 4 games"
    second_page = open_watched().open(f"{view.address}#/run/tiny/game/{game}")
    notes_panel(second_page).get_by_text("seen live").wait_for()
    notes_panel(second_page).get_by_role("button", name="Remove the note seen live").click()
    notes_panel(second_page).get_by_text("Removed.").wait_for()
    assert notes.all() == []
    assert count_listed_games(second_page, "only=noted") == "0 of 4 games"


def test_note_written_elsewhere_appears_in_an_open_page(
    results: Path, view: ViewProcess, open_watched: PageOpener
) -> None:
    notes = Notes(RunFolder(only_run(results)))
    page = open_watched().open(view.address)
    game = open_first_game(page)
    assert count_listed_games(page, "only=noted") == "0 of 4 games"
    note = notes.write("from a terminal", rollout_id=game)
    page.get_by_text("1 of 4 games").wait_for()
    notes.remove(note.id)
    page.get_by_text("0 of 4 games").wait_for()
