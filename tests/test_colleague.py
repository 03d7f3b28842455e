"""A colleague's path: a run that one published is got, read, checked, reproduced, changed, compared and published anew.

Ann and Bea have a home each, and nothing of each other's but the registry. What is played, sent and fetched is so in
processes of its own; what only reads is read in this one.
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

PUBLIC = "https://code.example.org/ann/claims.git"
PASSED_ON = ("HF_ENDPOINT", "HF_TOKEN", "NIP_RUN_REGISTRY", "NIP_RUN_TOKEN")


@dataclass(frozen=True)
class Person:
    home: Path

    def says(self, *words: str | Path, here: bool = False, **variables: str) -> str:
        """What a command prints, which must succeed, in a home without a key."""
        variables |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        variables |= {"HOME": str(self.home), "USER": self.home.name}
        if here:
            done = nip_run_here(*words, cwd=self.home, **variables)
        else:
            done = nip_run(*words, cwd=self.home, timeout=60.0, **variables)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def reads(self, *words: str | Path, **variables: str) -> Any:
        return json.loads(self.says(*words, "--json", here=True, **variables))


def person(folder: Path, name: str) -> Person:
    (folder / name).mkdir()
    return Person(folder / name)


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Person:
    """Who has played a spec that is committed, and pushed to where others can read it."""
    ann = person(tmp_path_factory.mktemp("colleagues"), "ann")
    ann.says("init", here=True)
    (ann.home / ".gitignore").write_text("results/\n")
    git(ann.home, "init", "-q", "--initial-branch=main", ".")
    git(ann.home, "remote", "add", "origin", PUBLIC)
    git(ann.home, "config", "remote.origin.pushurl", str(init_bare(ann.home.parent / "claims.git")))
    git(ann.home, "add", "--all")
    git(ann.home, "commit", "-q", "-m", "Claims")
    git(ann.home, "push", "-q", "origin", "main")
    ann.says("spec.yaml", "-q")
    return ann


def published(ann: Person, where: str, owner: str = "ann") -> dict[str, Any]:
    """Ann's run, published; it is pinned, or this would fail."""
    said = json.loads(ann.says("publish", "last", "--to", where, "--as", owner, "--licence", "MIT", "--json"))
    (release,) = said["releases"]
    assert release["pinned"] is True
    found: dict[str, Any] = release
    return found


def test_what_one_published_another_gets_checks_changes_and_publishes_as_a_child_of_it(
    ann: Person, tmp_path: Path
) -> None:
    registry = {"NIP_RUN_REGISTRY": f"file:{tmp_path / 'registry'}"}
    theirs = published(ann, registry["NIP_RUN_REGISTRY"])
    reference, run_id = theirs["reference"], only_run(ann.home / "results").name
    assert reference == f"run/ann/{run_id}@1"
    bea = person(tmp_path, "bea")

    got = json.loads(bea.says("get", reference, "theirs", "--json", here=False, **registry))
    folder = bea.home / "theirs"
    assert (got["sha256"], got["play"]["keys"]) == (theirs["sha256"], [])
    assert run_id in (folder / "README.md").read_text()
    assert len(bea.reads("show", "theirs")["rollouts"]) == len((ann.home / "data.csv").read_text().splitlines()) - 1
    assert "every hash is right" in bea.says("verify", "theirs", here=True)
    assert "follows from the transcripts" in bea.says("reproduce", "theirs")

    parameters = (folder / "parameters.yaml").read_text()
    edited, count = re.subn(r"(verifier:\n(?: +[^\n]*\n)*? +max_response_words: )100\b", r"\g<1>40", parameters)
    assert count == 1
    (folder / "parameters.yaml").write_text(edited)
    (played,) = json.loads(bea.says("theirs", "--json"))
    mine = bea.home / "results" / "runs" / played["run_id"]
    assert "max_response_words: 40" in (mine / "spec.yaml").read_text()
    compared = bea.says("compare", "theirs", "last", here=True)
    assert f"{played['run_id']} minus {run_id} is " in compared

    words = ("--as", "bea", "--licence", "MIT", "--force", "--json")
    (child,) = json.loads(bea.says("publish", "last", *words, here=False, **registry))["releases"]
    links = json.loads((tmp_path / "registry" / "run" / "bea" / played["run_id"] / "1" / MANIFEST).read_bytes())[
        "links"
    ]
    (link,) = [link for link in links if link["role"] == "child_of"]
    assert (link["release"], link["sha256"]) == (reference, theirs["sha256"])

    both = {reference, child["reference"]}
    board = json.dumps(bea.reads("leaderboard", "--from", registry["NIP_RUN_REGISTRY"]))
    found = json.dumps(bea.reads("search", "claims", **registry))
    assert all(one.removeprefix("run/") in said for one in both for said in (board, found))
    history = bea.reads("history", "verifier", "--from", registry["NIP_RUN_REGISTRY"])["sessions"]
    replay = f"{run_id}-reproduced"
    told = {row["run_id"]: (row["published"], row["replayed_by"]) for row in history}
    assert told == {run_id: ([reference], [replay]), played["run_id"]: ([child["reference"]], [])}
    status = {row["run_id"]: row["notes"] for row in bea.reads("status")}
    assert f"a replay of {run_id}" in status[replay]


@pytest.mark.parametrize("place", ["folder", "git", "hub", "server"])
def test_it_is_the_same_release_in_every_place_and_its_numbers_follow_from_each(
    ann: Person, place: str, tmp_path: Path
) -> None:
    owner = "acme"  # the server's token is for this account
    made = ann.reads("publish", "last", "--as", owner, "--licence", "MIT", "--dry-run")
    bea = person(tmp_path, "bea")
    with LOCATIONS[place](tmp_path) as where:
        theirs = published(ann, where, owner)
        assert theirs["sha256"] == made["releases"][0]["sha256"]
        bea.says("get", theirs["reference"], "theirs", "--from", where)
    folder = bea.home / "theirs"
    assert digest((folder / MANIFEST).read_bytes()) == theirs["sha256"]
    assert json.loads((folder / MARKER).read_bytes())["sha256"] == theirs["sha256"]
    assert "follows from the transcripts" in bea.says("reproduce", "theirs")
    again = only_run(bea.home / "results") / "metrics.json"
    original = only_run(ann.home / "results") / "metrics.json"
    assert json.loads(again.read_bytes())["metrics"] == json.loads(original.read_bytes())["metrics"]
