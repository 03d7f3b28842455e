"""Drafts of releases of runs, built independently of the program, which the tests compare with its drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.documents.releases.manifest import FileSource, Release
from runner.documents.releases.reference import Kind
from runner.registry.draft import Draft
from tests.support.files import parquet_rows

PINNED = {
    part: FileSource(repository="https://example.org/acme/specs.git", commit="0" * 40, path=f"{part}.yaml", clean=True)
    for part in ("spec", "prompts", "protocol", "dataset")
}


def build_reference_draft(run: Path, *, owner: str = "acme", licence: str | None = "MIT", **changes: Any) -> Draft:
    """Build a draft from a run folder: its files under `data/`, its rollouts as JSON lines, and the spec as written."""
    manifest = json.loads((run / "manifest.json").read_bytes())
    names = ["spec.yaml", "manifest.json", "journal.jsonl", "metrics.json"]
    paths = [run / name for name in names] + sorted(p for p in (run / "inputs").rglob("*") if p.is_file())
    contents: dict[str, bytes | Path] = {f"data/{path.relative_to(run).as_posix()}": path for path in paths}
    for name in ("manifest.json", "metrics.json", "spec.yaml"):
        contents[f"data/{name}"] = (run / name).read_bytes()
    rows = parquet_rows(run / "rollouts.parquet")
    contents["data/rollouts.jsonl"] = b"".join(json.dumps(_plain(row)).encode() + b"\n" for row in rows)
    models = {row["agent"]: row["model"] for row in manifest["agents"]}
    contents["README.md"] = f"# {run.name}\n\nPlayed with {models}, run {manifest['identity']}.\n".encode()
    contents["environment.lock"] = b"# Python 3.11\norjson==3.11.4\n"
    contents["spec.yaml"] = b"extends: [data/spec.yaml]\n"
    written = run.parents[2] / "spec.yaml"
    if written.is_file():
        contents["written/spec.yaml"] = written.read_bytes()
    release = Release(
        kind=Kind.RUN,
        owner=owner,
        name=run.name.lower(),
        version="1",
        licence=licence,
        identity={"run": manifest["identity"], "game": manifest["game_sha256"], "spec": manifest["spec_sha256"]},
        sources=PINNED,
        facts={"run_id": run.name, "kind": manifest["kind"], "models": models, "status": manifest["status"]},
    )
    return Draft(Release(**{**vars(release), **changes}), contents)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose nested columns, which the table stores as JSON text, are parsed."""
    nested = ("rewards", "votes", "verdicts")
    return row | {name: json.loads(row[name]) for name in nested if row[name] is not None}
