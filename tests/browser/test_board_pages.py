"""A leaderboard in a browser: rows are sorted, filtered and saved, and hostile text is escaped."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from runner.registry.board.board import PublishedRow
from tests.browser.conftest import PageOpener
from tests.support.board_pages import board_row, build_board, render_board

TASK = "board/" + "a" * 12
HOSTILE = "<script>document.title = 'taken'</script>\u202e\x1b[31m<img src=x onerror=alert(1)>"
MANY_ROWS = 10_000


def make_rows(count: int) -> list[PublishedRow]:
    """Return rows with different accuracies and costs and two protocols; only the first 8 have a rank."""
    return [
        board_row(
            release=f"run/acme/r{n}@1", run_id=f"r{n}", accuracy=0.9 - 0.8 * n / count, cost_usd=float((n * 7) % count),
            protocol=("nip", "debate")[n % 2], models=f"verifier=m{n % 3}", rank=n + 1 if n < 8 else None,
            rank_last=n + 1 if n < 8 else None, reason=None if n < 8 else "replay of r0",
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture
def write_board_page(tmp_path: Path) -> Any:
    def write_board(*board_rows: PublishedRow) -> Path:
        path = tmp_path / "board.html"
        path.write_bytes(render_board(build_board(*board_rows)))
        return path

    return write_board


def visible_names(page: Any) -> list[str]:
    """Return the names of the visible rows in order."""
    cells = page.locator("[data-live] tbody th.name:visible")
    return [text.lstrip("+− ").split("\n")[0].strip() for text in cells.all_inner_texts()]


def read_count(page: Any) -> str:
    return str(page.locator("[data-live] p.count:visible").inner_text())


def download_rows(page: Any, kind: str) -> str:
    with page.expect_download() as download:
        page.click(f"button:has-text('Save these rows as {kind}'):visible")
    return Path(download.value.path()).read_bytes().decode()


def test_column_header_sorts_rows_and_shows_the_direction(write_board_page: Any, open_watched: PageOpener) -> None:
    page = open_watched().open(write_board_page(*make_rows(12)), TASK)
    page.click("[data-column=cost]:visible")
    assert visible_names(page) == [f"acme/r{n}@1" for n in sorted(range(12), key=lambda n: (n * 7) % 12)]
    assert page.locator("th[aria-sort=ascending]:visible").inner_text() == "Cost"
    page.click("[data-column=cost]:visible")
    assert visible_names(page)[0] == f"acme/r{max(range(12), key=lambda n: (n * 7) % 12)}@1"
    assert "sort=-cost" in page.url


def test_filters_are_stored_in_the_url_and_restored_from_it(write_board_page: Any, open_watched: PageOpener) -> None:
    path = write_board_page(*make_rows(12))
    page = open_watched().open(path, TASK)
    page.select_option("select[aria-label=Protocol]:visible", "nip")
    page.select_option("select[aria-label='Rank or mark']:visible", "replay")
    assert read_count(page) == "2 of 12 runs"
    address = page.url
    reopened = open_watched().open(path, address.partition("#/")[2])
    assert visible_names(reopened) == ["acme/r8@1", "acme/r10@1"]
    reopened.fill("input[type=search]:visible", "r10")
    assert visible_names(reopened) == ["acme/r10@1"]


def test_saved_rows_equal_the_shown_ones_and_csv_escapes_formulas(
    write_board_page: Any, open_watched: PageOpener
) -> None:
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", 'a "b", c', "plain"]
    board_rows = [board_row(release=f"run/acme/r{n}@1", run_id=f"r{n}", models=name) for n, name in enumerate(names)]
    page = open_watched().open(write_board_page(*board_rows), TASK)
    csv_rows = list(csv.DictReader(io.StringIO(download_rows(page, "CSV"))))
    assert [row["models"] for row in csv_rows] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", 'a "b", c', "plain"]
    assert [float(row["accuracy"]) for row in csv_rows] == [0.5] * len(names)
    assert [row["models"] for row in json.loads(download_rows(page, "JSON"))] == names


def test_list_says_how_many_games_were_lost(write_board_page: Any, open_watched: PageOpener) -> None:
    rows = (board_row(n=82, transport_failed=14), board_row(run_id="other", release="run/acme/other@1", rank=2))
    page = open_watched().open(write_board_page(*rows), TASK)
    page.locator("[data-live] tbody tr").first.wait_for()
    texts = page.locator("[data-live] tbody tr:visible").all_inner_texts()
    assert ["14 lost" in text for text in texts] == [True, False]
    assert "lost" not in texts[1]


def test_row_details_open_with_a_labeled_button(write_board_page: Any, open_watched: PageOpener) -> None:
    page = open_watched().open(write_board_page(*make_rows(3)), TASK)
    button = page.get_by_role("button", name="Details of acme/r1@1")
    button.press("Enter")
    assert page.get_by_role("button", name="Details of acme/r1@1").get_attribute("aria-expanded") == "true"
    assert "nip-run reproduce run/acme/r1@1 --from file:there" in page.locator("tr.more").inner_text()
    assert "5" * 64 in page.locator("tr.more").inner_text()


def test_chosen_columns_are_stored_in_the_url(write_board_page: Any, open_watched: PageOpener) -> None:
    path = write_board_page(*make_rows(3))
    page = open_watched().open(path, TASK)
    page.click("summary:has-text('Columns'):visible")
    page.uncheck("input[value=models]:visible")
    page.check("input[value=owner]:visible")
    reopened = open_watched().open(path, page.url.partition("#/")[2])
    headings = reopened.locator("[data-live] thead th:visible").all_inner_texts()
    assert "Owner" in headings
    assert "Models" not in headings


def test_10_000_rows_are_paged_and_sorted_as_a_whole(write_board_page: Any, open_watched: PageOpener) -> None:
    page = open_watched().open(write_board_page(*make_rows(MANY_ROWS)), TASK)
    assert read_count(page) == "10,000 runs"
    assert len(visible_names(page)) == 100
    page.click("[data-column=accuracy]:visible")
    assert visible_names(page)[0] == f"acme/r{MANY_ROWS - 1}@1"
    page.click("text=Next rows")
    assert visible_names(page)[0] == f"acme/r{MANY_ROWS - 101}@1"
    assert "page=2" in page.url


@pytest.mark.parametrize(
    "column", ["benchmark", "name", "protocol", "models", "outcomes", "reason", "point", "release", "owner", "numbers"]
)
def test_hostile_text_is_escaped_by_the_script(write_board_page: Any, open_watched: PageOpener, column: str) -> None:
    page = open_watched().open(
        write_board_page(board_row(**{column: HOSTILE})),
        f"{TASK}?cols=rank,run,name,protocol,models,outcomes,point,owner,numbers,marks",
    )
    page.locator("button.fold:visible").first.click()
    assert page.locator("main img").count() == 0
    assert "taken" not in page.title()
    assert "<script>" in page.locator("main").inner_text()
