"""Addresses and texts that are made to hold a page up: it shows its list all the same, and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.conftest import Opens
from tests.browser.test_run_pages import open_games, rows
from tests.support.board_pages import board_row, build_board, render_board
from tests.support.report_pages import report, visible_text
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file

INHERITED = ("constructor", "toString", "__proto__", "hasOwnProperty", "valueOf")


@pytest.mark.parametrize("name", INHERITED)
@pytest.mark.parametrize("words", ["only={}", "where=tokens,{},x", "columns=datapoint,{}", "sort={}"])
def test_what_every_object_inherits_is_no_filter_and_no_column(
    words: str, name: str, small: Path, watched: Opens
) -> None:
    page = open_games(watched, small, words.format(name))
    assert rows(page).count() == 12
    if words.startswith("columns"):
        heads = page.locator("table.games thead th").all_inner_texts()
        assert len(heads) == 2
        assert all(heads)


@pytest.mark.parametrize("name", INHERITED)
def test_a_board_sorts_by_its_columns_alone(name: str, watched: Opens, tmp_path: Path) -> None:
    path = tmp_path / "board.html"
    path.write_bytes(render_board(build_board(board_row())))
    page = watched().open(path, f"board/{'a' * 12}?sort={name}&cols={name},rank")
    page.locator("[data-live] tbody th.name").wait_for()
    assert page.locator("[data-live] thead th").count() == 2


NAMES = ["a/b", "a?tree=1", "a#b&c=d", "%", "%2F", "../..", " ", "\u202e\x1b"]
"""Ids of datapoints that mean something in an address."""


def test_a_tree_is_found_by_its_link_whatever_its_datapoint_is_called(watched: Opens, tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=len(NAMES), rollouts={"num_responses_per_timestep": 2}, fine_tune=None)
    lines = map(json.loads, (tmp_path / "data.jsonl").read_text("utf-8").splitlines())
    named = [{**row, "id": f"p{number} {name}"} for number, (row, name) in enumerate(zip(lines, NAMES, strict=True))]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named), "utf-8")
    run_spec(path, tmp_path / "results")
    run = only_run(tmp_path / "results")
    (tmp_path / "report.html").write_bytes(report(run))
    one = watched()
    page = one.open(tmp_path / "report.html")
    for number, name in enumerate(NAMES):
        one.navigate(f"run/{run.name}/trees")
        page.locator("#view table a").filter(has_text=f"p{number} ").click()
        page.locator("#view div.tree").wait_for()
        assert page.locator("#view h2").evaluate("one => one.textContent") == visible_text(f"p{number} {name}")


def unclosed_literal(quotes: int) -> str:
    """Return code of one literal that never ends. A search for its end from each quote takes quadratic time."""
    return "def f():\n" + '"' + '\\"' * quotes + "\\"


def test_the_time_to_colour_code_of_quotes_alone_is_linear(small: Path, watched: Opens) -> None:
    page = watched().open(small)
    pattern = small.read_text("utf-8").partition("const TOKENS = ")[2].partition(";\n")[0]
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
