"""Pages of runs are made for all: nobody takes the places of others, and they take so much of the disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from runner.base.storage.safe_files import make_folders
from runner.documents.releases.reference import Kind, Reference
from runner.server.accounts.accounts import ANYBODY
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.web.pages.run_cache import (
    MAX_PER_REQUESTER,
    MAX_UNFINISHED,
    CachedPage,
    PageNotReady,
    RunPageCache,
    remove_old_pages,
)


def test_pairs_take_no_place_of_runs_and_one_asker_none_of_others(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    pages = RunPageCache(settings)

    async def asked(requester: str, *names: str, wait: float = 0.001) -> CachedPage:
        # No process has begun within a millisecond, on any machine.
        runs = [Reference(Kind.RUN, "acme", name, "1") for name in names]
        return await pages.get_or_build(runs, list(names), ANYBODY, wait, requester=requester)

    async def all_of_it() -> tuple[
        list[BaseException | CachedPage], BaseException | CachedPage, BaseException | CachedPage, CachedPage
    ]:
        greedy = [asked("greedy", f"a{number}", f"b{number}") for number in range(MAX_UNFINISHED)]
        first = await asyncio.gather(*greedy, return_exceptions=True)
        waiting = sum(len(lane.tasks) for lane in pages.lanes.values())
        assert waiting <= MAX_PER_REQUESTER
        (again,) = await asyncio.gather(asked("greedy", "c", "d"), return_exceptions=True)
        (other,) = await asyncio.gather(asked("other", "e", "f", wait=60), return_exceptions=True)
        return first, again, other, await asked("greedy", "a-run", wait=60)

    first, again, other, run = asyncio.run(all_of_it())
    assert all(isinstance(one, PageNotReady) for one in [*first, again])
    assert isinstance(other, CachedPage)
    assert "a-run" in str(run.content.wrong)
    server.database.close()


@pytest.mark.parametrize(("most", "left"), [(350, {"c", "d", "e"}), (100, {"e"}), (10_000, set("abcde"))])
def test_pages_have_so_many_bytes_and_what_was_read_last_stays(tmp_path: Path, most: int, left: set[str]) -> None:
    for at, name in enumerate("abcde"):
        (tmp_path / "two" / name).mkdir(parents=True)
        (tmp_path / "two" / name / "page.json").write_bytes(b"x" * 100)
        os.utime(tmp_path / "two" / name, (at, at))
    (tmp_path / "of-an-earlier-version").mkdir()
    remove_old_pages(tmp_path, most)
    assert {path.name for path in (tmp_path / "two").iterdir()} == left
    assert {path.name for path in tmp_path.iterdir()} == {"two"}
