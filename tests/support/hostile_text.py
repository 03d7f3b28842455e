"""A run whose records are full of what a stranger may write, from a server and from a manifest."""

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
from tests.support.runs import played
from tests.support.servers.client import Loopback, running


def in_file(text: str) -> str:
    """A payload as a dataset's file can hold it: no half of a pair."""
    return text.encode("utf-8", "replace").decode()


def dataset_file(folder: Path) -> Path:
    """A datapoint for each payload, which stands in its id, its group, and in the columns' names and values."""
    texts = list(map(in_file, PAYLOADS.values()))
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
    """A spec whose every free text is a payload, on a server whose every answer is one (`servers/hostile.py`)."""
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
    for part, words in (("confidence", "{{ confidence_marker }} 0.7"), ("last_round", "{{ accept }}")):
        (prompts / f"verifier.{part}.jinja").write_text(words, "utf-8")
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
    """A run played on that server, through to its journal and tables: its folder."""
    with running(Loopback, "hostile") as server:
        played(spec_file(folder, server.base_url), folder / "results", run_id="hostile")
    return folder / "results" / "runs" / "hostile"


def _with_agents(one: Manifest, key: str, text: str) -> Manifest:
    return replace(one, agents=tuple(cast("AgentRow", {**row, key: text}) for row in one.agents))


RELEASE = ("reference", "owner", "name", "version", "manifest_sha256")

MANIFEST: dict[str, Callable[[Manifest, str], Manifest]] = {
    "name of a run": lambda one, text: replace(one, name=text),
    "benchmark": lambda one, text: replace(one, benchmark=text),
    "protocol": lambda one, text: replace(one, protocol=text),
    "version": lambda one, text: replace(one, version=text),
    "why it stopped": lambda one, text: replace(one, why_stopped=text),
    "agent's name": lambda one, text: _with_agents(one, "agent", text),
    "provider": lambda one, text: _with_agents(one, "provider", text),
    "model": lambda one, text: _with_agents(one, "model", text),
    "model group": lambda one, text: _with_agents(one, "model_group", text),
    "base model": lambda one, text: _with_agents(one, "base_model", text),
    "role": lambda one, text: _with_agents(one, "role", text),
    "commit": lambda one, text: replace(one, git_commit=text),
    "python": lambda one, text: replace(one, python=text),
    "began": lambda one, text: replace(one, started_at=text),
    "ended": lambda one, text: replace(one, finished_at=text),
    "release it is from": lambda one, text: replace(one, got_from=dict.fromkeys(RELEASE, text)),
    "release it reproduces": lambda one, text: replace(one, reproduces=dict.fromkeys(RELEASE, text)),
    "point of a sweep": lambda one, text: replace(one, point={text: text}),
    "source": lambda one, text: replace(one, sources={"spec": {"url": text, "path": text, "commit": text}}),
}  # fmt: skip
"""How a manifest says a text in each place that it has for one; with hashes that are not its files' it is refused."""

SHOWN_OF_A_MANIFEST = ("benchmark", "protocol", "version", "why it stopped", "point of a sweep", "source")
"""Those that the page of a run shows; what its plan says too, such as models, it takes from there."""


def with_manifest(run: Path, into: Path, text: str) -> Path:
    """A run whose manifest and metrics have a text in every place, each after the place's name."""
    copytree(run, into)
    (into / "SHA256SUMS").unlink(missing_ok=True)
    folder = RunFolder(into)
    manifest = folder.manifest()
    for place, said in MANIFEST.items():
        manifest = said(manifest, f"{place}: {in_file(text)}")
    folder.write_manifest(replace(manifest, status=Status.FAILED))
    metrics = json.loads(folder.metrics.read_text("utf-8"))
    for row in metrics["metrics"][5:]:
        row["metric"] = f"{row['metric']}: {in_file(text)}"
    metrics["outcomes"][f"outcome: {in_file(text)}"] = 1
    folder.metrics.write_text(json.dumps(metrics), "utf-8")
    return into
