"""`nip-run search`: each run once, with the facts to choose it by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.base.text import did_you_mean
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.reference import Kind
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.registry import Registry
from tests.registry.planted import publish
from tests.support.processes import nip_run_here

FACTS = {
    "run_id": "x-1", "kind": "benchmark", "benchmark": "tiny/v1", "status": "done", "models": {"a": "m", "b": "m"},
    "accuracy": {"value": 0.75, "ci_low": 0.5, "ci_high": 0.875}, "replay_of": None,
}  # fmt: skip


def make_release(name: str, *links: ReleaseLink, licence: str | None = None, **changes: Any) -> Bundle:
    facts = {**FACTS, **changes}
    release = Release(
        kind=Kind.RUN, owner="acme", name=name, version="1", licence=licence, facts=facts, links=links
    )  # fmt: skip
    return Bundle.of(release, {})


def test_misspelled_kind_gets_a_suggestion() -> None:
    assert did_you_mean("runs", Kind) == "; did you mean 'run'?"


def test_search_lists_each_run_once_with_its_key_facts(tmp_path: Path) -> None:
    registry_folder = str(tmp_path / "registry")
    reproduction = ReleaseLink(role="reproduces", release="run/acme/x-1@1", sha256="1" * 64)
    publish(
        Registry(FolderTransport(registry_folder)),
        make_release("x-1"),
        make_release("named"),
        make_release("copy", licence="MIT"),
        make_release("x-2", reproduction, run_id="x-2", models={"a": "m\nacme/fake@1"}),
        make_release("x-3", reproduction, run_id="x-3", replay_of=["x-1", None]),
        make_release("learn", ReleaseLink(role="child_of", release="run/acme/x-1@1"), run_id="learn", kind="training"),
        make_release("learn-t1", run_id="learn-t1", parent_run_id="learn", iteration=1),
        make_release("odd", replay_of="x-1"),
        make_release("odder", rejudge_of=["x-1", 1, "last"]),
    )
    process = nip_run_here("search", "--from", registry_folder, cwd=tmp_path)
    first, *rows = [line.rstrip() for line in process.stdout.splitlines()]
    assert first.split("  ")[0] == "run"
    assert " ".join(rows[0].split()) == "acme/x-1@1 acme/named@1 tiny/v1 m 0.750 [0.500, 0.875] done - -"
    descriptions = [(row.split()[0], row.rpartition("  ")[2]) for row in rows[1:]]
    assert descriptions == [
        ("acme/copy@1", "[the same run as acme/x-1@1]"),  # under another licence
        ("acme/learn@1", "[training; 1 part: --all; child of run/acme/x-1@1]"),
        ("acme/x-2@1", "[plays run/acme/x-1@1 again]"),
        ("acme/x-3@1", "[a replay of run/acme/x-1@1, without calls to models]"),
    ]
    part = nip_run_here("search", "learn-t1", "--from", registry_folder, cwd=tmp_path).stdout
    assert "[test of learn, after iteration 0]" in part
    assert [line.split(": ")[1] for line in process.stderr.splitlines()] == ["run/acme/odd@1", "run/acme/odder@1"]
    releases = json.loads(nip_run_here("search", "--from", registry_folder, "--json", cwd=tmp_path).stdout)["releases"]
    by_name = {entry["release"].removeprefix("run/acme/").partition("@")[0]: entry for entry in releases}
    assert by_name["copy"]["same_run"] == ["run/acme/x-1@1", "run/acme/named@1"]
    assert by_name["x-2"]["same_run"] == []
    assert by_name["x-2"]["links"][0]["release"] == "run/acme/x-1@1"
    assert by_name["x-3"]["facts"] == {**FACTS, "run_id": "x-3", "replay_of": ["x-1", None]}
    assert "learn-t1" in by_name
