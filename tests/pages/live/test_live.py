"""A view of runs that play, are killed, go on, have not begun, are damaged, or are several."""

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
    """The ids of the games that a page lists by now."""
    names = [f"r0-list-{number}" for number in range(len(state["games"]["lists"]))]
    pieces = [json.loads(gzip.decompress(view.request(f"data/{name}.json.gz").body)) for name in names]
    return [one for piece in pieces for one in piece["columns"]["id"]]


@pytest.mark.full
def test_a_view_follows_a_run_through_its_kill_and_its_resume(tmp_path: Path) -> None:
    with run_chat_server(latency=0.2) as server:
        spec_file(tmp_path, server.base_url, size=40, rollouts={"concurrency": 4})
        playing = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
        server_seen = RunFolder(tmp_path / "results" / "runs" / "tiny")
        wait_until(server_seen.manifest_path.is_file)
        with run_view("tiny", cwd=tmp_path) as view:
            early = view.wait_for_state("tiny", lambda state: state["games"]["count"] >= 2)
            assert (early["standing"], early["total"]) == ("playing", 40)
            assert early["calls"] > 0
            assert early["prompt_tokens"] > 0
            playing.send_signal(signal.SIGKILL)
            playing.wait()
            killed = view.wait_for_state("tiny", lambda state: state["standing"] == "killed")
            assert 2 <= killed["done"] < 40
            before = list_game_ids(view, killed)
            again = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
            view.wait_for_state("tiny", lambda state: state["standing"] == "playing" and state["done"] > killed["done"])
            server.change(latency=0.0)
            assert again.wait(HANG_SECONDS) == 0
            done = view.wait_for_state(
                "tiny", lambda state: state["standing"] == "done" and state["games"]["count"] == 40
            )
            after = list_game_ids(view, done)
            assert after[: len(before)] == before  # what was shown stays at its place
            assert len(set(after)) == 40
            assert done["generation"] == 0
            assert done["outcomes"] == {"decided": 40}
            assert b"Accuracy" in view.request().body


@pytest.mark.full
def test_two_views_of_one_run_show_the_same(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4)
    assert nip_run_here("spec.yaml", "--run-id", "tiny", cwd=tmp_path).returncode == 0
    with run_view("tiny", cwd=tmp_path) as one, run_view("tiny", cwd=tmp_path) as other:
        states = [view.wait_for_state("tiny", lambda state: state["games"]["count"] == 4) for view in (one, other)]
        assert list_game_ids(one, states[0]) == list_game_ids(other, states[1])
        kept = one.post_note({"run": "tiny", "text": "seen by both"})
        changed = other.wait_for_state("tiny", lambda state: state["notes"] != states[1]["notes"])
        assert changed["notes"] != "0-0"
        (note,) = json.loads(gzip.decompress(other.request("data/r0-notes.json.gz").body))
        assert note == kept.json


@pytest.mark.full
def test_a_view_changes_nothing_in_the_results_but_for_notes(finished_run: Path, tmp_path: Path) -> None:
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
def followed() -> Iterator[Callable[..., Follower]]:
    """Follows a run until the test has ended."""
    with ExitStack() as stack:
        yield lambda folder, pieces=None: stack.enter_context(closing(Follower(folder, 0, pieces or PieceCache())))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("followed")
    spec_file(folder, size=6)
    assert nip_run_here("spec.yaml", "--run-id", "tiny", cwd=folder).returncode == 0
    return folder / "results" / "runs" / "tiny"


def looked(follower: Follower, *, least: int = 1) -> dict[str, Any]:
    """How a run stands once all that is there was read."""
    for _ in range(50):
        follower.update()
        state = dict(follower.snapshot.state)
        least -= 1
        if least <= 0 and not state["reading"]:
            return state
    raise AssertionError("it is still being read")


def copied(run: Path, folder: Path) -> RunFolder:
    folder.mkdir()
    for path in run.rglob("*"):
        target = folder / path.relative_to(run)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return RunFolder(folder)


