"""Runs without the rows of their dataset on a registry's leaderboard."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.documents.releases.bundle import Bundle
from runner.registry.board.board import registry_board
from runner.registry.bundles.runs import build_run_draft
from runner.registry.bundles.withheld_rows import MARK
from runner.registry.draft import PublisherChoices
from runner.registry.fetched_release import PIN
from runner.registry.transports.registry import Registry
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.tasks import PlayedDatapoint
from tests.registry.planted import by_release, publish


def without_rows(results: Path, change: Any = lambda rows: rows) -> Bundle:
    """The run `before` as its owner publishes it without the rows of its dataset, with another pin."""
    choices = PublisherChoices("shy", licence="MIT", dataset_licence="none")
    made = build_run_draft(RunFolder(results / "runs" / "before"), Results(results), choices)
    pin = json.loads(bytes(made.contents[PIN]))
    changed = json.dumps({**pin, "rows": change(pin["rows"])}).encode()
    return replace(made, contents={**made.contents, PIN: changed}).bundle()


@pytest.mark.full
def test_a_run_without_the_rows_of_its_dataset_ranks_among_the_others_and_is_told_apart(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(registry, without_rows(trained_results))
    board = registry_board(registry, cache=cache)
    assert board.left_out == []
    ours, theirs = (by_release(board)[f"run/{owner}/before@1"] for owner in ("acme", "shy"))
    same = ("task", "list", "accuracy", "ci_low", "ci_high", "n", "clusters")
    assert [theirs[name] for name in same] == [ours[name] for name in same]
    assert {theirs["rank"], ours["rank"]} == {1, None}  # copies of one run are one sample
    assert (MARK in theirs["marks"], theirs["numbers"]) == (True, "as published")
    assert MARK not in ours["marks"]


def test_a_withheld_datapoint_has_the_hash_in_its_task_that_its_id_group_label_and_content_come_to() -> None:
    known = PlayedDatapoint("p", "of six", 1, "ab" * 32, {"question": "?"})
    withheld = PlayedDatapoint("p", str(known.group_sha256), 1, "ab" * 32, {}, group_is_hash=True)
    assert withheld.digest == known.digest
    alone = PlayedDatapoint("p", "p", 1, "ab" * 32, {})
    others = [alone, *(replace(withheld, **one) for one in ({"label": 0}, {"group": "cd" * 32}, {"id": "q"}))]
    assert len({one.digest for one in (known, *others)}) == 5


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[:-1], "the datapoints differ"),
        (lambda rows: [{**rows[0], "sha256": "ab" * 32}, *rows[1:]], "the datapoints differ"),
        (lambda rows: [{**row, "group_sha256": "ab" * 32} for row in rows], "does not group the datapoints"),
        (lambda rows: [{**rows[0], "id": "unplayed"}, *rows[1:]], "no rollout has the label of 1 datapoint"),
        (lambda rows: [{**rows[0], "content_sha256": "x"}, *rows[1:]], "does not say which datapoints"),
        (lambda rows: 7, "does not say which datapoints"),
    ],
    ids=["fewer", "other hash", "other groups", "without label", "no hash", "no rows"],
)
def test_withheld_datapoints_that_are_not_those_of_its_games_are_refused_by_name(
    registry: Registry, cache: Path, trained_results: Path, change: Any, why: str
) -> None:
    publish(registry, without_rows(trained_results, change))
    (left,) = registry_board(registry, cache=cache).left_out
    assert left[0] == "run/shy/before@1"
    assert why in left[1]
