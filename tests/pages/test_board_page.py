"""A leaderboard's pages agree with the board and escape hostile rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
from runner.pages.boards.charts import cost_chart
from runner.pages.boards.lists import BoardPage, local_board
from runner.pages.boards.marks import FALLBACK_KIND, mark_of
from runner.pages.boards.page import MAX_PLAIN_ROWS, board_site
from runner.pages.sweeps import short_names
from runner.registry.bundles.withheld_rows import MARK as WITHHELD
from runner.registry.lineage.descriptions import NO_WEIGHTS
from runner.results.leaderboard.local_board import local_rows
from runner.results.leaderboard.results_folder import Results
from tests.support.board_pages import board_row, build_board, read_page_rows, render_board
from tests.support.processes import nip_run_here
from tests.support.report_pages import parse_page, visible_text
from tests.support.runs import run_spec
from tests.support.specs import spec_file

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'></td><svg onload=alert(2)>{{ 7*7 }}</style>javascript:alert(3)"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results with two runs, and with a sweep over a key and the seed."""
    folder = tmp_path_factory.mktemp("board")
    run_spec(spec_file(folder / "one", size=4), folder / "results")
    run_spec(spec_file(folder / "other", benchmark="other/v1", size=4), folder / "results")
    swept = {"protocol.max_message_rounds": [4, 6], "seed": [1, 2]}
    assert (
        main([str(spec_file(folder / "swept", size=6, sweep=swept)), "--results", str(folder / "results"), "-q"]) == 0
    )
    return Results(folder / "results")


def list_run_ids(board: BoardPage) -> list[list[str]]:
    return [[row.values["run"] for row in listed.rows] for listed in board.lists]


def test_cost_chart_shows_the_cost_of_a_game_since_runs_have_different_numbers_of_repeats() -> None:
    often = board_row(release="run/acme/often@1", run_id="often", cost_usd=12.0, n=479, transport_failed=1)
    (listed,) = build_board(board_row(cost_usd=4.8), often).lists
    chart = cost_chart(listed)
    assert chart is not None
    assert "dollars a game" in chart
    assert "for $0.050" in chart
    assert "for $0.025" in chart


@pytest.mark.full
def test_board_lists_have_the_rows_of_the_leaderboard_in_its_order(results: Results) -> None:
    rows = [row.to_json() for row in local_rows(results)]
    board = local_board(results)
    assert list_run_ids(board) == [
        [row["run_id"] for row in rows if row["benchmark"] == benchmark] for benchmark in ("other/v1", "tiny/v1")
    ]
    page = parse_page(render_board(board)).text
    for row in rows:
        interval = f"{row['ci_low']:.3f}–{row['ci_high']:.3f}" if row["ci_low"] is not None else ""
        assert row["run_id"] in page
        assert f"{row['accuracy']:.3f}{interval}" in page
    rows_by_run = {row["run"]: row for row in read_page_rows(board)}
    for row in rows:
        columns = (
            "accuracy",
            "ci_low",
            "ci_high",
            "n",
            "clusters",
            "models",
            "rank",
            "rank_last",
            "spec_sha256",
            "point",
        )
        assert {name: rows_by_run[row["run_id"]][name] for name in columns} == {name: row[name] for name in columns}


@pytest.mark.full
def test_sweep_is_pooled_and_ranked_like_the_sweep_command(results: Results) -> None:
    process = nip_run_here("sweep", "swept/spec.yaml", "--json", cwd=results.path.parent)
    rows = json.loads(process.stdout)
    (sweep,) = (sweep for listed in local_board(results).lists for sweep in listed.sweeps)
    assert {line.seeds for line in sweep.lines} == {2}
    assert [(dict(line.point), line.value, line.low, line.n, list(line.rank or ())) for line in sweep.lines] == [
        (row["point"], *(row["metrics"]["accuracy"][name] for name in ("value", "ci_low", "n")), row["rank"])
        for row in rows
    ]


@pytest.mark.full
def test_each_table_with_ranks_names_its_rank_method(results: Results) -> None:
    board = local_board(results)
    page = parse_page(render_board(board)).text
    tables = sum(bool(listed.ranked) + len(listed.sweeps) for listed in board.lists)
    assert tables >= 3
    assert page.count("rank: 95 % confidence set of ranks, from tests of all pairs") == tables


def test_rank_method_of_more_than_50_rows_is_shown_with_a_script_too() -> None:
    board = build_board(*(board_row(release=f"run/acme/r{n}@1") for n in range(60)))
    (section,) = (section for section in board_site(board, lambda *_: None).sections if section.route != "board")
    with_script, without_script = section.html.split('<div class="unscripted">')
    assert "tests of each row with the first only, because there are 60" in with_script
    assert "Ordered by accuracy" in without_script


def test_missing_and_single_row_boards_have_a_page(tmp_path: Path) -> None:
    missing = local_board(Results(tmp_path / "none"))
    assert f"There are no rows in {tmp_path / 'none'}" in parse_page(render_board(missing)).text
    page = parse_page(render_board(build_board(board_row())))
    assert page.unclosed == []
    assert "1 ranked, 0 without a rank" in page.text


