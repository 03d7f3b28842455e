"""URLs and texts that try to break a page: the page still shows its list and stays responsive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.conftest import PageOpener
from tests.browser.test_run_pages import locate_rows, open_games
from tests.support.board_pages import board_row, build_board, render_board
from tests.support.report_pages import report, visible_text
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file

INHERITED_PROPERTIES = ("constructor", "toString", "__proto__", "hasOwnProperty", "valueOf")


@pytest.mark.parametrize("name", INHERITED_PROPERTIES)
@pytest.mark.parametrize("query", ["only={}", "where=tokens,{},x", "columns=datapoint,{}", "sort={}"])
def test_inherited_object_properties_are_no_filters_or_columns(
    query: str, name: str, small_report: Path, open_watched: PageOpener
) -> None:
    page = open_games(open_watched, small_report, query.format(name))
    assert locate_rows(page).count() == 12
    if query.startswith("columns"):
        headings = page.locator("table.games thead th").all_inner_texts()
        assert len(headings) == 2
        assert all(headings)


@pytest.mark.parametrize("name", INHERITED_PROPERTIES)
def test_board_ignores_inherited_properties_in_its_url(name: str, open_watched: PageOpener, tmp_path: Path) -> None:
    path = tmp_path / "board.html"
    path.write_bytes(render_board(build_board(board_row())))
    page = open_watched().open(path, f"board/{'a' * 12}?sort={name}&cols={name},rank")
    page.locator("[data-live] tbody th.name").wait_for()
    assert page.locator("[data-live] thead th").count() == 2


SPECIAL_IDS = ["a/b", "a?tree=1", "a#b&c=d", "%", "%2F", "../..", " ", "\u202e\x1b"]
"""Datapoint ids with characters that are special in URLs."""


def test_tree_link_works_for_datapoint_ids_with_special_characters(open_watched: PageOpener, tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=len(SPECIAL_IDS), rollouts={"num_responses_per_timestep": 2}, fine_tune=None)
    lines = map(json.loads, (tmp_path / "data.jsonl").read_text("utf-8").splitlines())
    renamed_rows = [
        {**row, "id": f"p{number} {name}"} for number, (row, name) in enumerate(zip(lines, SPECIAL_IDS, strict=True))
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed_rows), "utf-8")
    run_spec(path, tmp_path / "results")
    run = only_run(tmp_path / "results")
    (tmp_path / "report.html").write_bytes(report(run))
    watched_page = open_watched()
    page = watched_page.open(tmp_path / "report.html")
    for number, name in enumerate(SPECIAL_IDS):
        watched_page.navigate(f"run/{run.name}/trees")
        page.locator("#view table a").filter(has_text=f"p{number} ").click()
        page.locator("#view div.tree").wait_for()
        assert page.locator("#view h2").evaluate("one => one.textContent") == visible_text(f"p{number} {name}")


def unclosed_literal(quotes: int) -> str:
    """Return code with one unclosed literal. Searching for its end from each quote would take quadratic time."""
    return "def f():\n" + '"' + '\\"' * quotes + "\\"


def test_highlighting_unclosed_quotes_takes_linear_time(small_report: Path, open_watched: PageOpener) -> None:
    page = open_watched().open(small_report)
    pattern = small_report.read_text("utf-8").partition("const TOKENS = ")[2].partition(";\n")[0]
    blank = page.context.browser.new_page()

    def fastest_ms(quotes: int) -> float:
        return min(
            float(
                blank.evaluate(
                    f"(text) => {{ const began = performance.now(); for (const one of text.matchAll({pattern})) one; "
                    "return performance.now() - began; }",
                    unclosed_literal(quotes),
                )
            )
            for _ in range(5)
        )

    assert fastest_ms(28_000) < 10 * fastest_ms(7_000) + 50  # quadratic: 16 times
