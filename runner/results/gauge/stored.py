"""Stored gauges of a results folder, which `compare` mentions if both runs have a gauged judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import make_folders, read_bounded
from runner.base.text import comma_join
from runner.results.folder import RunFolder
from runner.results.gauge.readings import judge_settings, variant_hash
from runner.results.leaderboard.results_folder import Results
from runner.statistics.instrument.noise_floor import noise_floor

if TYPE_CHECKING:
    from runner.results.gauge.gauge import Gauge

GAUGES = "gauges"
"""The subfolder of a results folder with a file for each gauge."""
_FORMAT, _MAX_BYTES = 1, 8 << 20


def save_gauge(gauge: Gauge, results: Results) -> Path:
    """Write a gauge into the results folder, and return its path. The same runs have the same file.

    Raises:
        RunError: the file cannot be written.
    """
    folder = results.path / GAUGES
    make_folders(folder)
    path = folder / f"{tagged_hash('gauge', sorted(gauge.run_ids))[:16]}.json"
    atomic_write(path, orjson.dumps({"format": _FORMAT, **gauge.to_json()}, option=orjson.OPT_INDENT_2) + b"\n")
    return path


def noise_notes(
    base: RunFolder, other: RunFolder, datapoints: int, difference: float, results: Results
) -> Iterator[str]:
    """Yield a note on the noise floor of the judge of two runs, if there is a gauge of it."""
    if not datapoints or not (results.path / GAUGES).is_dir():
        return
    variants = [variant_hash(*judge_settings(folder, folder.manifest())) for folder in (base, other)]
    matches: list[dict[str, Any]] = []
    for path in sorted((results.path / GAUGES).glob("*.json")):
        try:
            data = orjson.loads(read_bounded(path, _MAX_BYTES))
            if data["format"] == _FORMAT and set(variants) <= set(data["variants"]):
                matches.append(data)
        except (OSError, ValueError, KeyError, TypeError):
            yield f"{path} cannot be read; repeat the command that wrote it (nip-run gauge)"
    measured = [(data, floor) for data in matches if (floor := _floor(data, variants, datapoints)) is not None]
    if measured:
        data, floor = max(measured, key=lambda row: (row[0]["readings"], row[0]["run_ids"]))
        kind = "repeats of one prompt" if variants[0] == variants[1] else "other wordings or label words"
        is_within = "; this difference is not above it" if abs(difference) <= floor else ""
        yield (
            f"noise floor of the judge: {100 * floor:.1f} points of accuracy for {datapoints:,} datapoints played once "
            f"({kind}; gauged in {comma_join(data['run_ids'][:2])}{' ...' if len(data['run_ids']) > 2 else ''})"
            f"{is_within}"
        )


def _floor(data: dict[str, Any], variants: list[str], datapoints: int) -> float | None:
    """Return the noise floor between two variants by a stored gauge; None if it does not know it."""
    if variants[0] != variants[1]:
        return None if data["variant_noise"] is None else noise_floor(data["variant_noise"][0], datapoints,
                                                                       data["variant_noise"][1])  # fmt: skip
    flips = data["correctness_flips"]["value"]
    return None if flips is None else noise_floor(flips, datapoints)
