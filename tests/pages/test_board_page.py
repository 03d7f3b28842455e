"""A leaderboard's pages say what the board says, whoever wrote its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
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
    """Two runs, and a sweep over a key and the seed."""
    folder = tmp_path_factory.mktemp("board")
    run_spec(spec_file(folder / "one", size=4), folder / "results")
    run_spec(spec_file(folder / "other", benchmark="other/v1", size=4), folder / "results")
    swept = {"protocol.max_message_rounds": [4, 6], "seed": [1, 2]}
    assert (
        main([str(spec_file(folder / "swept", size=6, sweep=swept)), "--results", str(folder / "results"), "-q"]) == 0
    )
    return Results(folder / "results")


def lists(board: BoardPage) -> list[list[str]]:
    return [[row.values["run"] for row in listed.rows] for listed in board.lists]


@pytest.mark.full
def test_the_lists_have_the_rows_of_the_leaderboard_in_its_order(results: Results) -> None:
    rows = [row.to_json() for row in local_rows(results)]
    board = local_board(results)
    assert lists(board) == [
        [row["run_id"] for row in rows if row["benchmark"] == benchmark] for benchmark in ("other/v1", "tiny/v1")
    ]
    page = parse_page(render_board(board)).text
    for row in rows:
        interval = f"{row['ci_low']:.3f}–{row['ci_high']:.3f}" if row["ci_low"] is not None else ""
        assert row["run_id"] in page
        assert f"{row['accuracy']:.3f}{interval}" in page
    kept = {row["run"]: row for row in read_page_rows(board)}
    for row in rows:
        same = ("accuracy", "ci_low", "ci_high", "n", "clusters", "models", "rank", "rank_last", "spec_sha256", "point")
        assert {name: kept[row["run_id"]][name] for name in same} == {name: row[name] for name in same}


@pytest.mark.full
def test_a_sweep_is_pooled_and_ranked_as_the_command_has_it(results: Results) -> None:
    found = nip_run_here("sweep", "swept/spec.yaml", "--json", cwd=results.path.parent)
    rows = json.loads(found.stdout)
    (sweep,) = (sweep for listed in local_board(results).lists for sweep in listed.sweeps)
    assert {line.seeds for line in sweep.lines} == {2}
    assert [(dict(line.point), line.value, line.low, line.n, list(line.rank or ())) for line in sweep.lines] == [
        (row["point"], *(row["metrics"]["accuracy"][name] for name in ("value", "ci_low", "n")), row["rank"])
        for row in rows
    ]


@pytest.mark.full
def test_each_table_with_ranks_says_how_they_were_determined(results: Results) -> None:
    board = local_board(results)
    page = parse_page(render_board(board)).text
    tables = sum(bool(listed.ranked) + len(listed.sweeps) for listed in board.lists)
    assert tables >= 3
    assert page.count("rank: 95 % confidence set of ranks, from tests of all pairs") == tables


def test_ranks_of_more_than_50_rows_say_that_only_the_first_is_tested_even_with_a_script() -> None:
    board = build_board(*(board_row(release=f"run/acme/r{n}@1") for n in range(60)))
    (section,) = (section for section in board_site(board, lambda *_: None).sections if section.route != "board")
    shown, plain = section.html.split('<div class="unscripted">')
    assert "tests of each row with the first only, because there are 60" in shown
    assert "Ordered by accuracy" in plain


def test_a_board_that_is_not_there_or_has_one_row_has_a_page(tmp_path: Path) -> None:
    none = local_board(Results(tmp_path / "none"))
    assert f"There are no rows in {tmp_path / 'none'}" in parse_page(render_board(none)).text
    page = parse_page(render_board(build_board(board_row())))
    assert page.unclosed == []
    assert "1 ranked, 0 without a rank" in page.text


def test_a_list_counts_only_the_runs_of_its_own_task() -> None:
    reason = "other datapoints, such as p3: ids, groups, labels or contents differ; `nip-run compare` says how"
    other = board_row(release="run/acme/b@1", run_id="b", task="b" * 64, rank=None, rank_last=None, reason=reason)
    replay = board_row(release="run/acme/c@1", run_id="c", rank=None, rank_last=None, reason="replay of a")
    page = parse_page(render_board(build_board(board_row(), replay, other))).text
    assert "1 ranked, 1 without a rank · below: 1 of other tasks" in page
    assert "Other tasks" in page


def test_without_a_script_the_first_rows_stand_there_and_it_is_said_how_many_there_are() -> None:
    rows = [board_row(release=f"run/acme/r{n}@1", run_id=f"r{n}", rank=1, rank_last=1000) for n in range(1000)]
    board = build_board(*rows)
    page = parse_page(render_board(board)).text
    assert f"The first {MAX_PLAIN_ROWS} of 1,000 rows." in page
    assert "acme/r199@1" in page
    assert "acme/r200@1" not in page
    assert [row["run"] for row in read_page_rows(board)] == [f"acme/r{n}@1" for n in range(1000)]


def test_two_benchmarks_of_one_task_have_a_page_each() -> None:
    board = build_board(board_row(benchmark="a/v1"), board_row(benchmark="b/v1", release="run/acme/other@1"))
    assert [listed.name for listed in board.lists] == ["a" * 12, f"{'a' * 12}-2"]


def test_runs_of_the_same_site_are_linked_and_no_others() -> None:
    board = build_board(board_row(), board_row(release="run/acme/b@1", run_id="elsewhere"))
    links = {one.attributes["href"] for one in parse_page(render_board(board, "tiny-1")).elements if one.tag == "a"}
    assert "#/run/tiny-1" in links
    assert not any("elsewhere" in str(link) for link in links)


def test_what_was_refused_stands_there_with_why() -> None:
    board = build_board(board_row(), left_out=[("run/acme/bad@1", "its numbers do not follow from its records")])
    page = parse_page(render_board(board)).text
    assert "run/acme/bad@1" in page
    assert "its numbers do not follow from its records" in page


PLACES: dict[str, Any] = {
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


@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_text_in_a_row_is_text(place: str) -> None:
    made = build_board(board_row(**{place: PLACES[place]}))
    page = render_board(made)
    found = parse_page(page)
    own = parse_page(render_board(build_board(board_row()))).elements
    assert found.unclosed == []
    assert {one.tag for one in found.elements} <= {one.tag for one in own} | {"span"}
    assert sum(one.tag == "script" for one in found.elements) == sum(one.tag == "script" for one in own)
    assert not any(name.startswith("on") for one in found.elements for name in one.attributes)
    assert all(str(one.attributes["href"]).startswith("#") for one in found.elements if one.tag == "a")
    if place not in ("run_id", "owner", "tier", "numbers", "name"):  # the script shows these
        assert visible_text(HOSTILE)[: 12 if place == "task" else None] in found.text


def test_hostile_refusals_are_text() -> None:
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
def test_each_mark_has_a_kind_with_a_meaning(text: str, kind: str) -> None:
    assert mark_of(text).kind == kind


def test_keys_are_told_by_as_much_of_their_ends_as_tells_them_apart() -> None:
    assert short_names({"agents.prover.model", "agents.verifier.model", "seed", "model"}) == {
        "agents.prover.model": "prover.model",
        "agents.verifier.model": "verifier.model",
        "seed": "seed",
        "model": "model",
    }
