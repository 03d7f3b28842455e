"""Runs refuse a results folder that Ray will delete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import nip_run_here
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

RAY_WORKING_FOLDER = "session_1/runtime_resources/working_dir_files/_ray_pkg_0123"


@pytest.mark.parametrize("overrides", [[], ["sweep={seed: [1, 2]}"]])
def test_results_in_a_folder_that_ray_deletes_are_refused_and_nothing_is_written(
    tmp_path: Path, overrides: list[str]
) -> None:
    job = tmp_path / RAY_WORKING_FOLDER
    spec_file(job, size=2)
    files_before = sorted(job.rglob("*"))
    done = nip_run_here("spec.yaml", *overrides, cwd=job)
    assert done.returncode == 2, done.stderr
    assert "results is in the working folder of a Ray job, which Ray deletes" in done.stderr
    assert "use --results DIR with a permanent folder" in done.stderr
    assert sorted(job.rglob("*")) == files_before
    assert nip_run_here("spec.yaml", "-q", "--results", tmp_path / "kept", cwd=job).returncode == 0
