"""Complete releases with hostile contents: they can be fetched, and are refused when they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runner.base.errors import JournalError, RunError, SpecError
from runner.base.problems import Place
from runner.base.storage.log_lines import read_journal
from runner.game.prompts.templates import PromptLoader
from runner.game.protocols.loader import load_protocol
from runner.registry.transports.locations import connect
from runner.spec.loader import load_spec
from runner.spec.origin import MARKER
from tests.registry.hostile_contents import GOOD, ROWS, HostileContent
from tests.registry.test_hostile import write_canaries
from tests.support.release_trees import REFERENCE, ReleaseTree, snapshot_folder

HERE = Place("spec.yaml", 1, 1)


def _protocol(folder: Path) -> object:
    return load_protocol("protocol.yaml", folder=folder)


def _templates(folder: Path) -> object:
    return PromptLoader(load_protocol("solo_verifier"), ["question"], HERE).load(folder / "prompts")


LOADERS: Mapping[str, Callable[[Path], object]] = {
    "spec": lambda folder: load_spec(folder / "spec.yaml"),
    "template": _templates,
    "protocol": _protocol,
    "dataset": lambda folder: load_spec(folder / "spec.yaml"),
    "journal": lambda folder: list(read_journal(folder / "journal.jsonl")),
}
"""Functions that read a part of a folder as a command does, by kind of row."""

SLOW = (
    "spec: a filter", "spec: an address", "spec: a number", "spec: a flag", "spec: an unknown", "dataset: ",
    "template: 3,000", "template: 4,000", "template: 5,000",
)  # fmt: skip
"""Rows that are read completely before they are refused, which takes 0.1 seconds each."""


def publish_and_fetch(rows: list[HostileContent], folder: Path) -> Path:
    """Publish the rows as folders of one release, and fetch it."""
    files = {f"r{number:03}/{path}": data for number, row in enumerate(rows) for path, data in
             {**GOOD, **row.files}.items()}  # fmt: skip
    registry = ReleaseTree(folder / "registry", files=files).write()
    with connect(f"file:{registry}") as opened:
        opened.unpack(opened.find(REFERENCE), folder / "home" / "got", extra_files={MARKER: b"{}\n"})
    return folder / "home" / "got"


def select_rows(kind: str, *, slow: bool) -> list[HostileContent]:
    rows = [row for row in ROWS if row.name.startswith(f"{kind}: ")]
    return [row for row in rows if slow or not row.name.startswith(SLOW)]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "slow"),
    [
        ("spec", False), ("template", False), ("protocol", False), ("journal", False),
        *(pytest.param(kind, True, marks=pytest.mark.full) for kind in ("spec", "template", "dataset")),
    ],
)  # fmt: skip
def test_hostile_content_of_a_fetched_release_is_refused_with_a_message(tmp_path: Path, kind: str, slow: bool) -> None:
    rows = select_rows(kind, slow=slow)
    write_canaries(tmp_path)
    folder = publish_and_fetch(rows, tmp_path)
    before = snapshot_folder(tmp_path)
    problems = {}
    for number, row in enumerate(rows):
        try:
            LOADERS[kind](folder / f"r{number:03}")
        except (SpecError, RunError, JournalError) as error:
            message = str(error).replace(str(folder), "")
            if row.message not in message or len(message) > 10_000:
                problems[row.name] = message[:500]
        else:
            problems[row.name] = "it was taken"
    assert problems == {}
    assert len(rows) >= 5
    assert snapshot_folder(tmp_path) == before


def test_valid_spec_of_a_fetched_release_is_loaded(tmp_path: Path) -> None:
    folder = publish_and_fetch([HostileContent("good", {}, "")], tmp_path)
    assert len(load_spec(folder / "r000" / "spec.yaml").dataset.datapoints) == 4


def test_dataset_text_is_not_rendered_as_template_or_interpolation(tmp_path: Path) -> None:
    text = "{{ 7*7 }} ${oc.env:HOME} {% include '/etc/passwd' %}"
    row = json.dumps({"id": "a", "label": 0, "question": text, "solution": "s"}) + "\n"
    folder = publish_and_fetch([HostileContent("data", {"data.jsonl": row.encode()}, "")], tmp_path)
    points = load_spec(folder / "r000" / "spec.yaml").dataset.datapoints
    assert [point.columns["question"] for point in points] == [text]


def test_tables_have_at_least_350_unique_rows_of_known_kinds() -> None:
    from tests.registry.hostile import ROWS as RELEASE_ROWS

    names = [*(row.name for row in RELEASE_ROWS), *(row.name for row in ROWS)]
    assert len(set(names)) == len(names) >= 350
    assert all(
        re.match(r"(path|manifest|checksum|tree|yank|spec|template|protocol|dataset|journal)\b", n) for n in names
    )
