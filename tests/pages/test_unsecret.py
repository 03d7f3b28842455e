"""Pages to share contain neither this machine's secrets nor its folders."""

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


def test_redacted_site_contains_a_secret_nowhere() -> None:
    site = Site(
        f"Run {KEY}",
        [(f"run/{KEY}", f"Games of {KEY}")],
        [Section(f"run/{KEY}", Markup("<p>{}</p>").format(KEY))],
        {"runs": [{"run_id": KEY}]},
    )
    assert KEY.encode() in b"".join(as_one_file(site, {}))
    redacted = site_without_secrets(site, Redactor([KEY]))
    assert KEY.encode() not in b"".join(as_one_file(redacted, {}))
    for part in (redacted.title, str(redacted.links), str(redacted.sections), str(redacted.about)):
        assert KEY not in part
    assert redacted.links[0][0] == redacted.sections[0].route  # a link still leads to its page


@pytest.mark.parametrize(
    ("location", "option", "expected"),
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
def test_location_is_shown_without_local_folders(location: str, option: str, expected: str) -> None:
    assert without_folders(location, option) == expected


def test_board_with_a_name_does_not_show_its_path(tmp_path: Path) -> None:
    for board in (
        local_board(Results(tmp_path), "mine"),
        published_board(RegistryBoard(f"file:{tmp_path}", []), "mine"),
    ):
        assert "mine" in str(board)
        assert str(tmp_path) not in str(board)
