"""A board is made of all releases that can be shown, whatever stands beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from runner.base.storage.safe_files import make_folders
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.results.leaderboard.results_folder import Results
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.worker import BoardWorker, find_culprits
from runner.server.service import Service
from runner.server.settings import Settings
from tests.registry.planted import release_of
from tests.support.runs import played
from tests.support.served import put
from tests.support.specs import ALONE, debate_with_hints


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Service]:
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    yield server
    server.database.close()


def named(name: str, facts: dict[str, Any] | None = None, kind: Kind = Kind.DATASET) -> Bundle:
    return Bundle(Release(kind=kind, owner="mallory", name=name, version="1", facts=facts or {}), {})


def board(server: Service, folder: Path, worker: BoardWorker | None = None) -> BoardSnapshot:
    make_folders(folder)
    (worker or BoardWorker(server.settings)).write(folder)
    return BoardSnapshot(folder)


def listed(shown: BoardSnapshot) -> dict[str, Any]:
    return {one["name"]: one for one in shown.newest(100)}


def test_facts_of_any_type_and_size_stop_no_board(held: Service, tmp_path: Path) -> None:
    facts: list[dict[str, Any]] = [
        {"benchmark": ["x"]}, {"benchmark": {"a": 1}}, {"task": {"a": 1}}, {"kind": ["x"]}, {"models": [1]},
        {"models": {"a": ["b"]}}, {"accuracy": "x"}, {"accuracy": {"value": "x"}}, {"run_id": 5}, {"protocol": 7},
        {"benchmark": "W" * 900_000}, {"models": {"a": "W" * 900_000}}, {"trained": 5},
    ]  # fmt: skip
    kinds = (Kind.MODEL, Kind.DATASET, Kind.RUN)
    bad = [named(f"{kind}{number}", one, kind) for number, one in enumerate(facts) for kind in kinds]
    put(held, [*bad, named("honest", {"benchmark": "sums"})])
    shown = board(held, tmp_path / "board")
    found = listed(shown)
    assert found["honest"]["benchmark"] == "sums"
    assert all(
        isinstance(one["benchmark"], str | None) and isinstance(one["run_id"], str | None) for one in found.values()
    )
    assert max(len(str(one)) for one in found.values()) < 3_000


@pytest.mark.full  # it makes ten boards
def test_a_release_that_no_board_can_be_made_with_is_left_out_and_named(held: Service, tmp_path: Path) -> None:
    put(held, [named(f"one{number}") for number in range(5)])
    worker = BoardWorker(held.settings)
    with held.database.writing() as connection:
        connection.execute(text("UPDATE releases SET created = 'soon' WHERE name = 'one3'"))
    shown = board(held, tmp_path / "first", worker)
    assert sorted(listed(shown)) == ["one0", "one1", "one2", "one4"]
    assert [
        release for release, why in shown.info("left_out") if "the board cannot be built with this release" in why
    ] == ["dataset/mallory/one3@1"]
    put(held, [named("another")])
    assert sorted(listed(board(held, tmp_path / "second", worker))) == ["another", "one0", "one1", "one2", "one4"]


@pytest.mark.parametrize("bad", [(), (3,), (0, 9), (4, 5, 6), tuple(range(10))])
def test_what_does_not_work_with_others_is_found(bad: tuple[int, ...]) -> None:
    assert find_culprits(range(10), lambda some: not set(some) & set(bad)) == list(bad)


@pytest.mark.gate
def test_a_debate_whose_provers_see_more_is_on_the_page_of_the_lone_verifier(held: Service, tmp_path: Path) -> None:
    path, results = debate_with_hints(tmp_path / "spec"), tmp_path / "results"
    runs = [played(path, results, *overrides, run_id=name) for name, overrides in (("debate", ()), ("alone", ALONE))]
    put(held, [release_of(run.folder, Results(results), "acme") for run in runs])
    shown = board(held, tmp_path / "board")
    (task,) = shown.tasks
    assert task["ranked"] == 2
    (earlier_page,) = task["earlier_pages"]
    assert shown.task(earlier_page) == shown.task(task["page"]) == task
