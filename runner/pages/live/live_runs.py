"""The content of `nip-run view`: a page about runs that may be playing, its data, their state, and their notes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from markupsafe import Markup

from runner.analysis.results import analysis_files
from runner.base.errors import NipRunError, UsageError
from runner.pages.html import mark_hidden, policy
from runner.pages.live.follower import Follower
from runner.pages.live.piece_cache import PieceCache
from runner.pages.packing import compress_json
from runner.pages.report.comparison import compare_runs
from runner.pages.report.run_analyses import analyses_data, analyses_name
from runner.pages.report.run_site import CollectedGames, notes_name, runs_site
from runner.pages.site import Section, Site, StorePiece, as_index
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan

PARTS_SECONDS = 3.0
"""Seconds between checks for new parts of a training run."""
SETTLE_SECONDS = 1.5
"""Maximum seconds that the first page waits until all games so far are read."""
FIRST_SECONDS = 5.0
"""Seconds that the first page waits for the first games."""
POLL_MS = 1_000
"""Milliseconds between the page's requests while a run plays."""


class LiveRuns:
    """The content of a server for some runs: a `runner.pages.live.server.LiveContent`."""

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        self._pieces = PieceCache()
        self._requested = folders
        self._followers: dict[str, Follower] = {}
        self._page_lock, self._followers_lock = threading.Lock(), threading.Lock()
        self._page: tuple[Any, bytes] = (None, b"")
        self._closed, self._has_games, self._settled = threading.Event(), threading.Event(), threading.Event()
        self._created_at = time.monotonic()
        self._parts_at = 0.0
        """Time of the last check for parts of training runs."""
        self._add_followers()

    # Following the runs

    def follow(self) -> None:
        """Follow the runs until `close` is called."""
        due = dict.fromkeys(self._followers, 0.0)  # the time of each follower's next update
        while not self._closed.is_set():
            now = time.monotonic()
            if now - self._parts_at >= PARTS_SECONDS:
                self._add_followers()
            for run_id, follower in list(self._followers.items()):
                if due.get(run_id, 0.0) <= now and not self._closed.is_set():
                    due[run_id] = follower.update() + time.monotonic()
            states = [follower.snapshot.state for follower in self._followers.values()]
            if all(state and (not state["reading"] or state["games"]["count"]) for state in states):
                self._has_games.set()
            if not any(state.get("reading", True) for state in states):
                self._settled.set()
            self._closed.wait(max(0.0, min(min(due.values()) - time.monotonic(), PARTS_SECONDS)))
        for follower in list(self._followers.values()):
            follower.close()

    def _add_followers(self) -> None:
        """Add followers for the requested runs, and for the parts of training runs that have started."""
        self._parts_at = time.monotonic()
        for folder in self._requested:
            self._follower(folder)
            try:
                if not folder.manifest().has_parts or folder.name is not None:
                    continue
            except NipRunError:
                continue  # its follower reports the problem
            for part in Results.of(folder).parts_of(folder.run_id):
                self._follower(part)

    def _follower(self, folder: RunFolder) -> Follower:
        """Return the follower of a run; create it if it does not exist."""
        with self._followers_lock:
            if folder.run_id not in self._followers:
                self._followers[folder.run_id] = Follower(folder, len(self._followers), self._pieces)
            return self._followers[folder.run_id]

    def close(self) -> None:
        self._closed.set()

    # Serving the pages

    def page(self) -> bytes:
        """Return the page in its current state. It is rendered again only if a run has changed."""
        self._has_games.wait(FIRST_SECONDS)
        self._settled.wait(max(0.0, self._created_at + SETTLE_SECONDS - time.monotonic()))
        with self._page_lock:
            followers = list(self._followers.values())
            runs = [follower.snapshot for follower in followers]
            versions = [
                (run.generation, run.games.about["count"], run.state.get("standing"), analysis_files(follower.folder))
                for run, follower in zip(runs, followers, strict=True)
            ]
            if self._page[0] != versions:
                self._page = versions, as_index(self._site(followers))
            return self._page[1]

    def _site(self, followers: Sequence[Follower]) -> Site:
        """Build the pages of the followed runs, with comparisons once all runs are done."""
        by_id = {follower.folder.run_id: follower for follower in followers}

        def collect(folder: RunFolder, _: str, __: Plan) -> CollectedGames:
            follower = by_id.get(folder.run_id) or self._follower(folder)
            return follower.collect()

        def site_of(some_followers: Sequence[Follower]) -> Site:
            folders = [follower.folder for follower in some_followers]
            site = runs_site(folders, self._pieces.store, collect)
            are_done = all(follower.snapshot.state.get("standing") == "done" for follower in some_followers)
            requested_ids = {folder.run_id for folder in self._requested}
            requested = [folder for folder in folders if folder.run_id in requested_ids]
            return _with_comparisons(site, requested, self._pieces.store) if are_done else site

        try:
            site = site_of(followers)
        except NipRunError:
            site = _site_with_errors(followers, site_of)
        live = {"poll": POLL_MS, "runs": list(by_id)}
        return replace(site, about={**site.about, "live": live, "notes": "notes"})

    def state(self) -> bytes:
        """Return the state of the runs as JSON, for the script of the page."""
        return orjson.dumps({"format": 1, "runs": [run.snapshot.state for run in list(self._followers.values())]})

    def piece(self, name: str) -> bytes | None:
        """Return a piece of data by its name, or None if it does not exist.

        Raises:
            RunError: the notes or analyses of a run cannot be read.
        """
        for follower in list(self._followers.values()):
            if name == notes_name(follower.slug):
                return compress_json([note.to_json() for note in follower.notes.all()])
            if name == analyses_name(follower.slug):
                return compress_json(analyses_data(follower.folder))
        return self._pieces.get(name)

    def policy(self) -> str:
        """Return the content security policy of all pages."""
        return policy(connects=True)

    def post(self, name: str, data: Mapping[str, object]) -> dict[str, object] | None:
        """Save a note, or remove the note `removes`, and return the saved record; None if `name` is not "notes".

        Raises:
            UsageError: the data is not a note, or the note's run is not on this page.
            RunError: the note cannot be saved.
        """
        if name != "notes":
            return None
        follower = self._followers.get(str(data.get("run")))
        if follower is None:
            raise UsageError("the note belongs to a run that this page does not show; open the page of that run")
        removed_id, replaces, rollout_id = data.get("removes"), data.get("replaces"), data.get("rollout_id")
        if isinstance(removed_id, str):
            follower.notes.remove(removed_id)
            return {"removes": removed_id}
        text, tags = data.get("text", ""), data.get("tags", [])
        if not isinstance(text, str) or not isinstance(tags, list) or not isinstance(rollout_id, str | None):
            raise UsageError(
                "a note needs `text` (a text), `tags` (a list) and `rollout_id` (the id of a game, or null)"
            )
        return follower.notes.write(
            text, tags, rollout_id=rollout_id, replaces=replaces if isinstance(replaces, str) else None
        ).to_json()


