"""A server with data of every kind: runs of several owners, and a competition with submissions."""

from __future__ import annotations

from pathlib import Path

from runner.documents.releases.reference import Kind, Reference
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from runner.server.settings import Settings
from tests.server.test_competitions import CUP_PATH, Contest, competition_body, write_rows
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run, wait_until
from tests.support.server_process import ServerProcess, run_server
from tests.support.server_releases import copy_bundle, run_bundle

SUBMISSIONS = 4
PUBLISHED_RUNS = (
    ("alice", "public"),
    ("bob", "public"),
    ("alice", "private"),
    ("mallory", "public"),
    ("bob", "public"),
)
"""Owner and visibility of each run. The second one is yanked, and the fourth one is hidden by an administrator."""


def populate_server(settings: Settings, scratch: Path) -> None:
    """Publish data of every kind to a server over HTTP. The runs are played in the folder `scratch`."""
    bundles = [run_bundle(scratch / f"played{seed}", seed=seed) for seed in (1, 2)]
    database_option = () if settings.database is None else ("--database", settings.database)
    with run_server(settings.folder, database=settings.database) as server:
        for number, (owner, visibility) in enumerate(PUBLISHED_RUNS):
            bundle = copy_bundle(bundles[number % 2], owner=owner, name=f"run-{number}", visibility=visibility)
            server.publish(owner, bundle)
        with server.registry("bob") as registry:
            registry.yank(Reference(Kind.RUN, "bob", "run-1", "1"), "played with the wrong key")
        process = nip_run(
            "server", "hide", settings.folder, "run/mallory/run-3@1", *database_option, cwd=scratch,
            timeout=HANG_SECONDS,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        _submit_to_competition(server, scratch)


def _submit_to_competition(server: ServerProcess, scratch: Path) -> None:
    """Create a competition, submit runs to it and wait for their scores."""
    contest = Contest(server, scratch)
    write_rows(scratch / "rows.jsonl")
    choices = PublisherChoices(owner="acme", name="claims", version="1", licence="MIT")
    server.publish("alice", build_component_draft(scratch / "rows.jsonl", Kind.DATASET, choices, None).bundle())
    body = competition_body("cup", held_out=[f"p{index}" for index in range(16)], day_limit=100)
    response = server.request("/api/v1/competitions", "POST", body, token=server.tokens["alice"])
    assert response.status == 201, response.body
    run = contest.run("first")
    for number in range(SUBMISSIONS):
        path = contest.submit("bob", "bob", run, name=f"try-{number}")
        wait_until(lambda path=path: server.request(CUP_PATH + path).json["state"] == "scored")  # type: ignore[misc]
