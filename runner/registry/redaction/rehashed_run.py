"""What hashes a model's settings, made again for settings that say no path and no address: the same run, by new names.

Where the settings come to the same hashes as before, nothing is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from runner.base.errors import ReleaseError
from runner.documents.dataclass_schema import from_plain, to_plain
from runner.models.interface import SampleKey
from runner.registry.redaction.rules import Rules
from runner.results.folder import RunFolder
from runner.results.provenance.input_files import spec_hash
from runner.rollouts.plan import Plan
from runner.runs.execution.wiring import parameters_hash
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.saved_spec import recorded_plan
from runner.spec.loader import Spec
from runner.training.plan import plan_of

T = TypeVar("T")


@dataclass(frozen=True)
class Rehashed:
    """A run's hashes by the settings that it had, and by those that are published."""

    hashes: Mapping[str, str]
    """Of its game, its identity, its spec: the old ones that are others now, each with the new one."""
    before: Plan
    after: Plan
    _parameters: Mapping[str, Mapping[str, str]] = field(repr=False)

    def asked(self, sample: SampleKey, recorded: str) -> str:
        """The hash of the parameters that a sample was asked with, in as many digits as were recorded.

        Raises:
            ReleaseError: it is none of the run's models'.
        """
        known = self._parameters[self.before.group_of(sample)]
        if known["before"] == known["after"]:
            return recorded
        if not known["before"].startswith(recorded):
            raise ReleaseError(
                f"the journal's answer for {sample.datapoint} was asked with other parameters than the spec's, so that "
                "the path in its model's name cannot be taken out"
            )
        return known["after"][: len(recorded)]

    def rollout_ids(self) -> Callable[[str], str]:
        """A rollout's id into the one that it has by the new names; to be asked for in the order of the plan.

        Of a run of any size only ids of games that have no record are held.
        """
        if self.before.game_hash == self.after.game_hash:
            return _same
        pairs, passed = zip(_ids(self.before), _ids(self.after), strict=True), dict[str, str]()

        def renamed(name: str) -> str:
            while name not in passed and (pair := next(pairs, None)) is not None:
                passed[pair[0]] = pair[1]
            return passed.pop(name, name)

        return renamed


def _same(name: str) -> str:
    return name


def _ids(plan: Plan) -> Iterator[str]:
    branches = 1 if plan.shape is None else plan.shape.branches
    for job in plan.jobs():
        if plan.shape is None:
            yield job.rollout_id
        else:
            yield from (plan.branch(job, job.number + place).rollout_id for place in range(branches))


def rehashed(folder: RunFolder, rules: Rules) -> Rehashed:
    """The hashes of the run in a folder, before and after its models' settings are cleaned.

    Raises:
        ReleaseError: its hashes change, and cannot be made again: its spec and inputs are not what was played.
        NipRunError: the folder cannot be read.
    """
    manifest, before = folder.manifest(), saved_plan(folder)
    after = before.with_spec(_cleaned(before.spec, rules))
    own = recorded_plan(before.spec, folder, plan_of)
    pairs = {
        manifest.game_sha256: (before.game_hash, after.game_hash),
        manifest.identity: (own.identity, own.with_spec(_cleaned(own.spec, rules)).identity),
    }
    hashes = {}
    for recorded, (old, new) in pairs.items():
        if old == new:
            continue
        if recorded != old:
            raise ReleaseError(
                f"{manifest.run_id}: a model's name is a path, which is not for others, and its hashes cannot be made "
                "again without it: its spec or inputs are not what was played"
            )
        hashes[recorded] = new
    old, new = spec_hash(before), spec_hash(after)
    if old != new:
        hashes[manifest.spec_sha256] = new
    return Rehashed(hashes, before, after, dict(_parameters(before, after)))


def _parameters(before: Plan, after: Plan) -> Iterator[tuple[str, Mapping[str, str]]]:
    ours, theirs = before.spec.experiment.models, after.spec.experiment.models
    for group in ours:
        yield group, {"before": parameters_hash(ours[group]), "after": parameters_hash(theirs[group])}


def _cleaned(spec: Spec, rules: Rules) -> Spec:
    """A spec by the rules that its file is cleaned by; what is taken out is counted where that is published."""
    counted = rules.taken.copy()
    said = spec.experiment
    models = {name: _by(rules, settings, "models") for name, settings in said.models.items()}
    agents = {name: _by(rules, settings, "agents") for name, settings in said.agents.items()}
    training = None if said.training is None else _by(rules, said.training, "training")
    description = rules.scalar(said.description, "description")
    rules.taken.clear()
    rules.taken.update(counted)
    cleaned = replace(said, models=models, agents=agents, training=training, description=description)
    return replace(spec, experiment=cleaned)


def _by(rules: Rules, settings: T, key: str) -> T:
    """Settings by the rules; the very same where these take nothing out."""
    plain = to_plain(settings)
    cleaned = rules.value(plain, key)
    return settings if cleaned == plain else from_plain(type(settings), cleaned)
