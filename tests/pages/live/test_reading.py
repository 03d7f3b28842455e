"""A journal is read in pieces: games are listed early, each once, with the same data as after a full read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest

from runner.pages.live.follower import Follower
from runner.pages.live.journal_state import JournalReading
from runner.pages.live.piece_cache import PieceCache
from runner.pages.report.run import collect_games
from runner.results.folder import RunFolder
from tests.support.report_summaries import unpack_piece
from tests.support.runs import only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

GAMES = 30


@contextmanager
def open_reading(run: RunFolder, pieces: dict[str, bytes]) -> Iterator[JournalReading]:
    """Open a reading of a run in small pieces, with one record per step."""
    ticks = count()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("runner.pages.live.journal_state.FIRST_PIECE", 500)
        journal_reading = JournalReading(run, "r0", pieces.__setitem__, lambda: float(next(ticks)))
    with closing(journal_reading):
        yield journal_reading


def list_games(stored_pieces: dict[str, bytes], lists: int) -> dict[str, tuple[str, int]]:
    """Return the outcome and the prompt tokens of each listed game."""
    pieces = [unpack_piece(stored_pieces, f"r0-list-{number}")["columns"] for number in range(lists)]
    rows = [row for piece in pieces for row in zip(piece["id"], piece["outcome"], piece["prompt_tokens"], strict=True)]
    assert len({row[0] for row in rows}) == len(rows)
    return {name: (outcome, tokens) for name, outcome, tokens in rows}


def collect_all_games(run: RunFolder) -> dict[str, tuple[str, int]]:
    pieces: dict[str, bytes] = {}
    about = collect_games(run, "r0", pieces.__setitem__).about
    return list_games(pieces, len(about["lists"]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("read")
    run_spec(spec_file(folder, size=GAMES, fine_tune=None, rollouts={"concurrency": 2}), folder / "results")
    return RunFolder(only_run(folder / "results"))


def test_first_games_are_listed_before_the_whole_journal_is_read(run: RunFolder) -> None:
    pieces: dict[str, bytes] = {}
    with open_reading(run, pieces) as journal_reading:
        progress = []
        while journal_reading.step(0.0):
            progress.append((journal_reading.listed, journal_reading.counts()["calls"]))
        calls = journal_reading.counts()["calls"]
        calls_at_first_game = next(answers for listed, answers in progress if listed)
        assert calls_at_first_game < calls
        assert [listed for listed, _ in progress] == sorted(listed for listed, _ in progress)
        assert (journal_reading.total, journal_reading.done, journal_reading.is_stale) == (GAMES, GAMES, False)
        assert list_games(pieces, len(journal_reading.collect().about["lists"])) == collect_all_games(run)


@pytest.mark.full
def test_game_that_failed_and_was_resumed_is_listed_once_with_its_final_outcome(tmp_path: Path) -> None:
    for faults in ({"server_error": 0.3}, {}):
        with run_chat_server(faults=faults) as server:
            path = spec_file(
                tmp_path, server.base_url, size=8, fine_tune=None,
                retry={"transient": {"attempts": 1}}, rollouts={"concurrency": 2},
            )  # fmt: skip
            result = run_spec(path, tmp_path / "results")
    assert result.manifest.status == "done"
    pieces: dict[str, bytes] = {}
    with open_reading(result.folder, pieces) as journal_reading:
        while journal_reading.step(0.0):
            pass
        assert b'"ended"' in result.folder.journal.read_bytes()
        assert not journal_reading.is_stale
        games = list_games(pieces, len(journal_reading.collect().about["lists"]))
    assert games == collect_all_games(result.folder)
    assert {outcome for outcome, _ in games.values()} == {"decided"}


def test_view_shows_the_manifests_cost_and_not_the_maximum_cost(tmp_path: Path) -> None:
    models = {"m": {"price": {"input": 2.0, "output": 6.0}, "max_completion_tokens": 100}}
    with run_chat_server(usage=False) as server:
        path = spec_file(tmp_path, server.base_url, size=2, fine_tune=None, models=models)
        result = run_spec(path, tmp_path / "results")
    with open_reading(result.folder, {}) as journal_reading:
        while journal_reading.step(0.0):
            pass
        assert journal_reading.counts()["cost_usd"] == result.manifest.cost_usd != result.manifest.cost_usd_at_most


def test_page_of_a_partly_read_run_is_marked_as_partial(run: RunFolder) -> None:
    with closing(Follower(run, 0, PieceCache())) as follower:
        assert follower.collect().is_part
        while follower.update() == 0.0:
            pass
        assert not follower.collect().is_part
