"""A training run is published and fetched with its parts and models, and follows from its transcripts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runner.documents.releases.reference import parse_reference
from runner.registry.fetched_release import fetch_release
from runner.registry.transports.locations import connect
from runner.registry.verification.verify import find_folder_problems
from tests.support.processes import nip_run_here


@pytest.mark.full
def test_training_run_is_published_and_fetched_with_its_parts_and_models(trained_results: Path, tmp_path: Path) -> None:
    options = (
        "--results",
        trained_results,
        "--to",
        "registry",
        "--as",
        "acme",
        "--licence",
        "MIT",
        "--force",
        "--json",
    )
    done = nip_run_here("publish", "learn", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    published = {row["reference"]: row["sha256"] for row in json.loads(done.stdout)["releases"]}
    runs = [path.name.lower() for path in (trained_results / "runs").glob("learn*")]
    parent = "run/acme/learn@1"
    assert {name for name in published if name.startswith("run/")} == {f"run/acme/{run}@1" for run in runs}
    assert len([name for name in published if name.startswith("model/")]) == 2  # those of the prover and the verifier
    assert list(published)[-1] == parent, "what it links is there before it"

    with connect(str(tmp_path / "registry")) as registry:
        for number, (name, sha256) in enumerate(published.items()):
            fetched = fetch_release(registry, parse_reference(name), tmp_path / f"got{number}")
            assert (fetched.sha256, fetched.notes, list(find_folder_problems(fetched.folder))) == (sha256, (), []), name
    linked = {link.release: link.sha256 for link in fetched.release.links if link.role in ("part", "output")}
    assert linked == {name: sha256 for name, sha256 in published.items() if name != parent}

    followed = nip_run_here("reproduce", parent, "--from", "registry", cwd=tmp_path)
    assert (followed.returncode, "the chain of its models follow" in followed.stdout) == (0, True), followed.stdout


def read_links(registry: Path, role: str) -> dict[str, list[str | None]]:
    """Return the releases of a registry that have links of this role, each with the linked names."""
    manifests = [json.loads(path.read_text("utf-8")) for path in sorted(registry.rglob("release.json"))]
    linked = {
        f"{manifest['kind']}/{manifest['owner']}/{manifest['name']}@{manifest['version']}": [
            link["release"] for link in manifest["links"] if link["role"] == role
        ]
        for manifest in manifests
    }
    return {name: links for name, links in linked.items() if links}


@pytest.mark.full
def test_parts_and_models_link_the_published_name_of_their_training_run(trained_results: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_results, tmp_path / "results")
    options = ("--to", "registry", "--license", "MIT", "--force")
    done = nip_run_here("publish", "learn", *options, "--as", "acme/tr", cwd=tmp_path)
    assert (done.returncode, "is not in file:" in done.stderr) == (0, False), done.stderr
    linked = read_links(tmp_path / "registry", "parent")
    assert sorted(linked) == [
        "model/acme/learn-p@1",
        "model/acme/learn-v@1",
        "run/acme/learn-i0@1",
        "run/acme/learn-t1@1",
    ]
    assert all(parents == ["run/acme/tr@1"] for parents in linked.values())
    repeated = nip_run_here("publish", "learn-t1", *options, "--as", "acme", cwd=tmp_path)
    assert "already published with the same content" in repeated.stdout, repeated.stderr


@pytest.mark.full
def test_judge_run_links_the_published_name_of_its_debates(trained_results: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_results, tmp_path / "results")
    options = ("--to", "registry", "--license", "MIT", "--force")
    for command in (
        ("rejudge", "before", "votes=3", "--run-id", "judge", "-q"),
        ("publish", "before", *options, "--as", "acme/debates@3"),
        ("publish", "judge", *options, "--as", "acme"),
    ):
        done = nip_run_here(*command, cwd=tmp_path)
        assert (done.returncode, "is not in file:" in done.stderr) == (0, False), done.stderr
    assert read_links(tmp_path / "registry", "judges") == {"run/acme/judge@1": ["run/acme/debates@3"]}
