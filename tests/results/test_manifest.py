"""Manifests of every version: read and written again byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from runner.base.errors import RunError
from runner.base.storage.atomic_files import read_json
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, ReplaySource, Status
from runner.results.provenance.manifest_writer import updated_manifest
from runner.rollouts.plan import Plan
from runner.spec.loader import load_spec
from tests.support.runs import run_spec
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec

STARTED: dict[str, Any] = {
    "run_id": "tiny-0123456789", "name": "tiny", "kind": "benchmark", "benchmark": "tiny/v1", "protocol": "nip",
    "status": "running", "seed": 7, "point": {"seed": 7}, "identity": "a1", "game_sha256": "b2", "spec_sha256": "c3",
    "prompts_sha256": {"prover": "d4"}, "protocol_sha256": "e5", "dataset_sha256": "f6",
    "dataset_source_sha256": "a7", "dataset_selection": {"split": None, "limit": 3}, "replayed_sha256": {},
    "version": "0.1.0", "python": "3.11.2", "git_commit": None, "git_dirty": None, "parent_run_id": None,
    "iteration": None,
    "agents": [{"agent": "prover", "role": "prover", "model_group": "m", "provider": "dummy", "model": "dummy",
                "base_model": "dummy"}],
    "started_at": "2026-11-21T20:24:03Z", "finished_at": None,
}  # fmt: skip
GAMES = {**STARTED, "replay_of": ["other", 2], "cache": None}
INTERRUPTED = {
    **GAMES, "status": "interrupted", "finished_at": "2026-11-21T20:24:04Z", "rollouts": 1, "completions": 4,
    "failed_calls": 2, "cost_usd": None,
}  # fmt: skip
DONE = {
    **GAMES, "status": "done", "finished_at": "2026-11-21T20:24:04Z", "rollouts": 3, "completions": 12,
    "prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 0, "failed_calls": 2, "cost_usd": None,
    "cost_usd_at_most": None, "transport_failed": 0,
    "answers_from": {}, "journal": "0123456789abcdef",
}  # fmt: skip
TRAINING = {
    **STARTED,
    "kind": "training",
    "status": "done",
    "finished_at": "2026-11-21T20:24:04Z",
    "training": {"m": "x"},
}
LATER = {**DONE, "unknown": 1, "recorded": [2], "carbon": {"grams": 3}}
EARLY = {
    name: value
    for name, value in DONE.items()
    if name
    not in (
        "point",
        "replayed_sha256",
        "replay_of",
        "cache",
        "failed_calls",
        "cost_usd_at_most",
        "transport_failed",
        "answers_from",
        "journal",
    )
}
WRITTEN = {
    "started": STARTED, "games": GAMES, "interrupted": INTERRUPTED, "done": DONE, "training": TRAINING, "later": LATER,
    "early": EARLY,
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_manifest_is_written_byte_for_byte_as_it_was_read(name: str) -> None:
    written = orjson.dumps(WRITTEN[name])
    assert orjson.dumps(Manifest.from_json(orjson.loads(written)).to_json()) == written


def test_manifest_fields_have_types() -> None:
    manifest = Manifest.from_json(DONE)
    assert manifest.status is Status.DONE
    assert manifest.replay_of == ReplaySource("other", 2)
    assert isinstance(manifest.agents, tuple)


def test_fields_missing_in_an_early_version_are_unknown() -> None:
    early = Manifest.from_json(EARLY)
    assert (early.point, early.replayed_sha256, early.replay_of, early.cache) == ({}, None, None, None)
    assert (early.failed_calls, early.cost_usd_at_most, early.transport_failed) == (None, None, None)


def test_new_field_is_written_after_the_others() -> None:
    grown = replace(Manifest.from_json(DONE), training={"m": "trained"}).to_json()
    assert list(grown) == [*DONE, "training"]
    assert grown == {**DONE, "training": {"m": "trained"}}


def test_an_unknown_price_is_written_as_null() -> None:
    ended = Manifest.from_json(GAMES).ended(Status.FAILED, rollouts=0, completions=0, failed_calls=1, cost_usd=None)
    assert list(ended.to_json()) == list(INTERRUPTED)
    assert ended.to_json()["cost_usd"] is None
    assert ended.finished_at is not None


@pytest.mark.parametrize("missing", ["run_id", "status", "identity", "agents", "started_at"])
def test_manifest_without_a_required_field_is_refused(tmp_path: Path, missing: str) -> None:
    folder = RunFolder(tmp_path)
    folder.manifest_path.write_text(json.dumps({name: value for name, value in DONE.items() if name != missing}))
    with pytest.raises(RunError, match=r"manifest\.json is not a manifest of nip-run"):
        folder.manifest()
    assert "left out" in (folder.damage() or "")


@pytest.mark.parametrize("written", ["[]", "3", '{"status": "done"}', json.dumps({**DONE, "status": "odd"})])
def test_json_that_is_not_a_manifest_is_refused(tmp_path: Path, written: str) -> None:
    folder = RunFolder(tmp_path)
    folder.manifest_path.write_text(written)
    with pytest.raises(RunError, match=r"is not a manifest of nip-run|is not a JSON object"):
        folder.manifest()


def test_running_manifest_without_a_process_counts_as_interrupted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.manifest_path.write_text(json.dumps(GAMES))
    assert folder.manifest().status is Status.INTERRUPTED


def test_resumed_run_keeps_its_start_time_version_and_unknown_fields(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    first = run_spec(path, tmp_path / "results", run_id="mine").folder.manifest()
    started = replace(first, started_at="2020-01-01T00:00:00Z", version="0.0.1", unknown={"carbon": 3})
    resumed = updated_manifest(started, Plan(load_spec(path, ["dataset.limit=1"])))
    assert (resumed.started_at, resumed.version, resumed.unknown) == (started.started_at, "0.0.1", {"carbon": 3})
    assert (resumed.status, resumed.finished_at, resumed.rollouts) == (Status.RUNNING, None, None)
    assert resumed.spec_sha256 != started.spec_sha256


@pytest.mark.full
def test_benchmark_and_training_manifests_keep_the_field_order_of_0_1_0(tmp_path: Path) -> None:
    games = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    assert list_fields(games) == ["format", *DONE]
    training = run_training(training_spec(tmp_path / "t", training={"iterations": 1}), tmp_path / "results").folder
    assert [fact for fact in list_fields(training) if fact != "cache"] == ["format", *TRAINING]
    part = RunFolder(training.path.with_name(f"{training.run_id}-i0"))
    assert list_fields(part) == ["format", *DONE, "training"]


def list_fields(folder: RunFolder) -> list[str]:
    """Return the facts of a manifest without those that runs of 0.1.0 did not have."""
    facts = list(json.loads(folder.manifest_path.read_text()))
    assert "sources" in facts
    return [fact for fact in facts if fact not in ("sources", "prices")]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("agents", ["x"]),
        ("agents", [{"agent": "p"}]),
        ("started_at", None),
        ("point", 7),
        ("rollouts", "many"),
        ("status", "odd"),
    ],
)
def test_manifest_with_a_field_of_the_wrong_type_is_refused(tmp_path: Path, fact: str, value: object) -> None:
    folder = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    data = json.loads(folder.manifest_path.read_text())
    folder.manifest_path.write_text(json.dumps({**data, fact: value}))
    assert "is not a manifest of nip-run" in (folder.damage() or "")
    results = Results(tmp_path / "results")
    assert list(results.runs()) == []
    assert results.board.rebuild() == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("version", ["x", None, True, -1])
def test_invalid_format_version_is_reported_as_damage(tmp_path: Path, version: object) -> None:
    folder = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    data = json.loads(folder.manifest_path.read_text())
    folder.manifest_path.write_text(json.dumps({**data, "format": version}))
    assert "is damaged: its format cannot be" in (folder.damage() or "")


def test_metrics_file_without_a_mapping_is_reported_as_damaged(tmp_path: Path) -> None:
    folder = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    folder.metrics.write_text("5")
    with pytest.raises(RunError, match="is not a JSON object"):
        read_json(folder.metrics)
