"""No hostile program escapes on kernels that lack features. Without a sandbox, no program runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.curation.sandbox.attacks import ATTACKS
from tests.support.hang_guard import HANG_SECONDS
from tests.support.hostile_driver import ENVIRONMENTS
from tests.support.hostile_programs import HOSTILE_PROGRAMS, KEY_READERS
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

NOBODY = 65534
KEY = "sk-planted-key-of-the-parent-4711"
FILES = ("hostile_driver.py", "hostile_programs.py", "hostile_programs.txt", "__init__.py")


@pytest.fixture(scope="module")
def checkout() -> Iterator[Path]:
    """A copy of the package that every user can read, with a planted key file."""
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(ROOT / "runner", folder / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "support").mkdir(parents=True)
    (folder / "tests" / "__init__.py").touch()
    for name in FILES:
        shutil.copy(ROOT / "tests" / "support" / name, folder / "tests" / "support" / name)
    (folder / ".netrc").write_text(f"machine example.org password {KEY}", "utf-8")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def user() -> int:
    return NOBODY if os.getuid() == 0 else os.getuid()


@pytest.fixture(scope="module")
def interpreter(user: int) -> str:
    """Python 3.11 or newer that the user can run. That of the tests may be in root's home folder."""
    for path in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        try:
            done = subprocess.run([path, "-c", code], user=user, cwd="/", capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return path
    pytest.skip(f"user {user} has no Python 3.11")


def run_hostile_programs(environment: str, user: int, interpreter: str, checkout: Path) -> dict[str, Any]:
    done = subprocess.run(
        [interpreter, "-m", "tests.support.hostile_driver", environment, str(user), str(checkout)],
        env={"PATH": os.defpath, "HOME": str(checkout), "PYTHONPATH": str(checkout), "OPENAI_API_KEY": KEY},
        cwd=checkout, capture_output=True, text=True, timeout=10 * HANG_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_there_are_enough_hostile_programs() -> None:
    assert len(HOSTILE_PROGRAMS) >= 60
    assert len(KEY_READERS) >= 20
    assert len(set(HOSTILE_PROGRAMS) - {attack.name for attack in ATTACKS}) >= 60


@pytest.mark.parametrize("environment", [name for name in ENVIRONMENTS if name != "nothing"])
def test_no_hostile_program_escapes(environment: str, user: int, interpreter: str, checkout: Path) -> None:
    result = run_hostile_programs(environment, user, interpreter, checkout)
    if "refusal" not in result:
        assert result["escapes"] == []
        assert result["target is alive"]
    else:  # bubblewrap may be missing, or user namespaces
        assert environment != "unprivileged", result
        assert "no program is run" in result["refusal"]


def test_programs_of_root_cannot_escape(interpreter: str, checkout: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root")
    assert run_hostile_programs("no user namespaces", 0, interpreter, checkout)["escapes"] == []


def test_no_program_runs_without_namespaces_and_landlock(user: int, interpreter: str, checkout: Path) -> None:
    refusal = run_hostile_programs("nothing", user, interpreter, checkout)["refusal"]
    assert "no program is run" in refusal
    assert "this kernel has no Landlock" in refusal
