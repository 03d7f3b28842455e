"""A publish that is killed in the middle of a file leaves no release that a reader sees, and can be repeated."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from runner.registry.transports.locations import connect
from tests.support.processes import python
from tests.support.registry_locations import bundle

pytestmark = pytest.mark.full

PUBLISH = """
import resource, signal, sys
from pathlib import Path
from runner.registry.transports.locations import connect
from tests.support.registry_locations import bundle
where, journal, most, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "kills"
made = bundle(contents={"data/journal.jsonl": journal, "README.md": b"# It\\n", "run_data.yaml": b"a: 1\\n"})
if kills:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
with connect(where) as registry:
    registry.publish([made], "one")
"""
PIECE = 1 << 16
SIZE = 5 * PIECE + 1_000


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "no room"])
def test_publish_interrupted_at_any_piece_leaves_no_release_and_can_be_repeated(
    tmp_path: Path, is_killed: bool
) -> None:
    journal, location = tmp_path / "journal.jsonl", tmp_path / "registry"
    journal.write_bytes(bytes(range(250)) * (SIZE // 250))
    expected = bundle(contents={"data/journal.jsonl": journal, "README.md": b"# It\n", "run_data.yaml": b"a: 1\n"})
    for size_limit in (0, 1, 6, *range(PIECE, SIZE - 1_000, PIECE)):
        done = python(PUBLISH, location, journal, str(size_limit), "kills" if is_killed else "fails")
        if is_killed:
            assert done.returncode == -signal.SIGXFSZ
        else:
            assert "ReleaseError: cannot write" in done.stderr, done.stderr
        with connect(str(location)) as registry:
            assert registry.entries() == []
    assert python(PUBLISH, location, journal, str(SIZE * 2), "fails").returncode == 0
    with connect(str(location)) as registry:
        (entry,) = registry.entries()
        assert entry.sha256 == expected.sha256
        assert list(registry.find_problems(entry)) == []
