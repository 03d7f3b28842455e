"""Pages of runs that may be playing: the page, its data, how the runs stand, and the notes that are kept of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from markupsafe import Markup

from runner.base.errors import NipRunError, UsageError
from runner.pages.html import shown
from runner.pages.live.follower import Follower
from runner.pages.live.piece_cache import PieceCache
from runner.pages.packing import packed
from runner.pages.report.comparison import compares
from runner.pages.report.run_site import Gathered, notes_name, runs_site
from runner.pages.site import Keep, Section, Site, as_index
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results

PARTS_SECONDS = 3.0
"""How often it is seen whether a training run has begun another part."""
SETTLE_SECONDS = 1.5
"""How long the first page waits for all that was played before; a run of many games is shown while it is read."""
FIRST_SECONDS = 5.0
"""How long it waits for the first games."""
POLL_MS = 1_000
"""How often the page asks, while a run plays."""


class LiveRuns:
    """What a server serves of some runs; see `viewing.server.Served`."""

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        self._pieces = PieceCache()
        self._asked = folders
        self._followers: dict[str, Follower] = {}
        self._rendering, self._adding = threading.Lock(), threading.Lock()
        self._page: tuple[Any, bytes] = (None, b"")
        self._over, self._begun, self._settled = threading.Event(), threading.Event(), threading.Event()
        self._made_at = time.monotonic()
        self._parts_at = 0.0
        self._find()

    # Followed

    def follow(self) -> None:
        """Look at the runs until `close`."""
        due = dict.fromkeys(self._followers, 0.0)
        while not self._over.is_set():
            now = time.monotonic()
            if now - self._parts_at >= PARTS_SECONDS:
                self._find()
            for run_id, follower in list(self._followers.items()):
                if due.get(run_id, 0.0) <= now and not self._over.is_set():
                    due[run_id] = follower.look() + time.monotonic()
            states = [one.shown.state for one in self._followers.values()]
            if all(state and (not state["reading"] or state["games"]["count"]) for state in states):
                self._begun.set()
            if not any(state.get("reading", True) for state in states):
                self._settled.set()
            self._over.wait(max(0.0, min(min(due.values()) - time.monotonic(), PARTS_SECONDS)))
        for follower in list(self._followers.values()):
            follower.close()

    def _find(self) -> None:
        """The runs that were asked for, and of a training run its parts, each when it has begun."""
        self._parts_at = time.monotonic()
        for folder in self._asked:
            self._add(folder)
            try:
                if not folder.manifest().is_training_run or folder.name is not None:
                    continue
            except NipRunError:
                continue  # its follower says what is wrong
            for part in Results.of(folder).parts_of(folder.run_id):
                self._add(part)

    def _add(self, folder: RunFolder) -> Follower:
        """The follower of a run, from now on if there was none."""
        with self._adding:
            if folder.run_id not in self._followers:
                self._followers[folder.run_id] = Follower(folder, len(self._followers), self._pieces)
            return self._followers[folder.run_id]

    def close(self) -> None:
        self._over.set()

    # Served

    def page(self) -> bytes:
        """The page with what there is now; made again where something has changed."""
        self._begun.wait(FIRST_SECONDS)
        self._settled.wait(max(0.0, self._made_at + SETTLE_SECONDS - time.monotonic()))
        with self._rendering:
            followers = list(self._followers.values())
            of = [
                (one.shown.generation, one.shown.games.about["count"], one.shown.state.get("standing"))
                for one in followers
            ]
            if self._page[0] != of:
                self._page = of, as_index(self._site(followers))
            return self._page[1]

    def _site(self, followers: Sequence[Follower]) -> Site:
        by_id = {one.folder.run_id: one for one in followers}

        def gather(folder: RunFolder, _: str) -> Gathered:
            follower = by_id.get(folder.run_id) or self._add(folder)
            return follower.gathered()

        def site_of(some: Sequence[Follower]) -> Site:
            folders = [one.folder for one in some]
            site = runs_site(folders, self._pieces.keep, gather)
            over = all(one.shown.state.get("standing") == "done" for one in some)
            asked = {folder.run_id for folder in self._asked}
            compared = [folder for folder in folders if folder.run_id in asked]
            return _compared(site, compared, self._pieces.keep) if over else site

        try:
            site = site_of(followers)
        except NipRunError:
            site = _as_far_as_it_goes(followers, site_of)
        live = {"poll": POLL_MS, "runs": list(by_id)}
        return replace(site, about={**site.about, "live": live, "notes": "notes"})

    def state(self) -> bytes:
        """How the runs stand, for the script of the page."""
        return orjson.dumps({"format": 1, "runs": [one.shown.state for one in list(self._followers.values())]})

    def piece(self, name: str) -> bytes | None:
        """A piece of data by its name; None where there is none.

        Raises:
            RunError: the notes of a run cannot be read.
        """
        for follower in list(self._followers.values()):
            if name == notes_name(follower.slug):
                return packed([note.to_json() for note in follower.notes.all()])
        return self._pieces.get(name)

    def note(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a note, or take one back (`removes`); the note as it was kept.

        Raises:
            UsageError: it is no note, or of no run of this page.
            RunError: it cannot be kept.
        """
        follower = self._followers.get(str(data.get("run")))
        if follower is None:
            raise UsageError("the note is of no run of this page")
        removes, replaces, of = data.get("removes"), data.get("replaces"), data.get("rollout_id")
        if isinstance(removes, str):
            follower.notes.remove(removes)
            return {"removes": removes}
        text, tags = data.get("text", ""), data.get("tags", [])
        if not isinstance(text, str) or not isinstance(tags, list) or not isinstance(of, str | None):
            raise UsageError("a note has a text, tags, and the id of a game or none")
        return follower.notes.write(
            text, tags, rollout_id=of, replaces=replaces if isinstance(replaces, str) else None
        ).to_json()


def _compared(site: Site, folders: Sequence[RunFolder], keep: Keep) -> Site:
    """A site of runs that are over, with each two of them side by side."""
    made = compares(folders, keep)
    links = [*site.links, *([made.entry] if made.entry else [])]
    about = {**site.about, "compares": made.about}
    return replace(site, links=links, sections=[*site.sections, *made.sections], about=about)


def _as_far_as_it_goes(followers: Sequence[Follower], site_of: Callable[[Sequence[Follower]], Site]) -> Site:
    """The site of runs of which some have no page; of each of those, what is wrong."""
    good: list[Follower] = []
    wrong: list[Section] = []
    for one in followers:
        try:
            site_of([one])
            good.append(one)
        except NipRunError as error:
            told = Markup('<h2>{}</h2>\n<p class="why">{}</p>').format(shown(one.folder.run_id), shown(str(error)))
            wrong.append(Section(f"run/{one.folder.run_id}", told))
    links = [(section.route, section.route.removeprefix("run/")) for section in wrong]
    if not good:
        title = " · ".join(one.folder.run_id for one in followers)
        return Site(title, links, wrong, {"format": 1, "runs": []})
    site = site_of(good)
    return replace(site, links=[*site.links, *links], sections=[*site.sections, *wrong])
