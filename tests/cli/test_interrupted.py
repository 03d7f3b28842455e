"""Ctrl-C during publish or get: nothing becomes visible, and repeating the command completes it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.registry.fetched_release import open_fetched
from runner.registry.transports.locations import connect
from tests.support.processes import nip_run_here, python
from tests.support.run_bundles import build_run_bundle, publish_bundles
from tests.support.runs import run_spec
from tests.support.specs import spec_file

INTERRUPTING_SCRIPT = """
import os, signal, sys
from runner.cli.main import main
event, name, *words = sys.argv[1:]
left = [True]
def hook(audit_event, arguments):
    if left and audit_event == event and arguments and name in str(arguments[0]):
        left.clear()
        os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.addaudithook(hook)
code = main(words)
assert not left, f"nobody did {event} on {name}"
sys.exit(code)
"""
"""A script that runs the command line and sends Ctrl-C when it is about to open or move the named file."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    return run_spec(spec_file(folder, size=2, fine_tune=None), folder / "results").path


def run_interrupted(
    event: str, name: str, arguments: Sequence[str | Path], cwd: Path
) -> subprocess.CompletedProcess[str]:
    return python(INTERRUPTING_SCRIPT, event, name, *arguments, cwd=cwd)


@pytest.mark.full
@pytest.mark.parametrize(("event", "name"), [("open", "run_data.yaml"), ("os.rename", ".incoming")])
def test_interrupted_publish_stays_invisible_and_can_be_repeated(
    event: str, name: str, run: Path, tmp_path: Path
) -> None:
    arguments = ("publish", run, "--to", tmp_path / "registry", "--as", "acme", "--licence", "MIT", "--force")
    process = run_interrupted(event, name, arguments, tmp_path)
    assert process.returncode == 128 + signal.SIGINT, process.stderr
    assert "not published completely stays invisible" in process.stderr
    with connect(str(tmp_path / "registry")) as registry:
        assert registry.entries() == []
    repeated = nip_run_here(*arguments, cwd=tmp_path)
    assert repeated.returncode == 0, repeated.stderr
    with connect(str(tmp_path / "registry")) as registry:
        (entry,) = registry.entries()
        assert list(registry.find_problems(entry)) == []


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize(("event", "name"), [("open", "journal.jsonl"), ("os.rename", ".got")])
def test_interrupted_get_leaves_no_files_and_can_be_repeated(event: str, name: str, run: Path, tmp_path: Path) -> None:
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(run))
    target = tmp_path / "here"
    target.mkdir()
    arguments = ("get", reference, "got", "--from", tmp_path / "registry")
    process = run_interrupted(event, name, arguments, target)
    assert process.returncode == 128 + signal.SIGINT, process.stderr
    assert list(target.iterdir()) == []
    repeated = nip_run_here(*arguments, cwd=target)
    assert repeated.returncode == 0, repeated.stderr
    assert open_fetched(target / "got").run is not None
