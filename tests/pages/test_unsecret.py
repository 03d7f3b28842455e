"""What this machine keeps secret stands in no part of a page that is mailed, and nothing there names its folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from markupsafe import Markup

from runner.base.redaction import Redactor
from runner.pages.boards.lists import local_board, published_board, without_folders
from runner.pages.redacted import site_without_secrets
from runner.pages.site import Section, Site, as_one_file
from runner.registry.board.board import RegistryBoard
from runner.results.leaderboard.results_folder import Results

KEY = "sk-0123456789abcdefghij"


def test_a_secret_stands_in_no_part_of_a_site() -> None:
    site = Site(
        f"Run {KEY}",
        [(f"run/{KEY}", f"Games of {KEY}")],
        [Section(f"run/{KEY}", Markup("<p>{}</p>").format(KEY))],
        {"runs": [{"run_id": KEY}]},
    )
    assert KEY.encode() in b"".join(as_one_file(site, {}))
    clean = site_without_secrets(site, Redactor([KEY]))
    assert KEY.encode() not in b"".join(as_one_file(clean, {}))
    for part in (clean.title, str(clean.links), str(clean.sections), str(clean.about)):
        assert KEY not in part
    assert clean.links[0][0] == clean.sections[0].route  # a link still leads to its page


@pytest.mark.parametrize(
    ("where", "written", "told"),
    [
        ("file:/srv/me/board", "/srv/me/board", "file:board"),
        ("file:/srv/me/board", "file:/srv/me/board", "file:board"),
        ("file:/srv/me/board", "", "file:board"),
        ("file:/srv/me/board", "../me/board", "file:board"),
        ("file:/srv/me/board", "shared/board", "shared/board"),
        ("git:/srv/me/board.git", "git:/srv/me/board.git", "git:board.git"),
        ("git:file:///srv/me/board.git", "git:file:///srv/me/board.git", "git:board.git"),
        ("git:git@example.org:acme/board.git", "", "git:git@example.org:acme/board.git"),
        ("git:https://example.org/acme/board", "", "git:https://example.org/acme/board"),
        ("hf:acme/board", "hf:acme/board", "hf:acme/board"),
        ("/srv/me/results", "", "results"),
        ("results", "", "results"),
    ],
)
def test_a_place_is_named_without_the_folders_of_this_machine(where: str, written: str, told: str) -> None:
    assert without_folders(where, written) == told


def test_a_board_that_is_named_says_its_path_nowhere(tmp_path: Path) -> None:
    for board in (
        local_board(Results(tmp_path), "mine"),
        published_board(RegistryBoard(f"file:{tmp_path}", []), "mine"),
    ):
        assert "mine" in str(board)
        assert str(tmp_path) not in str(board)
