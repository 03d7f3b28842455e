"""Nothing bad gets in: each row of the table is refused in words, and leaves nothing anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import NewerFormatError, NotPublished, ReleaseError
from runner.transports.connect import connect
from tests.registry.hostile import ROWS, SECRET, Row
from tests.support.release_trees import REFERENCE, Tree, snapshot

LONGEST = 700
"""Characters of a message, with the path of the registry in it."""


def got(registry: Path, target: Path) -> None:
    """What `get` does, up to a folder with a release in it."""
    with connect(f"file:{registry}") as opened:
        opened.unpack(opened.find(REFERENCE), target)


def canaries(folder: Path) -> Path:
    """A home with files of the reader's own around where the release would come to stand."""
    home = folder / "home"
    for path in ("etc/passwd", ".ssh/id", ".env", "work/README.md", "work/evil", "evil", SECRET):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(path)
    (folder / SECRET).write_text("hello\n")
    return home


def test_the_release_that_the_rows_change_is_good(tmp_path: Path) -> None:
    got(Tree(tmp_path / "registry").write(), tmp_path / "got")
    assert (tmp_path / "got" / "data" / "a.txt").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_hostile_release_is_refused_in_words_and_leaves_nothing(tmp_path: Path, row: Row) -> None:
    tree = Tree(tmp_path / "registry")
    row.change(tree)
    tree.write()
    home = canaries(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises((ReleaseError, NotPublished, NewerFormatError)) as caught:
        got(tree.registry, home / "work" / "got")
    assert row.words in str(caught.value)
    assert len(str(caught.value).replace(str(tmp_path), "")) < LONGEST
    assert snapshot(tmp_path) == before


def test_the_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 200
