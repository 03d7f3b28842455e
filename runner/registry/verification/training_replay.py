"""Replays a published training run for `nip-run reproduce`.

The parts of a training run are runs: the training games of each iteration, and the tests. Each part is replayed. Its
models must be those that existed after the previous iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.base.errors import Interrupted, NipRunError, ReleaseError
from runner.base.storage.atomic_files import read_json
from runner.base.storage.strict_json import is_same
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind, Reference, parse_reference
from runner.registry.fetched_release import FetchedRelease
from runner.registry.release_errors import describe_error
from runner.registry.transports.registry import Registry
from runner.registry.verification.replay import ReplayResult, replay_run
from runner.registry.verification.reproducibility import check_intact, fetch_into_results
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest
from runner.results.metric_definitions import RANKING_METRIC
from runner.runs.finished.reconstruction import saved_plan
from runner.training.plan import part_run_id
from runner.training.stage_log import read_stages
from runner.training.stages import GamesPlayed, ModelSwitch, Stages, TestPlayed


@dataclass(frozen=True)
class TrainingReplayResult:
    """The result of replaying a published training run."""

    parts: tuple[ReplayResult, ...]
    errors: tuple[str, ...]
    """Descriptions of parts that could not be replayed or do not match. Errors within a part are in its own result."""

    @property
    def has_errors(self) -> bool:
        return bool(self.errors) or any(part.errors for part in self.parts)


def replay_training(fetched: FetchedRelease, registry: Registry, results: Results) -> TrainingReplayResult:
    """Replay all parts of a training run, and check the models that played them.

    If a part is missing or cannot be replayed, this is one of the errors, and the other parts are still replayed.

    Raises:
        ReleaseError: a file of the training run was changed.
        Interrupted: a signal stopped a replay.
    """
    run = fetched.run
    assert run is not None
    check_intact(fetched)
    stages = read_stages(run.path, run.manifest().identity)
    errors: list[str] = []
    parts: dict[str, ReplayResult] = {}
    for link in fetched.release.links:
        if link.role != "part" or link.release is None:
            continue
        try:
            part = _replay_part(link, registry, results)
            parts[_run_of(part).run_id] = part
        except Interrupted:
            raise
        except NipRunError as error:
            errors.append(f"part {link.release}: {error}")
        except Exception as error:  # noqa: BLE001 - a malformed part must not stop the others
            errors.append(f"part {link.release}: {describe_error(error)}")
    errors += find_model_differences(run, stages, {run_id: _run_of(part).manifest() for run_id, part in parts.items()})
    errors += _find_test_differences(run, stages, parts)
    return TrainingReplayResult(tuple(parts.values()), tuple(errors))


def _run_of(part: ReplayResult) -> RunFolder:
    assert part.fetched.run is not None
    return part.fetched.run


def _replay_part(link: ReleaseLink, registry: Registry, results: Results) -> ReplayResult:
    """Download the part that a training run links to, and replay it.

    Raises:
        ReleaseError: the registry has another part.
        NipRunError: the part is missing, or cannot be replayed.
    """
    reference = parse_reference(link.release or "", Kind.RUN)
    assert isinstance(reference, Reference)
    entry = registry.find(reference)
    if link.sha256 is not None and entry.sha256 != link.sha256:
        raise ReleaseError(
            f"the registry has sha256:{entry.sha256[:12]}, but the training run links sha256:{link.sha256[:12]}"
        )
    return replay_run(fetch_into_results(registry, entry, results), results)


def find_model_differences(run: RunFolder, stages: Stages, parts: Mapping[str, Manifest]) -> Iterator[str]:
    """Yield a message for each part that is missing, or did not use the models of the previous iteration."""
    model_of_group = {name: settings.name for name, settings in saved_plan(run).spec.experiment.models.items()}
    manifest = run.manifest()
    models_after = {record.iteration: record.models for record in stages.find_all(ModelSwitch)}
    part_ids = {(record.iteration, "training"): record.run_id for record in stages.find_all(GamesPlayed)}
    part_ids |= {(record.iteration, "benchmark"): record.run_id for record in stages.find_all(TestPlayed)}
    for iteration in range(1 + max((iteration for iteration, _ in part_ids), default=-1)):
        for kind in ("benchmark", "training"):  # the test of an iteration is played before its training games
            run_id = part_ids.get((iteration, kind))
            if run_id is None:
                continue
            if run_id != part_run_id(manifest.run_id, iteration, kind) and run_id not in parts:
                yield f"the stage log names {run_id}, which is not a part of the training run"
            elif run_id not in parts:
                yield f"part {run_id} is not published, or cannot be replayed"
            else:
                for agent, model, expected in _other_models(parts[run_id], model_of_group):
                    yield f"{run_id}: {agent} used the model {model}, but the previous iteration made {expected}"
        model_of_group |= {group: str(state["model"]) for group, state in models_after.get(iteration, {}).items()}
    for agent, model, expected in _other_models(manifest, model_of_group):
        yield f"manifest.json: the final model of {agent} is {model}, but its last iteration made {expected}"


def _other_models(manifest: Manifest, expected: Mapping[str, str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield each agent in a manifest that has another model than expected: its name, its model and the expected one."""
    for row in manifest.agents:
        expected_model = expected.get(row["model_group"])
        if row["model"] != expected_model:
            yield row["agent"], row["model"], expected_model


def _find_test_differences(run: RunFolder, stages: Stages, parts: Mapping[str, ReplayResult]) -> Iterator[str]:
    """Yield a message for each test whose accuracy in the training run's metrics differs from its part's metrics."""
    rows = read_json(run.metrics).get("tests", [])
    recorded_tests: dict[int, Any] = {row.get("iteration"): row for row in rows}
    if len(recorded_tests) < len(rows):
        yield "metrics.json: two tests are listed for the same iteration"
    for record in stages.find_all(TestPlayed):
        part = parts.get(record.run_id)
        row = recorded_tests.get(record.iteration)
        if row is None:
            yield f"metrics.json: the test before iteration {record.iteration} is missing"
            continue
        if part is None:
            continue
        part_metrics = read_json(_run_of(part).metrics)["metrics"]
        metrics_of_run = (metric for metric in part_metrics if metric["agent"] is None)
        accuracy = next(metric for metric in metrics_of_run if metric["metric"] == RANKING_METRIC)
        for name, value in row["accuracy"].items():
            if not is_same(value, accuracy.get(name)):
                yield (
                    f"metrics.json: accuracy.{name} before iteration {record.iteration}: published {value!r}, but "
                    f"{record.run_id} has {accuracy.get(name)!r}"
                )
