"""Recompute the hashes of a run after its settings were redacted, so that the published journal can be replayed.

Answers in a journal are identified by hashes that depend on model settings. `runner.registry.redaction.draft_redaction`
writes the new hashes. If redaction changes no setting, the hashes stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from runner.base.errors import ReleaseError
from runner.documents.dataclass_schema import from_plain, to_plain
from runner.models.interface import SampleKey
from runner.registry.redaction.rules import RedactionRules
from runner.results.folder import RunFolder
from runner.results.provenance.input_files import spec_hash
from runner.rollouts.plan import Plan
from runner.runs.execution.layer_builder import parameters_hash
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.saved_spec import recorded_plan
from runner.spec.loader import Spec
from runner.training.plan import plan_of

T = TypeVar("T")


@dataclass(frozen=True)
class RehashedRun:
    """The plans and hashes of a run before and after redaction."""

    hashes: Mapping[str, str]
    """The changed hashes, by their old values: of the game, of the run (its identity) and of the spec."""
    original_plan: Plan
    redacted_plan: Plan
    _parameters: Mapping[str, tuple[str, str]] = field(repr=False)
    """The original and the new hash of each model group's parameters."""

    def rehash_parameters(self, sample: SampleKey, recorded: str) -> str:
        """Return the new hash of a sample's model parameters, with as many digits as were recorded.

        Raises:
            ReleaseError: the recorded hash is not that of the sample's model.
        """
        original, new = self._parameters[self.original_plan.group_of(sample)]
        if original == new:
            return recorded
        if not original.startswith(recorded):
            raise ReleaseError(
                f"the journal's answer for {sample.datapoint} was requested with other parameters than those in the "
                "spec, so the path in the model's name cannot be redacted; play the run again to publish it"
            )
        return new[: len(recorded)]

    def make_rollout_renamer(self) -> Callable[[str], str]:
        """Return a function that converts the original rollout ids to new ones.

        Call this function for rollouts in the order of the plan: it computes pairs of ids one after the other, and
        stores only the pairs that the caller has skipped.
        """
        if self.original_plan.game_hash == self.redacted_plan.game_hash:
            return str
        pairs = zip(_rollout_ids(self.original_plan), _rollout_ids(self.redacted_plan), strict=True)
        skipped_ids = dict[str, str]()

        def rename(rollout_id: str) -> str:
            while rollout_id not in skipped_ids and (pair := next(pairs, None)) is not None:
                skipped_ids[pair[0]] = pair[1]
            return skipped_ids.pop(rollout_id, rollout_id)

        return rename

    def new_rollout_ids(self) -> dict[str, str]:
        """Return the new id of each rollout by its original id; empty if they stay the same."""
        if self.original_plan.game_hash == self.redacted_plan.game_hash:
            return {}
        return dict(zip(_rollout_ids(self.original_plan), _rollout_ids(self.redacted_plan), strict=True))


def _rollout_ids(plan: Plan) -> Iterator[str]:
    for job in plan.jobs():
        if plan.tree_shape is None:
            yield job.rollout_id
        else:
            numbers = range(job.number, job.number + plan.tree_shape.branches)
            yield from (plan.job_of_branch(job, number).rollout_id for number in numbers)


def rehash_run(folder: RunFolder, rules: RedactionRules) -> RehashedRun:
    """Recompute the hashes of the run in a folder for redacted model settings.

    Raises:
        ReleaseError: a hash changes, but the recorded one does not match the run's spec and inputs.
        NipRunError: the folder cannot be read.
    """
    manifest, original = folder.manifest(), saved_plan(folder)
    redacted = original.with_spec(_redact_spec(original.spec, rules))
    plan = recorded_plan(original.spec, folder, plan_of)
    changes = {
        manifest.game_sha256: (original.game_hash, redacted.game_hash),
        manifest.identity: (plan.identity, plan.with_spec(_redact_spec(plan.spec, rules)).identity),
    }
    hashes = {}
    for recorded, (old, new) in changes.items():
        if old == new:
            continue
        if recorded != old:
            raise ReleaseError(
                f"{manifest.run_id}: a private value in the model settings cannot be redacted, because the run's spec "
                "or inputs changed after the run; restore them, or play the run again"
            )
        hashes[recorded] = new
    old, new = spec_hash(original), spec_hash(redacted)
    if old != new:
        hashes[manifest.spec_sha256] = new
    old_models, new_models = original.spec.experiment.models, redacted.spec.experiment.models
    parameters = {
        group: (parameters_hash(settings), parameters_hash(new_models[group])) for group, settings in old_models.items()
    }
    return RehashedRun(hashes, original, redacted, parameters)


def _redact_spec(spec: Spec, rules: RedactionRules) -> Spec:
    """Return a spec redacted like its file. The replacements are not counted here, because the file counts them."""
    counts = rules.counts.copy()
    experiment = spec.experiment
    redacted = replace(
        experiment,
        models={name: _redact_settings(rules, settings, "models") for name, settings in experiment.models.items()},
        agents={name: _redact_settings(rules, settings, "agents") for name, settings in experiment.agents.items()},
        training=None if experiment.training is None else _redact_settings(rules, experiment.training, "training"),
        description=rules.redact_string(experiment.description, "description"),
    )
    rules.counts.clear()
    rules.counts.update(counts)
    return replace(spec, experiment=redacted)


def _redact_settings(rules: RedactionRules, settings: T, key: str) -> T:
    plain = to_plain(settings)
    redacted = rules.redact_value(plain, key)
    return settings if redacted == plain else from_plain(type(settings), redacted)
