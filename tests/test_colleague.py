"""Two colleagues: Bea downloads, checks, reproduces, changes, compares and republishes a run that Ann published.

Each has her own home folder, and they share only the registry. Commands that play, send or download run in their own
processes. Commands that only read run in this one.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.documents.fetched_files import MARKER
from runner.documents.releases.manifest import MANIFEST, digest
from tests.support.git_repositories import git, init_bare
from tests.support.processes import nip_run, nip_run_here
from tests.support.registry_locations import LOCATIONS
from tests.support.runs import only_run

pytestmark = pytest.mark.full

PUBLIC_REPOSITORY = "https://code.example.org/ann/claims.git"
PASSED_VARIABLES = ("HF_ENDPOINT", "HF_TOKEN", "NIP_RUN_REGISTRY", "NIP_RUN_TOKEN")


@dataclass(frozen=True)
class Person:
    home: Path

    def run_command(self, *arguments: str | Path, in_process: bool = False, **variables: str) -> str:
        """Run a command in this home, which has no keys, and return its output. The command must succeed."""
        variables |= {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        variables |= {"HOME": str(self.home), "USER": self.home.name}
        if in_process:
            done = nip_run_here(*arguments, cwd=self.home, **variables)
        else:
            done = nip_run(*arguments, cwd=self.home, timeout=60.0, **variables)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def run_json_command(self, *arguments: str | Path, **variables: str) -> Any:
        return json.loads(self.run_command(*arguments, "--json", in_process=True, **variables))


def create_person(folder: Path, name: str) -> Person:
    (folder / name).mkdir()
    return Person(folder / name)


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Person:
    """A person with a run of a spec that is committed and pushed to a public repository."""
    ann = create_person(tmp_path_factory.mktemp("colleagues"), "ann")
    ann.run_command("init", in_process=True)
    (ann.home / ".gitignore").write_text("results/\n")
    git(ann.home, "init", "-q", "--initial-branch=main", ".")
    git(ann.home, "remote", "add", "origin", PUBLIC_REPOSITORY)
    git(ann.home, "config", "remote.origin.pushurl", str(init_bare(ann.home.parent / "claims.git")))
    git(ann.home, "add", "--all")
    git(ann.home, "commit", "-q", "-m", "Claims")
    git(ann.home, "push", "-q", "origin", "main")
    ann.run_command("spec.yaml", "-q")
    return ann


def publish_last_run(ann: Person, where: str, owner: str = "ann") -> dict[str, Any]:
    """Publish Ann's last run and return its release, which must be pinned."""
    document = json.loads(
        ann.run_command("publish", "last", "--to", where, "--as", owner, "--licence", "MIT", "--json")
    )
    (release,) = document["releases"]
    assert release["pinned"] is True
    details: dict[str, Any] = release
    return details


def test_colleague_downloads_checks_changes_and_republishes_a_run(ann: Person, tmp_path: Path) -> None:
    registry = {"NIP_RUN_REGISTRY": f"file:{tmp_path / 'registry'}"}
    original_release = publish_last_run(ann, registry["NIP_RUN_REGISTRY"])
    reference, run_id = original_release["reference"], only_run(ann.home / "results").name
    assert reference == f"run/ann/{run_id}@1"
    bea = create_person(tmp_path, "bea")

    download = json.loads(bea.run_command("get", reference, "theirs", "--json", in_process=False, **registry))
    folder = bea.home / "theirs"
    assert (download["sha256"], download["play"]["keys"]) == (original_release["sha256"], [])
    assert run_id in (folder / "README.md").read_text()
    assert (
        len(bea.run_json_command("show", "theirs")["rollouts"])
        == len((ann.home / "data.csv").read_text().splitlines()) - 1
    )
    assert "every hash is right" in bea.run_command("verify", "theirs", in_process=True)
    assert "follows from the transcripts" in bea.run_command("reproduce", "theirs")

    parameters = (folder / "parameters.yaml").read_text()
    edited, count = re.subn(r"(verifier:\n(?: +[^\n]*\n)*? +max_response_words: )100\b", r"\g<1>40", parameters)
    assert count == 1
    (folder / "parameters.yaml").write_text(edited)
    (played_run,) = json.loads(bea.run_command("theirs", "--json"))
    changed_run = bea.home / "results" / "runs" / played_run["run_id"]
    assert "max_response_words: 40" in (changed_run / "spec.yaml").read_text()
    compared = bea.run_command("compare", "theirs", "last", in_process=True)
    assert f"{played_run['run_id']} minus {run_id} is " in compared

    options = ("--as", "bea", "--licence", "MIT", "--force", "--json")
    (child,) = json.loads(bea.run_command("publish", "last", *options, in_process=False, **registry))["releases"]
    links = json.loads((tmp_path / "registry" / "run" / "bea" / played_run["run_id"] / "1" / MANIFEST).read_bytes())[
        "links"
    ]
    (link,) = [link for link in links if link["role"] == "child_of"]
    assert (link["release"], link["sha256"]) == (reference, original_release["sha256"])

    references = {reference, child["reference"]}
    board = json.dumps(bea.run_json_command("leaderboard", "--from", registry["NIP_RUN_REGISTRY"]))
    search_results = json.dumps(bea.run_json_command("search", "claims", **registry))
    assert all(release.removeprefix("run/") in listing for release in references for listing in (board, search_results))
    history = bea.run_json_command("history", "verifier", "--from", registry["NIP_RUN_REGISTRY"])["sessions"]
    replay = f"{run_id}-reproduced"
    releases_by_run = {row["run_id"]: (row["published"], row["replayed_by"]) for row in history}
    assert releases_by_run == {run_id: ([reference], [replay]), played_run["run_id"]: ([child["reference"]], [])}
    status = {row["run_id"]: row["notes"] for row in bea.run_json_command("status")}
    assert f"a replay of {run_id}" in status[replay]


@pytest.mark.parametrize("location_name", ["folder", "git", "hub", "server"])
def test_release_is_identical_and_reproducible_at_every_location(
    ann: Person, location_name: str, tmp_path: Path
) -> None:
    owner = "acme"  # the server's token is for this account
    draft = ann.run_json_command("publish", "last", "--as", owner, "--licence", "MIT", "--dry-run")
    bea = create_person(tmp_path, "bea")
    with LOCATIONS[location_name](tmp_path) as location:
        release = publish_last_run(ann, location, owner)
        assert release["sha256"] == draft["releases"][0]["sha256"]
        bea.run_command("get", release["reference"], "theirs", "--from", location)
    folder = bea.home / "theirs"
    assert digest((folder / MANIFEST).read_bytes()) == release["sha256"]
    assert json.loads((folder / MARKER).read_bytes())["sha256"] == release["sha256"]
    assert "follows from the transcripts" in bea.run_command("reproduce", "theirs")
    reproduced_metrics = only_run(bea.home / "results") / "metrics.json"
    original_metrics = only_run(ann.home / "results") / "metrics.json"
    assert (
        json.loads(reproduced_metrics.read_bytes())["metrics"] == json.loads(original_metrics.read_bytes())["metrics"]
    )
