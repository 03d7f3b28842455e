"""Plans runs that judge an earlier run's debates again, for `nip-run rejudge` and `runner.rejudge`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from runner.base.errors import SpecError, UsageError
from runner.documents.source_tree import ProjectTree
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import sweep_problems
from runner.runs.finished.debates import build_games_plan, check_has_games
from runner.spec.components import FindComponent
from runner.spec.loader import Overrides, load_saved, load_specs
from runner.spec.model_sources import FindRun
from runner.spec.run_names import SAVED_SPEC

SUFFIX = "-rejudged"
MAX_NAME_LENGTH = 80

WhichVerdicts = Literal["last", "each"]
"""The turns of the judge where it gives a verdict on a debate.

`last`: only the turn where the first judge decided or, if it did not decide, its last turn. `each`: also all earlier
turns.
"""


def plan_rejudging(
    folder: RunFolder, overrides: Overrides, verdict: WhichVerdicts, find_run: FindRun, find_component: FindComponent
) -> list[Plan]:
    """Return the plans that judge a run's debates again: one, or one for each point of a sweep in the overrides.

    Raises:
        UsageError: the run is a training run or a shard, or an override sets a key that judging does not use.
        SpecError: the specs have mistakes; the error lists all of them.
    """
    manifest = folder.manifest()
    if manifest.shard is not None:
        raise UsageError(
            f"{manifest.run_id} is one of {manifest.shard.of} shards of a run: merge them with nip-run merge, and "
            "judge the merged run"
        )
    check_has_games(manifest)
    _check_overrides(overrides)
    specs = load_specs(
        _spec_content(folder, verdict), overrides, find_run, find_component, tree=ProjectTree.of(folder.spec)
    )
    if any(spec.rejudged is None for spec in specs):
        raise UsageError("the command's argument sets rejudge.run; remove rejudge.run from the overrides")
    plans = [build_games_plan(spec) for spec in specs]
    if problems := list(sweep_problems(str(folder.path), plans)):
        raise SpecError(problems)
    return plans


def _check_overrides(overrides: Overrides) -> None:
    """Check that overrides set only keys that judging uses.

    Raises:
        UsageError: an override sets another key.
    """
    for override in [overrides] if isinstance(overrides, str) else overrides:
        key = str(override).lstrip("+~").partition("=")[0]
        if key.partition(".")[0] in ("training", "fine_tune"):
            raise UsageError(f"{override}: judging debates again trains nothing; remove this override")
        if key.startswith("until."):
            raise UsageError(
                f"{override}: the new run does not copy `until` from the first run; set all of its keys: until={{...}}"
            )


def _spec_content(folder: RunFolder, verdict: WhichVerdicts) -> Mapping[str, object]:
    """Return the content of the spec that judges a run's debates again."""
    path = folder.path.absolute()
    saved = load_saved(folder.spec).experiment
    name = saved.name if saved.rejudge is not None else saved.name[: MAX_NAME_LENGTH - len(SUFFIX)] + SUFFIX
    reset_keys = {key: None for key in ("training", "fine_tune", "until") if getattr(saved, key, None) is not None}
    return {
        "extends": str(path / SAVED_SPEC),
        "name": name,
        "kind": "benchmark",
        "benchmark": saved.benchmark or saved.name,
        **reset_keys,
        "rejudge": {"run": str(path), "verdict": verdict},
    }
