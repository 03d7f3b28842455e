"""The runs that the tests of this folder compare, played once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.results.comparison.planted import SIZE, other_system_override, play_with_planted_verdicts, write_solo_spec


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play runs of one task. `good` is right on 36 of 40, `fair` on 24 of those; `same` differs from `good` on two."""
    folder = tmp_path_factory.mktemp("compared")
    path, results = write_solo_spec(folder, size=SIZE), folder / "results"
    play_with_planted_verdicts(path, results, "good", lambda i, _: i < 36, "name=good")
    play_with_planted_verdicts(
        path, results, "fair", lambda i, _: i < 24, "name=fair", "seed=8", other_system_override(1)
    )
    play_with_planted_verdicts(
        path, results, "same", lambda i, _: 1 <= i < 37, "name=same", "seed=9", other_system_override(2)
    )
    play_with_planted_verdicts(
        path,
        results,
        "often",
        lambda i, r: i < 36 and r != 0,
        "name=often",
        "rollouts.per_datapoint=3",
        other_system_override(3),
    )
    play_with_planted_verdicts(path, results, "half", lambda i, _: i < 18, "name=half", "dataset.limit=20")
    return folder


@pytest.fixture(scope="session")
def results(folder: Path) -> Path:
    return folder / "results"
