"""A training run, published by its command with its parts and its models, comes back whole and follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.documents.releases.reference import parse
from runner.registry.fetched_release import get
from runner.registry.transports.locations import connect
from runner.registry.verification.verify import find_folder_problems
from tests.support.processes import nip_run_here


@pytest.mark.gate
def test_a_training_run_is_published_with_its_parts_and_models_and_got_back(
    trained_results: Path, tmp_path: Path
) -> None:
    words = ("--results", trained_results, "--to", "registry", "--as", "acme", "--licence", "MIT", "--force", "--json")
    done = nip_run_here("publish", "learn", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = {row["reference"]: row["sha256"] for row in json.loads(done.stdout)["releases"]}
    runs = [path.name.lower() for path in (trained_results / "runs").glob("learn*")]
    parent = "run/acme/learn@1"
    assert {name for name in sent if name.startswith("run/")} == {f"run/acme/{run}@1" for run in runs}
    assert len([name for name in sent if name.startswith("model/")]) == 2  # of the prover and of the verifier
    assert list(sent)[-1] == parent, "what it links is there before it"

    with connect(str(tmp_path / "registry")) as registry:
        for number, (name, sha256) in enumerate(sent.items()):
            found = get(registry, parse(name), tmp_path / f"got{number}")
            assert (found.sha256, found.notes, list(find_folder_problems(found.folder))) == (sha256, (), []), name
    linked = {link.release: link.sha256 for link in found.release.links if link.role in ("part", "output")}
    assert linked == {name: sha256 for name, sha256 in sent.items() if name != parent}

    followed = nip_run_here("reproduce", parent, "--from", "registry", cwd=tmp_path)
    assert (followed.returncode, "the chain of its models follow" in followed.stdout) == (0, True), followed.stdout
