"""Ctrl-C while something is published or got: nothing of it is seen, and the same command does it after all."""

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

AT = """
import os, signal, sys
from runner.cli.main import main
event, name, *words = sys.argv[1:]
left = [True]
def hook(said, arguments):
    if left and said == event and arguments and name in str(arguments[0]):
        left.clear()
        os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.addaudithook(hook)
code = main(words)
assert not left, f"nobody did {event} on {name}"
sys.exit(code)
"""
"""The command line, with a Ctrl-C as it is about to open or move a file of this name."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    return run_spec(spec_file(folder, size=2, fine_tune=None), folder / "results").path


def interrupted(event: str, name: str, words: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    return python(AT, event, name, *words, cwd=cwd)


@pytest.mark.full
@pytest.mark.parametrize(("event", "name"), [("open", "run_data.yaml"), ("os.rename", ".incoming")])
def test_an_interrupted_publish_is_seen_by_nobody_and_done_again(
    event: str, name: str, run: Path, tmp_path: Path
) -> None:
    words = ("publish", run, "--to", tmp_path / "registry", "--as", "acme", "--licence", "MIT", "--force")
    done = interrupted(event, name, words, tmp_path)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "not published completely stays invisible" in done.stderr
    with connect(str(tmp_path / "registry")) as registry:
        assert registry.entries() == []
    again = nip_run_here(*words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    with connect(str(tmp_path / "registry")) as registry:
        (entry,) = registry.entries()
        assert list(registry.find_problems(entry)) == []


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize(("event", "name"), [("open", "journal.jsonl"), ("os.rename", ".got")])
def test_an_interrupted_get_leaves_nothing(event: str, name: str, run: Path, tmp_path: Path) -> None:
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(run))
    here = tmp_path / "here"
    here.mkdir()
    words = ("get", reference, "got", "--from", tmp_path / "registry")
    done = interrupted(event, name, words, here)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert list(here.iterdir()) == []
    again = nip_run_here(*words, cwd=here)
    assert again.returncode == 0, again.stderr
    assert open_fetched(here / "got").run is not None
