"""The cache of run pages: fair between requesters, and bounded on disk."""

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


def test_one_requester_or_page_kind_cannot_fill_the_queue_of_others(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    pages = RunPageCache(settings)

    async def load_page(requester: str, *names: str, wait: float = 0.001) -> CachedPage:
        # No process starts within a millisecond.
        runs = [Reference(Kind.RUN, "acme", name, "1") for name in names]
        return await pages.get_or_build(runs, list(names), ANYBODY, wait, requester=requester)

    async def load_pages() -> tuple[
        list[BaseException | CachedPage], BaseException | CachedPage, BaseException | CachedPage, CachedPage
    ]:
        requests = [load_page("greedy", f"a{number}", f"b{number}") for number in range(MAX_UNFINISHED)]
        first = await asyncio.gather(*requests, return_exceptions=True)
        waiting = sum(len(lane.tasks) for lane in pages.lanes.values())
        assert waiting <= MAX_PER_REQUESTER
        (repeated,) = await asyncio.gather(load_page("greedy", "c", "d"), return_exceptions=True)
        (other_page,) = await asyncio.gather(load_page("other", "e", "f", wait=60), return_exceptions=True)
        return first, repeated, other_page, await load_page("greedy", "a-run", wait=60)

    first, repeated, other, run = asyncio.run(load_pages())
    assert all(isinstance(result, PageNotReady) for result in [*first, repeated])
    assert isinstance(other, CachedPage)
    assert "a-run" in str(run.content.wrong)
    server.database.close()


@pytest.mark.parametrize(("max_bytes", "expected"), [(350, {"c", "d", "e"}), (100, {"e"}), (10_000, set("abcde"))])
def test_page_cache_size_is_bounded_and_recently_used_pages_stay(
    tmp_path: Path, max_bytes: int, expected: set[str]
) -> None:
    for index, name in enumerate("abcde"):
        (tmp_path / "two" / name).mkdir(parents=True)
        (tmp_path / "two" / name / "page.json").write_bytes(b"x" * 100)
        os.utime(tmp_path / "two" / name, (index, index))
    (tmp_path / "of-an-earlier-version").mkdir()
    remove_old_pages(tmp_path, max_bytes)
    assert {path.name for path in (tmp_path / "two").iterdir()} == expected
    assert {path.name for path in tmp_path.iterdir()} == {"two"}