def test_a_run_without_an_answer_yet_has_no_games(
    finished_run: Path, tmp_path: Path, followed: Callable[..., Follower]
) -> None:
    folder = copied(finished_run, tmp_path / "tiny")
    folder.journal.unlink()
    state = looked(followed(folder))
    assert state["problem"] is None
    assert state["games"]["count"] == 0
    assert "total" not in state


def test_a_damaged_journal_is_told_and_read_again_once_it_is_mended(
    finished_run: Path, tmp_path: Path, followed: Callable[..., Follower]
) -> None:
    folder = copied(finished_run, tmp_path / "tiny")
    whole = folder.journal.read_bytes()
    folder.journal.write_bytes(whole[:200] + b"x" + whole[201:])
    follower = followed(folder)
    told = looked(follower, least=2)
    assert "damaged at byte" in told["problem"]
    assert told["games"]["count"] == 0
    folder.journal.write_bytes(whole)
    mended = looked(follower)
    assert mended["problem"] is None
    assert mended["games"]["count"] == 6


def test_a_journal_that_was_replaced_is_read_again_under_other_names(
    finished_run: Path, tmp_path: Path, followed: Callable[..., Follower]
) -> None:
    folder, pieces = copied(finished_run, tmp_path / "tiny"), PieceCache()
    follower = followed(folder, pieces)
    assert looked(follower)["games"]["count"] == 6
    assert pieces.get("r0-list-0") is not None
    beside = folder.journal.with_name("beside")
    beside.write_bytes(folder.journal.read_bytes())
    beside.replace(folder.journal)
    follower.update()
    beside.write_bytes(folder.journal.read_bytes())
    beside.replace(folder.journal)
    again = looked(follower, least=3)
    assert again["generation"] >= 1
    assert again["games"]["count"] == 6
    assert pieces.get("r0-list-0") is None
    assert pieces.get(f"r0g{again['generation']}-list-0") is not None


def test_a_run_whose_folder_is_gone_is_told(
    finished_run: Path, tmp_path: Path, followed: Callable[..., Follower]
) -> None:
    folder = copied(finished_run, tmp_path / "tiny")
    follower = followed(folder)
    looked(follower)
    folder.path.rename(tmp_path / "away")
    state = looked(follower)
    assert state["standing"] == "damaged"
    assert "manifest.json" in state["problem"]


@pytest.mark.full
def test_several_runs_are_viewed_and_one_that_is_damaged_hides_no_other(finished_run: Path, tmp_path: Path) -> None:
    runs = tmp_path / "results" / "runs"
    runs.mkdir(parents=True)
    copied(finished_run, runs / "tiny")
    other = copied(finished_run, runs / "other")
    manifest = json.loads(other.manifest_path.read_bytes())
    other.manifest_path.write_text(json.dumps({**manifest, "run_id": "other"}))
    with run_view("tiny", "other", cwd=tmp_path) as view:
        view.wait_for_state("other", lambda state: state["games"]["count"] == 6)
        assert b'data-route="compare/tiny/other"' in view.request().body
        other.spec.write_text("name: [")
        page = view.request().body
        assert b'data-route="run/tiny"' in page
        assert b'data-route="run/other"' in page


def test_pieces_beyond_the_memory_stand_in_a_file_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.pages.live.piece_cache.MAX_MEMORY", 1000)
    pieces = PieceCache()
    kept = {f"r0-games-{number}": bytes([number]) * (200 + number) for number in range(40)}
    for name, piece in kept.items():
        pieces.store(name, b"before")
        pieces.store(name, piece)
    assert {name: pieces.get(name) for name in kept} == kept
    pieces.store("r0-games-0", b"again")
    assert pieces.get("r0-games-0") == b"again"
    assert pieces.get("r1-games-0") is None
    pieces.drop("r0-")
    assert not any(pieces.get(name) for name in kept)
    assert len(kept) > MIN_IN_MEMORY
    pieces.close()
