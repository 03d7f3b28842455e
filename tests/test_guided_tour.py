"""The guided tour in CONTRIBUTING.md lists the files of one rollout in the order of their execution."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import FunctionType

import pytest

from runner.base.storage.journal import Journal
from runner.game.prompts.templates import PromptSet
from runner.models.journal_records import CallRecord
from runner.models.providers.dummy import DummyModel
from tests.support.paths import ROOT
from tests.support.processes import python

MAX_FILES = 25

_TRACE = """
import json, sys, threading
from pathlib import Path

from runner.cli.main import main

RUNNER = str(Path("runner").resolve()) + "/"
calls = set()

def is_ours(code):
    return code.co_filename.startswith(RUNNER)

def record(frame, event, argument):
    if event != "call" or not is_ours(frame.f_code):
        return
    caller = frame.f_back
    while caller is not None and not is_ours(caller.f_code):
        caller = caller.f_back
    if caller is not None and "<module>" not in (caller.f_code.co_name, frame.f_code.co_name):  # else it is an import
        calls.add((caller.f_code.co_filename.removeprefix(RUNNER), frame.f_code.co_filename.removeprefix(RUNNER)))

threading.setprofile(record)
sys.setprofile(record)
code = main(["specs/quickstart.yaml", "-q", "dataset.limit=2", "--results", sys.argv[1]])
sys.setprofile(None)
assert code == 0
print("|", json.dumps(sorted(calls)))
"""


def list_toured_files() -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text.split("## One rollout, file by file")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`: \w.*", section, re.MULTILINE)


@pytest.mark.gate
def test_every_file_of_the_tour_is_called_by_an_earlier_one(tmp_path: Path) -> None:
    done = python(_TRACE, str(tmp_path), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout.rsplit("|", 1)[1])
    files = list_toured_files()
    unreached = [
        file
        for number, file in enumerate(files)
        if number and not any(called == file and caller in files[:number] for caller, called in calls)
    ]
    assert unreached == []


@pytest.mark.parametrize("step", [PromptSet.render, DummyModel.complete, CallRecord.to_json, Journal.append])
def test_tour_has_the_files_that_render_a_prompt_call_the_model_and_append_the_record(step: FunctionType) -> None:
    assert str(Path(step.__code__.co_filename).relative_to(ROOT / "runner")) in list_toured_files()


def test_tour_is_short_and_starts_with_the_command_line() -> None:
    files = list_toured_files()
    assert 10 < len(files) <= MAX_FILES
    assert len(set(files)) == len(files)
    assert files[0] == "cli/main.py"
