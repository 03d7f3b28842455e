"""History has one row per run, with its published copies and replays."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.documents.releases.manifest import ReleaseLink
from runner.registry.lineage.descriptions import describe_origin
from runner.registry.lineage.history import build_full_history, build_history
from runner.registry.lineage.nodes import LineageNode
from runner.registry.sent_releases import find_sent_reference, record_release, sent_hashes
from runner.results.folder import RunFolder
from tests.registry.planted import benchmark, step, training

BASE, MODEL = "base", "ft:one"


def make_reproduction(run: str, original: LineageNode, *, replay: bool, owner: str = "acme") -> LineageNode:
    """Return a run that reproduces a published one, from its transcripts or with fresh games."""
    link = ReleaseLink(role="reproduces", release=original.key, sha256=original.sha256)
    return benchmark(
        run, BASE, owner=owner, links=(link,), facts={"replay_of": [original.run_id, None] if replay else None}
    )


def test_replay_shares_the_row_of_its_run_and_a_fresh_play_has_its_own() -> None:
    first = benchmark("a", BASE)
    replay, fresh = make_reproduction("b", first, replay=True), make_reproduction("c", first, replay=False)
    local_replay = replace(replay, owner=None, key="b", sha256=None)
    rows = build_history("verifier", [make_reproduction("d", replay, replay=True), replay, local_replay, fresh, first])
    summaries = [(row.node.run_id, row.kind, row.marks, [entry.key for entry in row.replays]) for row in rows]
    plays = ("plays run/acme/a@1 again",)
    assert summaries == [("a", "benchmark", (), ["b", "run/acme/d@1"]), ("c", "benchmark", plays, [])]
    (row_without_run,) = build_history("b", [replay])
    assert (row_without_run.kind, row_without_run.marks) == (
        "replay",
        ("a replay of run/acme/a@1, without calls to models",),
    )
    namesake = replace(benchmark("a", "m"), owner=None, identity="1", sha256=None)  # a local run of the same name
    assert [len(row.replays) for row in build_history("a", [namesake, replay, first])] == [1, 0]
    local_run = replace(first, owner=None, key="a", sha256=None)  # the same run without its release
    assert [[entry.key for entry in row.replays] for row in build_history("a", [local_run, local_replay])] == [["b"]]
    assert len(build_history("run/acme/a", [first])) == len(build_history("acme/a", [first])) == 1
    cycle = [benchmark(run, BASE, facts={"replay_of": [replayed, None]}) for run, replayed in ("xy", "yx")]
    assert [row.kind for row in build_history("verifier", cycle)] == ["replay", "replay"]
    rejudged = benchmark("j", BASE, facts={"rejudge_of": ["a", "00", "last"]})
    assert [(row.kind, *row.marks) for row in build_history("j", [rejudged])] == [
        ("rejudged", "judges the debates of a")
    ]


def test_tests_of_a_training_run_are_listed_below_it_in_order() -> None:
    facts = [{"parent_run_id": "one", "iteration": n, "started_at": f"2030-01-0{n + 1}"} for n in range(2)]
    tests = [
        benchmark("one-t0", BASE, facts=facts[0]),
        benchmark("one-t1", MODEL, step("one", MODEL, BASE), facts=facts[1]),
    ]
    games = training("one-i0", MODEL, BASE, facts={"parent_run_id": "one"})
    # Also by the run's name, although the test before the training used none of its models. Games are in its row.
    for name in ("verifier", "one", "one-i0"):
        rows = build_history(name, [*reversed(tests), games, training("one", MODEL, BASE)])
        assert [(row.node.run_id, row.depth) for row in rows] == [("one", 0), ("one-t0", 1), ("one-t1", 1)], name
    assert [row.maker_runs for row in rows[:2]] == [(), ()]  # played with the models before the training


def test_full_history_needs_no_name_and_skips_games_of_unknown_trainings() -> None:
    games = training("one-i0", MODEL, BASE, facts={"parent_run_id": "one"})  # started in the same second
    trained = training("one", MODEL, BASE)
    tested = benchmark("t", MODEL, step("one", MODEL, BASE))
    assert [row.node.run_id for row in build_full_history([games, tested, trained])] == ["one", "t"]
    assert build_full_history([games]) == []
    with pytest.raises(UsageError, match="one-i0 is a part of the training run one, which is neither in"):
        build_history("one-i0", [games])


def test_local_run_and_its_redacted_release_are_one_row() -> None:
    """The model's name was a path. No published byte contains it, not even as a hash, which could be guessed."""
    facts = {"finished_at": "2025", "completion_tokens": 70}
    published_facts = {**facts, "cleaned": [{"rule": "model path"}]}
    published = training("a", MODEL, BASE, identity={"run": "22" * 32}, facts=published_facts)
    model = replace(published, kind="model", key="model/acme/a-v@1", sha256="ee" * 32)
    local_run = training("a", MODEL, BASE, identity={"run": "11" * 32}, facts=facts)
    local_run = replace(
        local_run, owner=None, key="a", sent_hashes=frozenset(map(str, (published.sha256, model.sha256)))
    )
    tested = benchmark("t", MODEL, step("a", MODEL, BASE))
    row, test = build_history("verifier", [published, model, local_run, replace(tested, owner=None)])
    assert [describe_origin(origin) for origin in test.origins] == ["declared: a (iteration 0)"]
    assert (row.own_training.total.effort.rollouts, len(row.published)) == (10, 2)
    assert (row.marks, published.looks_like) == ((), None)


@pytest.mark.parametrize(("tokens", "looks_like"), [(70, True), (71, False)], ids=["the same facts", "others"])
def test_release_that_copies_facts_of_a_local_run_has_its_own_row(tokens: int, looks_like: bool) -> None:
    facts = {"finished_at": "2025", "completion_tokens": 70}
    local_run = replace(training("a", MODEL, BASE, identity={"run": "11" * 32}, facts=facts), owner=None, key="a")
    copied_facts = {**facts, "completion_tokens": tokens, "cleaned": [{"rule": "x"}]}
    copied = training(
        "a", "ft:other", BASE, identity={"run": "22" * 32}, facts=copied_facts, owner="mallory", yanked="stolen"
    )
    first, second = sorted(build_history("a", [copied, local_run]), key=lambda row: row.node.owner or "")
    assert (first.published, first.marks) == ((), ())
    assert [node.key for node in second.published] == [copied.key]
    assert any("looks like a of this results folder" in mark for mark in second.marks) is looks_like


def test_releases_made_from_a_run_are_recorded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "a")
    assert sent_hashes(folder) == frozenset()
    for sha256 in ("ab" * 32, "cd" * 32, "ab" * 32):
        record_release(folder, "run/acme/a@1", sha256, "file:/there")
    assert sent_hashes(folder) == {"ab" * 32, "cd" * 32}
    assert sent_hashes(RunFolder(tmp_path / "runs" / "b")) == frozenset()


def test_sent_reference_is_that_of_the_version_or_the_newest_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "a")
    releases = ("run/acme/x@1", "run/acme/x@2", "model/acme/x-v@3", "run/acme/x@3")
    for number, release in enumerate(releases):
        record_release(folder, release, f"{number}" * 64, "file:/there")
        os.utime(tmp_path / "sent" / "a" / f"{f'{number}' * 64}.json", (number, number))
    references = [find_sent_reference(folder, "file:/there", version) for version in ("1", "2", "7")]
    assert references == ["run/acme/x@1", "run/acme/x@2", "run/acme/x@3"]
    assert find_sent_reference(folder, "file:/elsewhere", "1") is None
