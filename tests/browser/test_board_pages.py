"""A leaderboard in a browser: rows are sorted, filtered and saved, and what a stranger wrote stays text."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from runner.registry.board.board import PublishedRow
from tests.browser.conftest import Opens
from tests.support.board_pages import board_row, build_board, render_board

TASK = "board/" + "a" * 12
HOSTILE = "<script>document.title = 'taken'</script>\u202e\x1b[31m<img src=x onerror=alert(1)>"
MANY = 10_000


def rows(count: int) -> list[PublishedRow]:
    """Rows of different accuracies and costs, in two protocols; those after the first 8 have no rank."""
    return [
        board_row(
            release=f"run/acme/r{n}@1", run_id=f"r{n}", accuracy=0.9 - 0.8 * n / count, cost_usd=float((n * 7) % count),
            protocol=("nip", "debate")[n % 2], models=f"verifier=m{n % 3}", rank=n + 1 if n < 8 else None,
            rank_last=n + 1 if n < 8 else None, reason=None if n < 8 else "replay of r0",
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture
def page_of(tmp_path: Path) -> Any:
    def made(*listed: PublishedRow) -> Path:
        path = tmp_path / "board.html"
        path.write_bytes(render_board(build_board(*listed)))
        return path

    return made


def visible_names(page: Any) -> list[str]:
    """The names of the rows that are in sight, in their order."""
    cells = page.locator("[data-live] tbody th.name:visible")
    return [text.lstrip("+− ").split("\n")[0].strip() for text in cells.all_inner_texts()]


def read_count(page: Any) -> str:
    return str(page.locator("[data-live] p.count:visible").inner_text())


def saved(page: Any, kind: str) -> str:
    with page.expect_download() as download:
        page.click(f"button:has-text('Save these rows as {kind}'):visible")
    return Path(download.value.path()).read_bytes().decode()


def test_rows_are_sorted_by_a_column_and_its_head_says_so(page_of: Any, watched: Opens) -> None:
    page = watched().open(page_of(*rows(12)), TASK)
    page.click("[data-column=cost]:visible")
    assert visible_names(page) == [f"acme/r{n}@1" for n in sorted(range(12), key=lambda n: (n * 7) % 12)]
    assert page.locator("th[aria-sort=ascending]:visible").inner_text() == "Cost"
    page.click("[data-column=cost]:visible")
    assert visible_names(page)[0] == f"acme/r{max(range(12), key=lambda n: (n * 7) % 12)}@1"
    assert "sort=-cost" in page.url


def test_filters_stand_in_the_address_and_are_read_from_it(page_of: Any, watched: Opens) -> None:
    path = page_of(*rows(12))
    page = watched().open(path, TASK)
    page.select_option("select[aria-label=Protocol]:visible", "nip")
    page.select_option("select[aria-label='Rank or mark']:visible", "replay")
    assert read_count(page) == "2 of 12 runs"
    address = page.url
    again = watched().open(path, address.partition("#/")[2])
    assert visible_names(again) == ["acme/r8@1", "acme/r10@1"]
    again.fill("input[type=search]:visible", "r10")
    assert visible_names(again) == ["acme/r10@1"]


def test_what_is_shown_is_saved_and_no_cell_is_a_formula(page_of: Any, watched: Opens) -> None:
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", 'a "b", c', "plain"]
    listed = [board_row(release=f"run/acme/r{n}@1", run_id=f"r{n}", models=name) for n, name in enumerate(names)]
    page = watched().open(page_of(*listed), TASK)
    read = list(csv.DictReader(io.StringIO(saved(page, "CSV"))))
    assert [row["models"] for row in read] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", 'a "b", c', "plain"]
    assert [float(row["accuracy"]) for row in read] == [0.5] * len(names)
    assert [row["models"] for row in json.loads(saved(page, "JSON"))] == names


def test_a_row_unfolds_by_a_button_that_says_so(page_of: Any, watched: Opens) -> None:
    page = watched().open(page_of(*rows(3)), TASK)
    button = page.get_by_role("button", name="Details of acme/r1@1")
    button.press("Enter")
    assert page.get_by_role("button", name="Details of acme/r1@1").get_attribute("aria-expanded") == "true"
    assert "nip-run reproduce run/acme/r1@1 --from file:there" in page.locator("tr.more").inner_text()
    assert "5" * 64 in page.locator("tr.more").inner_text()


def test_columns_are_chosen_and_kept_in_the_address(page_of: Any, watched: Opens) -> None:
    path = page_of(*rows(3))
    page = watched().open(path, TASK)
    page.click("summary:has-text('Columns'):visible")
    page.uncheck("input[value=models]:visible")
    page.check("input[value=owner]:visible")
    again = watched().open(path, page.url.partition("#/")[2])
    heads = again.locator("[data-live] thead th:visible").all_inner_texts()
    assert "Owner" in heads
    assert "Models" not in heads


def test_ten_thousand_rows_are_read_in_parts_and_sorted_as_a_whole(page_of: Any, watched: Opens) -> None:
    page = watched().open(page_of(*rows(MANY)), TASK)
    assert read_count(page) == "10,000 runs"
    assert len(visible_names(page)) == 100
    page.click("[data-column=accuracy]:visible")
    assert visible_names(page)[0] == f"acme/r{MANY - 1}@1"
    page.click("text=Next rows")
    assert visible_names(page)[0] == f"acme/r{MANY - 101}@1"
    assert "page=2" in page.url


@pytest.mark.parametrize(
    "place", ["benchmark", "name", "protocol", "models", "outcomes", "reason", "point", "release", "owner", "numbers"]
)
def test_a_hostile_text_is_text_with_the_script_too(page_of: Any, watched: Opens, place: str) -> None:
    page = watched().open(
        page_of(board_row(**{place: HOSTILE})),
        f"{TASK}?cols=rank,run,name,protocol,models,outcomes,point,owner,numbers,marks",
    )
    page.locator("button.fold:visible").first.click()
    assert page.locator("main img").count() == 0
    assert "taken" not in page.title()
    assert "<script>" in page.locator("main").inner_text()