def test_list_counts_only_runs_of_its_own_task() -> None:
    reason = "other datapoints, such as p3: ids, groups, labels or contents differ; `nip-run compare` says how"
    other_task = board_row(release="run/acme/b@1", run_id="b", task="b" * 64, rank=None, rank_last=None, reason=reason)
    replay = board_row(release="run/acme/c@1", run_id="c", rank=None, rank_last=None, reason="replay of a")
    page = parse_page(render_board(build_board(board_row(), replay, other_task))).text
    assert "1 ranked, 1 without a rank · below: 1 of other tasks" in page
    assert "Other tasks" in page


def test_page_without_a_script_shows_the_first_rows_and_the_total_number() -> None:
    rows = [board_row(release=f"run/acme/r{n}@1", run_id=f"r{n}", rank=1, rank_last=1000) for n in range(1000)]
    board = build_board(*rows)
    page = parse_page(render_board(board)).text
    assert f"The first {MAX_PLAIN_ROWS} of 1,000 rows." in page
    assert "acme/r199@1" in page
    assert "acme/r200@1" not in page
    assert [row["run"] for row in read_page_rows(board)] == [f"acme/r{n}@1" for n in range(1000)]


def test_two_benchmarks_with_one_task_have_separate_pages() -> None:
    board = build_board(board_row(benchmark="a/v1"), board_row(benchmark="b/v1", release="run/acme/other@1"))
    assert [listed.name for listed in board.lists] == ["a" * 12, f"{'a' * 12}-2"]


def test_only_runs_of_the_same_site_are_linked() -> None:
    board = build_board(board_row(), board_row(release="run/acme/b@1", run_id="elsewhere"))
    links = {
        element.attributes["href"]
        for element in parse_page(render_board(board, "tiny-1")).elements
        if element.tag == "a"
    }
    assert "#/run/tiny-1" in links
    assert not any("elsewhere" in str(link) for link in links)


def test_refused_release_is_listed_with_the_reason() -> None:
    board = build_board(board_row(), left_out=[("run/acme/bad@1", "its numbers do not follow from its records")])
    page = parse_page(render_board(board)).text
    assert "run/acme/bad@1" in page
    assert "its numbers do not follow from its records" in page


HOSTILE_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(
        (
            "benchmark", "run_id", "name", "protocol", "outcomes", "models", "spec_sha256", "dataset_sha256",
            "game_sha256", "version", "reason", "task", "point", "split", "filter", "group_by", "stopped", "release",
            "release_sha256", "owner", "tier", "numbers", "limit",
        ),
        HOSTILE,
    ),
    "marks": [HOSTILE],
}  # fmt: skip


@pytest.mark.parametrize("column", HOSTILE_COLUMNS)
def test_hostile_text_in_a_board_row_is_escaped(column: str) -> None:
    board = build_board(board_row(**{column: HOSTILE_COLUMNS[column]}))
    page = render_board(board)
    parsed = parse_page(page)
    clean_elements = parse_page(render_board(build_board(board_row()))).elements
    assert parsed.unclosed == []
    assert {element.tag for element in parsed.elements} <= {element.tag for element in clean_elements} | {"span"}
    assert sum(element.tag == "script" for element in parsed.elements) == sum(
        element.tag == "script" for element in clean_elements
    )
    assert not any(name.startswith("on") for element in parsed.elements for name in element.attributes)
    assert all(str(element.attributes["href"]).startswith("#") for element in parsed.elements if element.tag == "a")
    if column not in ("run_id", "owner", "tier", "numbers", "name"):  # the script shows these
        assert visible_text(HOSTILE)[: 12 if column == "task" else None] in parsed.text


def test_hostile_refusal_reason_is_escaped() -> None:
    page = parse_page(render_board(build_board(left_out=[(HOSTILE, HOSTILE)])))
    assert page.text.count(visible_text(HOSTILE)) >= 2
    assert page.unclosed == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("unfinished: it failed", "unfinished"),
        ("incomplete: 3 of 9 rollouts lost in transport", "incomplete"),
        ("replay of x until round 2", "replay"),
        ("judges the debates of x", "judges debates"),
        ("tree: its samples are not independent games", "tree"),
        ("unknown task: its saved inputs cannot be read", "unknown task"),
        ("no rollout has a verdict to count", "no verdict"),
        ("its templates use other columns: a (this list: b)", "other columns"),
        (
            "other datapoints, such as p3: ids, groups, labels or contents differ; `nip-run compare` says how",
            "another sample",
        ),
        (
            "looks like run/a/b@1 of this results folder, which did not record that it was published",
            "looks like",
        ),
        ("the same rollouts as run/a/b@1", "same rollouts"),
        (WITHHELD, "as published"),
        (NO_WEIGHTS, "weights"),
        ("something else", FALLBACK_KIND),
    ],
)
def test_each_reason_is_classified_into_a_mark_kind(text: str, kind: str) -> None:
    assert mark_of(text).kind == kind


def test_keys_are_shortened_to_their_shortest_distinct_suffixes() -> None:
    assert short_names({"agents.prover.model", "agents.verifier.model", "seed", "model"}) == {
        "agents.prover.model": "prover.model",
        "agents.verifier.model": "verifier.model",
        "seed": "seed",
        "model": "model",
    }
