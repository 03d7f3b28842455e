"""Baselines of systems: a run by its name, or the runs of a protocol with the same task and verifier model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from runner.base import package_data
from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean
from runner.results.comparison.systems import System, load_system
from runner.results.default_folder import results_option_text
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.rows import fixed_verdicts_of
from runner.results.manifest import Status, verifiers_of
from runner.results.saved_spec import saved_value
from runner.results.tasks import Task, describe_task_difference


def find_baseline(name: str, system: System, results: Results) -> System:
    """Return the baseline of `system`: the comparable runs of protocol `name`, or else the runs with this name.

    All comparable runs of the protocol are pooled. They must have the same game.

    Raises:
        UsageError: no run has this name and no run of this protocol is comparable, or comparable runs differ.
    """
    candidates = [
        (folder, manifest)
        for folder, manifest in results.runs_with_manifests()
        if manifest.protocol == name and not manifest.has_parts
    ]
    if not candidates:
        return _find_named_runs(name, system, results)
    task, own_paths = _task_of(system.runs[0]), {folder.path.resolve() for folder in system.runs}
    comparable = [
        (folder, manifest)
        for folder, manifest in candidates
        if manifest.status == Status.DONE and manifest.replay_of is None and manifest.rejudge_of is None
        and folder.path.resolve() not in own_paths
        and {model for _, model in verifiers_of(manifest)} == system.verifier_models
        and fixed_verdicts_of(folder) is None
        and _task_of(folder) == task
    ]  # fmt: skip
    if task is None or not comparable:
        raise _no_baseline_error(name, system, [folder for folder, _ in candidates[:5]])
    games = {manifest.game_sha256 for _, manifest in comparable}
    if len(games) > 1:
        listed = comma_join(folder.run_id for folder, _ in comparable)
        raise UsageError(
            f"runs of {len(games)} different games of protocol {name!r} are comparable with {system.name}: {listed}. "
            "Choose one: --baseline RUN"
        )
    return load_system([folder.path for folder, _ in comparable], results)


def _no_baseline_error(protocol: str, system: System, examples: Sequence[RunFolder]) -> UsageError:
    """Return the error for a protocol without a run that fits. `examples` are runs of the protocol."""
    models = comma_join(sorted(system.verifier_models)) or "none"
    existing = comma_join(folder.run_id for folder in examples)
    reasons = "; ".join(_task_differences(system.runs[0], examples))
    return UsageError(
        f"no finished run of protocol {protocol!r} has the task of {system.name} and its verifier's model ({models}); "
        f"its runs are: {existing}{reasons and f' ({reasons})'}. Play it on the same datapoints, or choose a run: "
        "--baseline RUN"
    )


def _find_named_runs(name: str, system: System, results: Results) -> System:
    """Return the baseline whose runs have these names, separated by commas.

    Raises:
        UsageError: a run does not exist. The message says whether the name is a protocol, or suggests a similar name.
    """
    try:
        return load_system(name.split(","), results)
    except UsageError as error:
        manifests = [manifest for _, manifest in results.runs_with_manifests()]
        if any(manifest.run_id.startswith(prefix) for manifest in manifests for prefix in name.split(",")):
            raise
        builtin_protocols = [path.stem for path in package_data.PROTOCOLS.glob("*.yaml")]
        if name in builtin_protocols:
            raise UsageError(
                f"{name} is a protocol without runs on the task of {system.name}: {results.path} has no run "
                "of it. Play it on the same datapoints, or choose a run: --baseline RUN"
            ) from error
        names = {name for manifest in manifests for name in (manifest.protocol, manifest.run_id)}
        hint = (
            did_you_mean(name, sorted(names.union(builtin_protocols)))
            or f"; `nip-run runs{results_option_text(results.path)}` lists the runs"
        )
        raise UsageError(f"no run and no protocol {name!r} in {results.path}{hint}") from error


def _task_differences(folder: RunFolder, others: Sequence[RunFolder]) -> Iterator[str]:
    """Yield how the tasks of other runs differ from that of a run; runs whose inputs cannot be read are left out."""
    group_by = saved_value(folder, "dataset", "group_by")
    for other in others:
        with suppress(OSError, ValueError):
            if _task_of(other) != _task_of(folder):
                groups = group_by, saved_value(other, "dataset", "group_by")
                yield f"{other.run_id}: {describe_task_difference(folder, other, groups)}"


def _task_of(folder: RunFolder) -> str | None:
    """Return the hash of a run's task; None if its inputs cannot be read."""
    with suppress(OSError, ValueError):
        return Task.of_run(folder, saved_value(folder, "dataset", "group_by")).sha256
    return None
