"""Error messages of a leaderboard that cannot be written: the cause and one next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import python
from tests.support.runs import run_spec
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

REBUILD = "nip-run leaderboard --rebuild --results"

CODE = """
import resource, sys
from pathlib import Path
from runner.base.errors import LeaderboardError
from runner.results.leaderboard.results_folder import Results

results = Results(Path(sys.argv[1]))
(folder,) = results.runs()
board = results.board
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    board.append(folder) if sys.argv[2] == "append" else board.rebuild()
except LeaderboardError as error:
    print(error)
"""
"""An append or a rebuild in a process limited to files of 20 kB, which simulates a full disk."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    run_spec(spec_file(folder, size=4), folder / "results")
    (folder / "results" / "leaderboard.duckdb").unlink()
    return folder / "results"


def run_action(results: Path, action: str) -> str:
    process = python(CODE, results, action)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_append_on_a_full_disk_names_the_rebuild_command_once(results: Path) -> None:
    message = run_action(results, "append")
    assert "cannot write" in message
    assert message.count(REBUILD) == 1
    assert "damaged" not in message


def test_rebuild_on_a_full_disk_does_not_suggest_a_rebuild(results: Path) -> None:
    message = run_action(results, "rebuild")
    assert "cannot write" in message
    assert "Try again later" in message
    assert REBUILD not in message
    assert "damaged" not in message


def test_query_without_a_temporary_folder_says_what_to_set(results: Path) -> None:
    setup_code = "import tempfile; tempfile.tempdir = sys.argv[1] + '/none'\n"
    query_code = "try:\n    board.query('SELECT 1')\nexcept LeaderboardError as error:\n    print(error)\n"
    process = python(CODE.partition("resource.setrlimit")[0] + setup_code + query_code, results)
    assert (
        process.stdout
        == "cannot create a temporary folder: No such file or directory; set TMPDIR to a folder that you can write to\n"
    ), process.stderr
