"""A journal is read in pieces: games are there before its end, each once, and as all of it has them."""

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
def reading(run: RunFolder, kept: dict[str, bytes]) -> Iterator[JournalReading]:
    """What reads a run in small pieces, one thing after another in each step."""
    ticks = count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runner.pages.live.journal_state.FIRST_PIECE", 500)
        found = JournalReading(run, "r0", kept.__setitem__, lambda: float(next(ticks)))
    with closing(found):
        yield found


def games_in(kept: dict[str, bytes], lists: int) -> dict[str, tuple[str, int]]:
    """What the lists say of each game: how it ended, and how many tokens it took."""
    pieces = [unpack_piece(kept, f"r0-list-{number}")["columns"] for number in range(lists)]
    rows = [row for one in pieces for row in zip(one["id"], one["outcome"], one["prompt_tokens"], strict=True)]
    assert len({row[0] for row in rows}) == len(rows)
    return {name: (outcome, tokens) for name, outcome, tokens in rows}


def collect_all_games(run: RunFolder) -> dict[str, tuple[str, int]]:
    kept: dict[str, bytes] = {}
    about = collect_games(run, "r0", kept.__setitem__).about
    return games_in(kept, len(about["lists"]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("read")
    run_spec(spec_file(folder, size=GAMES, fine_tune=None, rollouts={"concurrency": 2}), folder / "results")
    return RunFolder(only_run(folder / "results"))


def test_the_first_games_are_there_before_the_journal_is_read_and_in_the_end_all(run: RunFolder) -> None:
    kept: dict[str, bytes] = {}
    with reading(run, kept) as one:
        seen = []
        while one.step(0.0):
            seen.append((one.listed, one.counts()["calls"]))
        calls = one.counts()["calls"]
        early = next(answers for listed, answers in seen if listed)
        assert early < calls
        assert [listed for listed, _ in seen] == sorted(listed for listed, _ in seen)
        assert (one.total, one.done, one.is_stale) == (GAMES, GAMES, False)
        assert games_in(kept, len(one.collect().about["lists"])) == collect_all_games(run)


@pytest.mark.full
def test_a_game_that_was_lost_and_played_on_later_is_listed_once_as_it_ended(tmp_path: Path) -> None:
    for faults in ({"server_error": 0.3}, {}):
        with run_chat_server(faults=faults) as server:
            path = spec_file(
                tmp_path, server.base_url, size=8, fine_tune=None,
                retry={"transient": {"attempts": 1}}, rollouts={"concurrency": 2},
            )  # fmt: skip
            result = run_spec(path, tmp_path / "results")
    assert result.manifest.status == "done"
    kept: dict[str, bytes] = {}
    with reading(result.folder, kept) as one:
        while one.step(0.0):
            pass
        assert b'"ended"' in result.folder.journal.read_bytes()
        assert not one.is_stale
        found = games_in(kept, len(one.collect().about["lists"]))
    assert found == collect_all_games(result.folder)
    assert {outcome for outcome, _ in found.values()} == {"decided"}


def test_a_view_has_the_cost_of_the_manifest_and_not_the_worst_case(tmp_path: Path) -> None:
    priced = {"m": {"price": {"input": 2.0, "output": 6.0}, "max_completion_tokens": 100}}
    with run_chat_server(usage=False) as server:
        path = spec_file(tmp_path, server.base_url, size=2, fine_tune=None, models=priced)
        result = run_spec(path, tmp_path / "results")
    with reading(result.folder, {}) as one:
        while one.step(0.0):
            pass
        assert one.counts()["cost_usd"] == result.manifest.cost_usd != result.manifest.cost_usd_at_most


def test_a_page_of_a_run_that_is_still_read_says_how_far_it_has_come(run: RunFolder) -> None:
    with closing(Follower(run, 0, PieceCache())) as follower:
        assert follower.collect().is_part
        while follower.update() == 0.0:
            pass
        assert not follower.collect().is_part
