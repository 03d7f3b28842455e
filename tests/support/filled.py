"""A server with some of everything that it keeps, published over HTTP by several people."""

from __future__ import annotations

from pathlib import Path

from runner.documents.releases.reference import Kind, Reference
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import Naming
from runner.server.settings import Settings
from tests.server.test_competitions import CUP, Contest, wanted, write_rows
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run, until
from tests.support.served import copy_of, run_bundle
from tests.support.serving import Served, serving

SUBMISSIONS = 4
PUBLISHED = (("alice", "public"), ("bob", "public"), ("alice", "private"), ("mallory", "public"), ("bob", "public"))
"""Of each run its owner and visibility; the second is yanked, and the fourth is hidden."""


def fill(settings: Settings, beside: Path) -> None:
    """Have a server run over a folder, and all of it be published there; what is played stands in `beside`."""
    runs = [run_bundle(beside / f"played{seed}", seed=seed) for seed in (1, 2)]
    where = () if settings.database is None else ("--database", settings.database)
    with serving(settings.folder, database=settings.database) as served:
        for number, (who, visibility) in enumerate(PUBLISHED):
            made = copy_of(runs[number % 2], owner=who, name=f"run-{number}", visibility=visibility)
            served.publish(who, made)
        with served.registry("bob") as registry:
            registry.yank(Reference(Kind.RUN, "bob", "run-1", "1"), "played with the wrong key")
        done = nip_run(
            "server", "hide", settings.folder, "run/mallory/run-3@1", *where, cwd=beside, timeout=HANG_SECONDS
        )
        assert done.returncode == 0, done.stderr
        _compete(served, beside)


def _compete(served: Served, beside: Path) -> None:
    contest = Contest(served, beside)
    write_rows(beside / "rows.jsonl")
    naming = Naming(owner="acme", name="claims", version="1", licence="MIT")
    served.publish("alice", build_component_draft(beside / "rows.jsonl", Kind.DATASET, naming, None).bundle())
    asked = wanted("cup", held_out=[f"p{index}" for index in range(16)], day_limit=100)
    made = served.ask("/api/v1/competitions", "POST", asked, token=served.tokens["alice"])
    assert made.status == 201, made.body
    played = contest.run("first")
    for number in range(SUBMISSIONS):
        where = contest.submit("bob", "bob", played, name=f"try-{number}")
        until(lambda where=where: served.ask(CUP + where).json["state"] == "scored")  # type: ignore[misc]
