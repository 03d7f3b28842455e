"""Before a run has a folder it is seen that what it needs is there, and that it will stay where it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import nip_run_here
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

UNPACKED = "session_1/runtime_resources/working_dir_files/_ray_pkg_0123"


@pytest.mark.parametrize("words", [[], ["sweep={seed: [1, 2]}"]])
def test_results_in_a_folder_that_ray_deletes_are_refused_and_nothing_is_written(
    tmp_path: Path, words: list[str]
) -> None:
    job = tmp_path / UNPACKED
    spec_file(job, size=2)
    before = sorted(job.rglob("*"))
    done = nip_run_here("spec.yaml", *words, cwd=job)
    assert done.returncode == 2, done.stderr
    assert "results is in the working folder of a Ray job, which Ray deletes" in done.stderr
    assert "use --results DIR with a permanent folder" in done.stderr
    assert sorted(job.rglob("*")) == before
    assert nip_run_here("spec.yaml", "-q", "--results", tmp_path / "kept", cwd=job).returncode == 0
