"""A run that is played in shards is played so by all, and none of its parts holds what is another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from runner.base.errors import RunDirectoryError, RunError, UsageError
from runner.base.storage.atomic_files import read_json
from runner.base.storage.log_lines import first_record
from runner.models.journal_records import SHARD
from runner.results.folder import RunFolder, split_part
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED
from runner.results.spec_changes import is_unchanged
from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import RunPlan
from runner.rollouts.shard_budget import Shares, wrong_shard
from runner.spec.datasets.shards import Shard

P = TypeVar("P", bound=RunPlan)

MERGED = "merged.json"
"""Beside the parts of a run that were merged: which they were."""


def shard_of(word: str, *, again: bool = False, replay: object = None, set_model: object = None) -> Shard:
    """The shard that is asked for, where nothing else is that cannot go with it.

    Raises:
        UsageError: it is no shard, or something else is; with all reasons.
    """
    wrong = []
    if again:
        wrong.append(
            "--shard: --again takes the next free name, which may be another one in each process; name the run: "
            "--run-id NAME"
        )
    if replay:
        wrong.append("--shard: a replay asks no model for what was played, and takes seconds; replay it whole")
    if set_model:
        wrong.append("--shard: --set-model is for training runs, which are not played in shards")
    try:
        shard = Shard.parse(word)
    except ValueError as error:
        wrong.append(f"--shard {error}")
    if wrong:
        raise UsageError(wrong[0]).with_notes(wrong[1:])
    return shard


def in_shard(plan: P, shard: Shard) -> P:
    """The plan of one part of a run.

    Raises:
        UsageError: the run cannot be played in such parts; with all reasons.
    """
    spec = plan.spec
    wrong = [f"--shard {shard}: {why}" for why in wrong_shard(spec.experiment, spec.dataset.datapoints, shard)]
    if wrong:
        raise UsageError(wrong[0]).with_notes(wrong[1:])
    return plan.with_spec(replace(spec, shard=shard))


def shares_of(plan: Plan) -> Shares | None:
    """What share of each limit the plan of a part has; None where it is the whole run's."""
    spec = plan.spec
    if spec.shard is None:
        return None
    return Shares(spec.experiment, spec.shard, spec.shard.sizes(spec.dataset.datapoints))


def check_shards(plan: Plan, results: Results, run_id: str) -> RunFolder | None:
    """See that a run which begins or goes on is not played otherwise; its folder where its parts were merged already.

    Raises:
        RunDirectoryError: it is played whole or in other shards, or holds the journal of another part.
    """
    whole = results.run(split_part(run_id)[0])
    parts, shard = whole.begun_parts(), plan.shard
    is_begun = whole.manifest_path.is_file()
    if shard is None:
        if parts and not is_begun:
            raise RunDirectoryError(
                f"run {whole.run_id} is played in {begun_in_words(parts)}; {_how(whole, parts[0][0])}"
            )
    elif is_begun:
        merged = _merged_from(whole)
        if merged == shard.of and _has_all(whole, plan):
            return whole
        if merged not in (None, shard.of):
            raise RunDirectoryError(
                f"run {whole.run_id} was played in {merged} shards, not in {shard.of}, and they were merged: it goes "
                f"on without --shard; or add --run-id NAME to play it in {shard.of} as a run of its own"
            )
        raise RunDirectoryError(
            f"run {whole.run_id} was begun by a process that plays all of it, or was merged and is longer now; go on "
            "without --shard, or add --run-id NAME to play it in shards as a run of its own"
        )
    elif others := [part for part in parts if part[0].of != shard.of]:
        raise RunDirectoryError(
            f"run {whole.run_id} is played in {begun_in_words(others)}, not in {shard.of}; {_how(whole, others[0][0])}"
        )
    _check_journal(results.run(run_id), shard)
    return None


def _merged_from(whole: RunFolder) -> int | None:
    """How many shards a run was merged from; None where one process played it, or that is not known any more.

    Raises:
        RunError: what is kept of the merge is damaged.
    """
    path = whole.parts / MERGED
    if not path.is_file():
        return None
    try:
        return Shard.parse(read_json(path)["parts"][0]["shard"]).of
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise RunError(
            f"{path} is damaged: it names no shard; delete it, and the run goes on without --shard"
        ) from error


def _has_all(whole: RunFolder, plan: Plan) -> bool:
    """Whether a run has all that the plan's part is to have."""
    manifest = whole.manifest()
    return manifest.status in PLAYED and manifest.identity == plan.identity and is_unchanged(whole, manifest, plan)


def _check_journal(folder: RunFolder, shard: Shard | None) -> None:
    """See that a journal which is there is this part's, by what it says itself."""
    first = first_record(folder.journal)
    said = None if first is None else first.get(SHARD)
    if first is not None and said != (None if shard is None else list(shard.pair)):
        of = "the whole run" if said is None else f"shard {'/'.join(map(str, said))}"
        ours = "the whole run" if shard is None else f"shard {shard}"
        raise RunDirectoryError(
            f"{folder.journal} is the journal of {of}, and not of {ours}; put back the file that belongs here, or move "
            "this one away"
        )


def begun_in_words(parts: Sequence[tuple[Shard, RunFolder]]) -> str:
    """Of how many shards these parts are, and which they are."""
    begun = ", ".join(str(shard) for shard, _ in parts[:8])
    return f"{parts[0][0].of} shards (begun: {begun}{', ...' if len(parts) > 8 else ''})"


def _how(whole: RunFolder, shard: Shard) -> str:
    return (
        f"go on with --shard K/{shard.of}, make one run of them with nip-run merge {whole.run_id}, or add --run-id "
        "NAME to play it as a run of its own"
    )
