"""Notes in a browser: in a report for this reader alone, and beside the run where a server keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.results.folder import RunFolder
from runner.results.notes import Notes
from tests.browser.conftest import Opens
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
    with run_view("tiny", cwd=results.parent) as found:
        found.wait_for_state("tiny", lambda state: state["games"]["count"] == 4)
        yield found


def panel(page: Any) -> Any:
    return page.locator("#view section.notes")


def first_game(page: Any) -> str:
    """Open the first game of the list; its id."""
    page.evaluate("() => { location.hash = '#/run/tiny/games'; }")
    page.locator("table.games tbody a").first.click()
    panel(page).wait_for()
    found: str = page.url.rpartition("/")[2]
    return found


def write(page: Any, text: str, tags: str, said: str) -> None:
    panel(page).get_by_label("Note", exact=True).fill(text)
    panel(page).get_by_label("Tags").fill(tags)
    panel(page).get_by_role("button", name="Save", exact=True).click()
    panel(page).get_by_text(said).wait_for()


def count_listed_games(page: Any, words: str) -> str:
    """How many games the list says that it shows."""
    page.evaluate("words => { location.hash = `#/run/tiny/games?${words}`; }", words)
    page.wait_for_function("() => /^[0-9].* games$/.test(document.querySelector('#view p.count')?.textContent ?? '')")
    found: str = page.locator("p.count").inner_text()
    return found


def test_a_report_keeps_its_readers_notes_until_they_are_taken_in(
    results: Path, watched: Opens, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    made = nip_run_here("report", "tiny", "-o", path, cwd=results.parent)
    assert made.returncode == 0, made.stderr
    page = watched().open(path)
    game = first_game(page)
    write(page, "A hint <b>that</b> is none", "Hint, odd", "Saved in this browser.")
    write(page, "second thoughts", "", "Saved in this browser.")
    panel(page).get_by_role("button", name="Remove the note second").click()
    panel(page).get_by_text("Removed.").wait_for()
    page.reload()
    panel(page).get_by_text("A hint <b>that</b> is none").wait_for()
    assert panel(page).get_by_role("listitem").count() == 1
    assert count_listed_games(page, "only=noted") == "1 of 4 games"
    assert count_listed_games(page, "q=odd") == "1 of 4 games"
    assert count_listed_games(page, "q=oddly") == "0 of 4 games"
    page.evaluate("game => { location.hash = `#/run/tiny/game/${game}`; }", game)
    with page.expect_download() as saving:
        panel(page).get_by_role("button", name="Save notes as a file").click()
    saved = tmp_path / saving.value.suggested_filename
    saving.value.save_as(saved)
    taken = nip_run_here("notes", "tiny", "--import", saved, cwd=results.parent)
    assert taken.returncode == 0, taken.stderr
    notes = Notes(RunFolder(only_run(results)))
    (note,) = notes.all()
    assert (note.rollout_id, note.text, note.tags) == (game, "A hint <b>that</b> is none", ("Hint", "odd"))
    notes.remove(note.id)


def test_a_view_keeps_notes_beside_the_run_and_takes_them_back(
    results: Path, view: ViewProcess, watched: Opens
) -> None:
    notes = Notes(RunFolder(only_run(results)))
    page = watched().open(view.address)
    game = first_game(page)
    write(page, "seen live", "later", "Saved in the run's folder.")
    (note,) = notes.all()
    assert (note.rollout_id, note.text, note.tags) == (game, "seen live", ("later",))
    assert count_listed_games(page, "q=later") == "1 of 4 games"
    other = watched().open(f"{view.address}#/run/tiny/game/{game}")
    panel(other).get_by_text("seen live").wait_for()
    panel(other).get_by_role("button", name="Remove the note seen live").click()
    panel(other).get_by_text("Removed.").wait_for()
    assert notes.all() == []
    assert count_listed_games(other, "only=noted") == "0 of 4 games"


def test_a_note_of_somebody_else_comes_into_an_open_page(results: Path, view: ViewProcess, watched: Opens) -> None:
    notes = Notes(RunFolder(only_run(results)))
    page = watched().open(view.address)
    game = first_game(page)
    assert count_listed_games(page, "only=noted") == "0 of 4 games"
    kept = notes.write("from a terminal", rollout_id=game)
    page.get_by_text("1 of 4 games").wait_for()
    notes.remove(kept.id)
    page.get_by_text("0 of 4 games").wait_for()
