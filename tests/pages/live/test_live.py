"""Views of running, killed, resumed, unstarted, damaged and multiple runs."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from runner.pages.live.follower import Follower
from runner.pages.live.piece_cache import MIN_IN_MEMORY, PieceCache
from runner.results.folder import RunFolder
from tests.support.files import read_folder
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run_here, start_nip_run_silently, wait_until
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.view_process import ViewProcess, run_view


def list_game_ids(view: ViewProcess, state: dict[str, Any]) -> list[str]:
    """Return the ids of the games that the page lists so far."""
    names = [f"r0-list-{number}" for number in range(len(state["games"]["lists"]))]
    pieces = [json.loads(gzip.decompress(view.request(f"data/{name}.json.gz").body)) for name in names]
    return [game_id for piece in pieces for game_id in piece["columns"]["id"]]


@pytest.mark.full
def test_view_follows_a_run_through_kill_and_resume(tmp_path: Path) -> None:
    with run_chat_server(latency=0.2) as server:
        spec_file(tmp_path, server.base_url, size=40, rollouts={"concurrency": 4})
        process = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
        run_folder = RunFolder(tmp_path / "results" / "runs" / "tiny")
        wait_until(run_folder.manifest_path.is_file)
        with run_view("tiny", cwd=tmp_path) as view:
            first_state = view.wait_for_state("tiny", lambda state: state["games"]["count"] >= 2)
            assert (first_state["standing"], first_state["total"]) == ("playing", 40)
            assert first_state["calls"] > 0
            assert first_state["prompt_tokens"] > 0
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed = view.wait_for_state("tiny", lambda state: state["standing"] == "killed")
            assert 2 <= killed["done"] < 40
            ids_before = list_game_ids(view, killed)
            resumed_process = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
            view.wait_for_state("tiny", lambda state: state["standing"] == "playing" and state["done"] > killed["done"])
            server.change(latency=0.0)
            assert resumed_process.wait(HANG_SECONDS) == 0
            last_state = view.wait_for_state(
                "tiny", lambda state: state["standing"] == "done" and state["games"]["count"] == 40
            )
            ids_after = list_game_ids(view, last_state)
            assert ids_after[: len(ids_before)] == ids_before  # games keep their positions
            assert len(set(ids_after)) == 40
            assert last_state["generation"] == 0
            assert last_state["outcomes"] == {"decided": 40}
            assert b"Accuracy" in view.request().body


@pytest.mark.full
def test_two_views_of_one_run_show_the_same_games_and_notes(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4)
    assert nip_run_here("spec.yaml", "--run-id", "tiny", cwd=tmp_path).returncode == 0
    with run_view("tiny", cwd=tmp_path) as first_view, run_view("tiny", cwd=tmp_path) as second_view:
        states = [
            view.wait_for_state("tiny", lambda state: state["games"]["count"] == 4)
            for view in (first_view, second_view)
        ]
        assert list_game_ids(first_view, states[0]) == list_game_ids(second_view, states[1])
        posted = first_view.post_note({"run": "tiny", "text": "seen by both"})
        changed = second_view.wait_for_state("tiny", lambda state: state["notes"] != states[1]["notes"])
        assert changed["notes"] != "0-0"
        (note,) = json.loads(gzip.decompress(second_view.request("data/r0-notes.json.gz").body))
        assert note == posted.json


@pytest.mark.full
def test_view_writes_only_notes_into_the_results(finished_run: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(finished_run.parents[1], results)
    before = read_folder(results)
    with run_view("tiny", cwd=tmp_path) as view:
        state = view.wait_for_state("tiny", lambda state: state["games"]["count"] == 6)
        assert len(list_game_ids(view, state)) == 6
        assert view.request().status == 200
        assert read_folder(results) == before
        assert view.post_note({"run": "tiny", "text": "seen"}).status == 201
    after = read_folder(results)
    assert {name for name in after if after[name] != before.get(name)} == {
        "runs/tiny/notes.jsonl", "runs/tiny/.notes.lock",
    }  # fmt: skip
    assert before.keys() <= after.keys()


@pytest.fixture
def follow() -> Iterator[Callable[..., Follower]]:
    """A function that follows a run until the test ends."""
    with ExitStack() as open_followers:
        yield lambda folder, pieces=None: open_followers.enter_context(
            closing(Follower(folder, 0, pieces or PieceCache()))
        )


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("followed")
    spec_file(folder, size=6)
    assert nip_run_here("spec.yaml", "--run-id", "tiny", cwd=folder).returncode == 0
    return folder / "results" / "runs" / "tiny"


def read_state(follower: Follower, *, min_updates: int = 1) -> dict[str, Any]:
    """Update the follower until it has read everything, and return the run's state."""
    for _ in range(50):
        follower.update()
        state = dict(follower.snapshot.state)
        min_updates -= 1
        if min_updates <= 0 and not state["reading"]:
            return state
    raise AssertionError("it is still being read")