def _with_comparisons(site: Site, folders: Sequence[RunFolder], store_piece: StorePiece) -> Site:
    """Add comparisons of the runs to a site of finished runs."""
    comparisons = compare_runs(folders, store_piece)
    links = [*site.links, *([comparisons.entry] if comparisons.entry else [])]
    about = {**site.about, "compares": comparisons.about}
    return replace(site, links=links, sections=[*site.sections, *comparisons.sections], about=about)


def _site_with_errors(followers: Sequence[Follower], site_of: Callable[[Sequence[Follower]], Site]) -> Site:
    """Return a site with the pages of readable runs, and an error message for each other run."""
    working: list[Follower] = []
    error_sections: list[Section] = []
    for follower in followers:
        try:
            site_of([follower])
            working.append(follower)
        except NipRunError as error:
            html = Markup('<h2>{}</h2>\n<p class="why">{}</p>').format(
                mark_hidden(follower.folder.run_id), mark_hidden(str(error))
            )
            error_sections.append(Section(f"run/{follower.folder.run_id}", html))
    links = [(section.route, section.route.removeprefix("run/")) for section in error_sections]
    if not working:
        title = " · ".join(follower.folder.run_id for follower in followers)
        return Site(title, links, error_sections, {"format": 1, "runs": []})
    site = site_of(working)
    return replace(site, links=[*site.links, *links], sections=[*site.sections, *error_sections])
