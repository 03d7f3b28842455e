"""Leaderboards of registries with runs that are published without the rows of their datasets."""

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
from tests.registry.planted import publish, rows_by_release


def build_withheld_bundle(results: Path, change: Any = lambda rows: rows) -> Bundle:
    """Build the run `before` without the rows of its dataset, and with a changed pin of these rows."""
    choices = PublisherChoices("shy", licence="MIT", dataset_licence="none")
    draft = build_run_draft(RunFolder(results / "runs" / "before"), Results(results), choices)
    pin = json.loads(bytes(draft.contents[PIN]))
    changed = json.dumps({**pin, "rows": change(pin["rows"])}).encode()
    return replace(draft, contents={**draft.contents, PIN: changed}).bundle()


@pytest.mark.full
def test_run_without_dataset_rows_is_ranked_and_marked(registry: Registry, cache: Path, trained_results: Path) -> None:
    publish(registry, build_withheld_bundle(trained_results))
    board = registry_board(registry, cache=cache)
    assert board.left_out == []
    original, withheld = (rows_by_release(board)[f"run/{owner}/before@1"] for owner in ("acme", "shy"))
    columns = ("task", "list", "accuracy", "ci_low", "ci_high", "n", "clusters")
    assert [withheld[name] for name in columns] == [original[name] for name in columns]
    assert {withheld["rank"], original["rank"]} == {1, None}  # copies of one run are one sample
    assert (MARK in withheld["marks"], withheld["numbers"]) == (True, "as published")
    assert MARK not in original["marks"]


def test_withheld_datapoint_hash_depends_on_id_group_label_and_content() -> None:
    complete = PlayedDatapoint("p", "of six", 1, "ab" * 32, {"question": "?"})
    withheld = PlayedDatapoint("p", str(complete.group_sha256), 1, "ab" * 32, {}, group_is_hash=True)
    assert withheld.digest == complete.digest
    ungrouped = PlayedDatapoint("p", "p", 1, "ab" * 32, {})
    changed = [
        ungrouped,
        *(replace(withheld, **change) for change in ({"label": 0}, {"group": "cd" * 32}, {"id": "q"})),
    ]
    assert len({change.digest for change in (complete, *changed)}) == 5


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "reason"),
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
def test_withheld_datapoints_that_were_not_played_are_refused(
    registry: Registry, cache: Path, trained_results: Path, change: Any, reason: str
) -> None:
    publish(registry, build_withheld_bundle(trained_results, change))
    (left_out,) = registry_board(registry, cache=cache).left_out
    assert left_out[0] == "run/shy/before@1"
    assert reason in left_out[1]