def copy_run(run_path: Path, folder: Path) -> RunFolder:
    folder.mkdir()
    for path in run_path.rglob("*"):
        target = folder / path.relative_to(run_path)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return RunFolder(folder)


def test_run_without_a_journal_has_no_games(
    finished_run: Path, tmp_path: Path, follow: Callable[..., Follower]
) -> None:
    folder = copy_run(finished_run, tmp_path / "tiny")
    folder.journal.unlink()
    state = read_state(follow(folder))
    assert state["problem"] is None
    assert state["games"]["count"] == 0
    assert "total" not in state


def test_damaged_journal_is_reported_and_read_again_after_its_repair(
    finished_run: Path, tmp_path: Path, follow: Callable[..., Follower]
) -> None:
    folder = copy_run(finished_run, tmp_path / "tiny")
    journal = folder.journal.read_bytes()
    folder.journal.write_bytes(journal[:200] + b"x" + journal[201:])
    follower = follow(folder)
    damaged_state = read_state(follower, min_updates=2)
    assert "damaged at byte" in damaged_state["problem"]
    assert damaged_state["games"]["count"] == 0
    folder.journal.write_bytes(journal)
    repaired_state = read_state(follower)
    assert repaired_state["problem"] is None
    assert repaired_state["games"]["count"] == 6


def test_replaced_journal_is_read_again_with_a_new_generation_of_pieces(
    finished_run: Path, tmp_path: Path, follow: Callable[..., Follower]
) -> None:
    folder, pieces = copy_run(finished_run, tmp_path / "tiny"), PieceCache()
    follower = follow(folder, pieces)
    assert read_state(follower)["games"]["count"] == 6
    assert pieces.get("r0-list-0") is not None
    replacement = folder.journal.with_name("beside")
    replacement.write_bytes(folder.journal.read_bytes())
    replacement.replace(folder.journal)
    follower.update()
    replacement.write_bytes(folder.journal.read_bytes())
    replacement.replace(folder.journal)
    state = read_state(follower, min_updates=3)
    assert state["generation"] >= 1
    assert state["games"]["count"] == 6
    assert pieces.get("r0-list-0") is None
    assert pieces.get(f"r0g{state['generation']}-list-0") is not None


def test_missing_run_folder_is_reported(finished_run: Path, tmp_path: Path, follow: Callable[..., Follower]) -> None:
    folder = copy_run(finished_run, tmp_path / "tiny")
    follower = follow(folder)
    read_state(follower)
    folder.path.rename(tmp_path / "away")
    state = read_state(follower)
    assert state["standing"] == "damaged"
    assert "manifest.json" in state["problem"]


@pytest.mark.full
def test_damaged_run_does_not_hide_other_runs_of_the_view(finished_run: Path, tmp_path: Path) -> None:
    runs = tmp_path / "results" / "runs"
    runs.mkdir(parents=True)
    copy_run(finished_run, runs / "tiny")
    other_run = copy_run(finished_run, runs / "other")
    manifest = json.loads(other_run.manifest_path.read_bytes())
    other_run.manifest_path.write_text(json.dumps({**manifest, "run_id": "other"}))
    with run_view("tiny", "other", cwd=tmp_path) as view:
        view.wait_for_state("other", lambda state: state["games"]["count"] == 6)
        assert b'data-route="compare/tiny/other"' in view.request().body
        other_run.spec.write_text("name: [")
        page = view.request().body
        assert b'data-route="run/tiny"' in page
        assert b'data-route="run/other"' in page


def test_pieces_beyond_the_memory_limit_are_stored_in_a_file_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.pages.live.piece_cache.MAX_MEMORY", 1000)
    pieces = PieceCache()
    stored = {f"r0-games-{number}": bytes([number]) * (200 + number) for number in range(40)}
    for name, piece in stored.items():
        pieces.store(name, b"before")
        pieces.store(name, piece)
    assert {name: pieces.get(name) for name in stored} == stored
    pieces.store("r0-games-0", b"again")
    assert pieces.get("r0-games-0") == b"again"
    assert pieces.get("r1-games-0") is None
    pieces.drop("r0-")
    assert not any(pieces.get(name) for name in stored)
    assert len(stored) > MIN_IN_MEMORY
    pieces.close()
