"""Explain why a run's requests were not in the cache.

Examples:
  nip-run explain-misses RUN
  nip-run explain-misses RUN --max 20
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.package_data import is_file
from runner.base.text import shortened
from runner.cli.arguments import RUN_HELP, RenamedOption
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.models.interface import Request
    from runner.models.layers.cache import Cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help=RUN_HELP)
    add("--cache", type=Path, metavar="FILE", help="the cache to search; default: the cache that the run used")
    add("--max", type=int, default=5, metavar="N", help="number of misses to explain; default: 5")
    add("--most", type=int, dest="max", action=RenamedOption, new="--max")


def execute(args: argparse.Namespace) -> int:
    from runner.models.layers.cache import Cache, request_fields
    from runner.runs.finished.reconstruction import Reconstructor, saved_plan

    folder = args.results.find(args.run)
    recorded_cache = folder.manifest().cache
    recorded_path = folder.path / recorded_cache if recorded_cache else None
    path = _cache_file(args.cache or recorded_path)
    is_cache_of_run = recorded_path is not None and recorded_path.is_file() and path.samefile(recorded_path)
    plan = saved_plan(folder)
    models = plan.spec.experiment.models
    explanations: list[dict[str, Any]] = []
    miss_count = request_count = 0
    with closing(Reconstructor(folder, plan)) as reconstructor, closing(Cache(path, folder.run_id)) as cache:
        for request in reconstructor.requests():
            request_count += 1
            requested_fields = request_fields(request, models[request.group])
            # Entries of the cache have the id of their run, but runs in two results folders may have the same id.
            is_from_own_cache = is_cache_of_run and reconstructor.is_from_cache(request)
            if is_from_own_cache or cache.has_answer_of_other_run(requested_fields, request.sample.agent):
                continue
            miss_count += 1
            if len(explanations) < args.max:
                explanations.append(_explain_miss(cache, request, requested_fields))
    if args.json:
        print_json({"requests": request_count, "misses": miss_count, "explained": explanations})
        return ExitCode.DONE
    say(f"{miss_count} of {request_count} requests had no entry of another run")
    for miss in explanations:
        rows = [
            (row["field"], *(shortened(str(row[key]), 60) for key in ("asked", "nearest")))
            for row in miss["differences"]
        ]
        title = f"\n{miss['agent']}, round {miss['round']}, {miss['datapoint']}, repeat {miss['repeat']}"
        if rows:
            print_table(("field", "asked", "nearest entry"), rows, title=title)
        else:
            note(f"{title}: the cache has no entry of this agent")
    return ExitCode.DONE


def _cache_file(path: Path | None) -> Path:
    """Return the path of an existing cache file.

    Raises:
        UsageError: the file does not exist, or the run used no cache.
    """
    if path is None or not is_file(path):
        raise UsageError(
            f"no cache file{f' {str(path)!r}' if path else ', since the run used no cache'}; name one with --cache FILE"
        )
    return path


def _explain_miss(cache: Cache, request: Request, requested_fields: dict[str, Any]) -> dict[str, object]:
    from runner.models.layers.cache import differences

    nearest = min(
        (differences(requested_fields, entry) for entry in cache.similar_requests(request)), key=len, default=[]
    )
    sample = request.sample
    return {
        "agent": sample.agent,
        "round": sample.round,
        "datapoint": sample.datapoint,
        "repeat": sample.repeat,
        "differences": [{"field": name, "asked": requested, "nearest": cached} for name, requested, cached in nearest],
    }
