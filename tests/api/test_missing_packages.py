"""Tables without the packages that nip-run does not install."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import python
from tests.support.runs import run_spec
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

CODE = """
import sys
sys.modules[sys.argv[1]] = None
from runner import open_run, query
run = open_run(sys.argv[3], sys.argv[4])
for table in (run.rollouts(), run.rollouts().limit(1), query("SELECT 1", sys.argv[4])):
    try:
        getattr(table, sys.argv[2])()
    except ImportError as error:
        print(error)
print(run.rollouts().limit(1).fetchall() != [])
"""


@pytest.mark.parametrize(
    ("package", "method"),
    [("pandas", "df"), pytest.param("polars", "pl", marks=pytest.mark.gate)],
)
def test_missing_package_error_has_its_install_command(tmp_path: Path, package: str, method: str) -> None:
    run = run_spec(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results")
    process = python(CODE, package, method, run.run_id, tmp_path / "results")
    assert process.returncode == 0, process.stderr
    message = f".{method}() needs {package}. Install it: pip install {package}"
    assert process.stdout.splitlines() == [message] * 3 + ["True"]
