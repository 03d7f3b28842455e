"""A run, overrides and a choice of verdicts into the specs that have its debates judged again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from runner.base.errors import UsageError
from runner.documents.source_tree import OwnTree
from runner.results.folder import RunFolder
from runner.spec.components import FindComponent
from runner.spec.experiment import SAVED_SPEC
from runner.spec.loader import Overrides, Spec, load_all, load_saved
from runner.spec.model_sources import FindRun

SUFFIX = "-rejudged"
LONGEST_NAME = 80

WhichVerdicts = Literal["last", "each"]
"""Where the first judge decided, or had its last chance to; or at every turn up to there in which it might have."""


def rejudge_specs(
    folder: RunFolder,
    overrides: Overrides,
    verdict: WhichVerdicts,
    find_run: FindRun,
    find_component: FindComponent,
) -> list[Spec]:
    """The specs that have a run's debates judged, one for each point of a sweep in the overrides.

    Raises:
        UsageError: it is a training run; or an override is of what judging again leaves out.
        SpecError: with everything that is wrong.
    """
    manifest = folder.manifest()
    if manifest.shard is not None:
        raise UsageError(
            f"{manifest.run_id} is one of {manifest.shard.of} shards of a run: merge them, and judge that again"
        )
    if manifest.is_training_run:
        raise UsageError(
            f"{manifest.run_id} is a training run, whose games are in runs of their own: judge one of those again, "
            f"such as {manifest.run_id}-i0"
        )
    _check(overrides)
    specs = load_all(_written(folder, verdict), overrides, find_run, find_component, tree=OwnTree.of(folder.spec))
    if any(spec.rejudged is None for spec in specs):
        raise UsageError("rejudge.run is the run that is named already; leave it out of the overrides")
    return specs


def _check(overrides: Overrides) -> None:
    """Refuse what goes into a key that judging again leaves out, in words that say so."""
    for word in [overrides] if isinstance(overrides, str) else overrides:
        key = str(word).lstrip("+~").partition("=")[0]
        if key.partition(".")[0] in ("training", "fine_tune"):
            raise UsageError(f"{word}: nothing is trained where debates are judged again; leave it out")
        if key.startswith("until."):
            raise UsageError(f"{word}: the first run's `until` is not this one's; give it whole: until={{...}}")


def _written(folder: RunFolder, verdict: WhichVerdicts) -> Mapping[str, Any]:
    """What a spec file says that has a run's debates judged again."""
    path = folder.path.absolute()
    saved = load_saved(folder.spec).experiment
    name = saved.name if saved.rejudge is not None else saved.name[: LONGEST_NAME - len(SUFFIX)] + SUFFIX
    cleared = {key: None for key in ("training", "fine_tune", "until") if getattr(saved, key, None) is not None}
    return {
        "extends": str(path / SAVED_SPEC),
        "name": name,
        "kind": "benchmark",
        "benchmark": saved.benchmark or saved.name,
        **cleared,
        "rejudge": {"run": str(path), "verdict": verdict},
    }
