"""A run whose records are full of hostile texts, from the answers of a server and from a manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any, cast

from runner.results.folder import RunFolder
from runner.results.manifest import AgentRow, Manifest, Status
from tests.support.hostile_payloads import PAYLOADS
from tests.support.runs import run_spec
from tests.support.servers.client import LoopbackServer, run_loopback_server


def expected_in_file(text: str) -> str:
    """Return a payload as a dataset file can contain it: without lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def dataset_file(folder: Path) -> Path:
    """Write a dataset with a datapoint for each payload, in the id, the group, and the names and values of columns."""
    texts = list(map(expected_in_file, PAYLOADS.values()))
    rows = [
        {
            "id": f"p{number} {text[:200]}",
            "label": number % 2,
            "set": f"group {text[:200]}",
            "question": f"[P{number:02}] {text}",
            **{f"column {at} {of[:200]}": f"value {at} {text}" for at, of in enumerate(texts)},
        }
        for number, text in enumerate(texts)
    ]
    path = folder / "data <img src=x onerror=window.pwned=1>.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def spec_file(folder: Path, base_url: str) -> Path:
    """Write a spec with payloads in every text, for a server that answers with payloads (`servers/hostile.py`)."""
    system = PAYLOADS["script"] + PAYLOADS["right to left"] + PAYLOADS["ansi"]
    prompts = folder / "prompts"
    prompts.mkdir(parents=True)
    for agent in ("prover", "verifier"):
        (prompts / f"{agent}.jinja").write_text(
            f"{system}\n{{{{ question }}}}\n{{{{ accept }}}}"
            if agent == "verifier"
            else f"{system}\n{{{{ question }}}}",
            "utf-8",
        )
    for part, template in (("confidence", "{{ confidence_marker }} 0.7"), ("last_round", "{{ accept }}")):
        (prompts / f"verifier.{part}.jinja").write_text(template, "utf-8")
    model = {
        "provider": "openai",
        "model": f"model {PAYLOADS['image']}",
        "base_url": base_url,
        "logprobs": True,
        "top_logprobs": 3,
    }
    spec: dict[str, Any] = {
        "name": "hostile",
        "seed": 1,
        "benchmark": f"benchmark {PAYLOADS['svg']}",
        "dataset": {"path": dataset_file(folder).name, "group_by": "set"},
        "protocol": {"use": "nip", "max_message_rounds": 4},
        "prompts": "prompts",
        "models": {"m": model},
        "agents": {"prover": {"model": "m"}, "verifier": {"model": "m"}},
        "verdict": {"confidence": "both"},
        "retry": {
            "transient": {"first_wait": 0.001, "max_wait": 0.002, "attempts": 4}, "invalid_response": {"attempts": 3},
        },
    }  # fmt: skip
    path = folder / "spec.yaml"
    path.write_text(json.dumps(spec), "utf-8")
    return path


def hostile_run(folder: Path) -> Path:
    """Run the hostile spec with the hostile server; return the folder of the run."""
    with run_loopback_server(LoopbackServer, "hostile") as server:
        run_spec(spec_file(folder, server.base_url), folder / "results", run_id="hostile")
    return folder / "results" / "runs" / "hostile"


def _with_agents(manifest: Manifest, key: str, text: str) -> Manifest:
    return replace(manifest, agents=tuple(cast("AgentRow", {**row, key: text}) for row in manifest.agents))


RELEASE = ("reference", "owner", "name", "version", "manifest_sha256")

MANIFEST: dict[str, Callable[[Manifest, str], Manifest]] = {
    "name of a run": lambda manifest, text: replace(manifest, name=text),
    "benchmark": lambda manifest, text: replace(manifest, benchmark=text),
    "protocol": lambda manifest, text: replace(manifest, protocol=text),
    "version": lambda manifest, text: replace(manifest, version=text),
    "why it stopped": lambda manifest, text: replace(manifest, why_stopped=text),
    "agent's name": lambda manifest, text: _with_agents(manifest, "agent", text),
    "provider": lambda manifest, text: _with_agents(manifest, "provider", text),
    "model": lambda manifest, text: _with_agents(manifest, "model", text),
    "model group": lambda manifest, text: _with_agents(manifest, "model_group", text),
    "base model": lambda manifest, text: _with_agents(manifest, "base_model", text),
    "role": lambda manifest, text: _with_agents(manifest, "role", text),
    "commit": lambda manifest, text: replace(manifest, git_commit=text),
    "python": lambda manifest, text: replace(manifest, python=text),
    "began": lambda manifest, text: replace(manifest, started_at=text),
    "ended": lambda manifest, text: replace(manifest, finished_at=text),
    "release it is from": lambda manifest, text: replace(manifest, got_from=dict.fromkeys(RELEASE, text)),
    "release it reproduces": lambda manifest, text: replace(manifest, reproduces=dict.fromkeys(RELEASE, text)),
    "point of a sweep": lambda manifest, text: replace(manifest, point={text: text}),
    "source": lambda manifest, text: replace(manifest, sources={"spec": {"url": text, "path": text, "commit": text}}),
}  # fmt: skip
"""Functions that put a text into a field of a manifest, by field. Hashes are left out: wrong ones are refused."""

SHOWN_MANIFEST_FIELDS = ("benchmark", "protocol", "version", "why it stopped", "point of a sweep", "source")
"""The fields that the page of a run shows from the manifest. The page takes others, such as models, from the plan."""


def release_with_manifest(run: Path, copy: Path, text: str) -> Path:
    """Copy a run, and put a text into every field of its manifest and its metrics, after the name of the field."""
    copytree(run, copy)
    (copy / "SHA256SUMS").unlink(missing_ok=True)
    folder = RunFolder(copy)
    manifest = folder.manifest()
    for field, change in MANIFEST.items():
        manifest = change(manifest, f"{field}: {expected_in_file(text)}")
    folder.write_manifest(replace(manifest, status=Status.FAILED))
    metrics = json.loads(folder.metrics.read_text("utf-8"))
    for row in metrics["metrics"][5:]:
        row["metric"] = f"{row['metric']}: {expected_in_file(text)}"
    metrics["outcomes"][f"outcome: {expected_in_file(text)}"] = 1
    folder.metrics.write_text(json.dumps(metrics), "utf-8")
    return copy
