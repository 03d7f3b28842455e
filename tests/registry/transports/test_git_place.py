"""Valid locations after `git:`, and locations that are refused before git sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.registry.transports.git.location import parse_location


@pytest.mark.parametrize(
    ("text", "url", "revision"),
    [
        ("https://example.org/acme/board.git", "https://example.org/acme/board.git", None),
        ("https://example.org:8443/acme/board.git@v1.2", "https://example.org:8443/acme/board.git", "v1.2"),
        ("https://example.org/acme/board.git@feature/new", "https://example.org/acme/board.git", "feature/new"),
        ("https://example.org/@acme/board", "https://example.org/@acme/board", None),
        ("https://example.org/@acme/board@main", "https://example.org/@acme/board", "main"),
        ("HTTPS://example.org/x", "https://example.org/x", None),
        ("ssh://git@example.org:2222/acme/board.git@main", "ssh://git@example.org:2222/acme/board.git", "main"),
        ("ssh://[::1]:22/srv/x", "ssh://[::1]:22/srv/x", None),
        ("git@example.org:acme/board.git", "git@example.org:acme/board.git", None),
        ("git@example.org:acme/board.git@main", "git@example.org:acme/board.git", "main"),
        ("example.org:board", "example.org:board", None),
        ("/srv/board.git", "/srv/board.git", None),
        ("/srv/board.git@" + "a" * 40, "/srv/board.git", "a" * 40),
        ("file:///srv/my%20board", "/srv/my board", None),
        ("http://127.0.0.1:8000/x", "http://127.0.0.1:8000/x", None),
        ("git://localhost/x@HEAD", "git://localhost/x", None),
    ],
)
def test_location_is_split_into_url_and_revision(text: str, url: str, revision: str | None) -> None:
    location = parse_location(text)
    assert (location.url, location.revision) == (url, revision)
    reparsed = parse_location(str(location).removeprefix("git:"))
    assert (reparsed.url, reparsed.revision) == (url, None if location.commit else revision)


def test_local_path_is_absolute_and_may_contain_an_at_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a@b").mkdir()
    assert (parse_location("board").url, parse_location("board").is_local) == (f"{tmp_path}/board", True)
    assert parse_location("./-x").url == f"{tmp_path}/-x"
    assert parse_location("a@b").url == f"{tmp_path}/a@b"
    assert str(parse_location("a@b")) == f"git:{tmp_path}/a@b@HEAD"
    assert parse_location(f"{tmp_path}/a@b@HEAD").url == f"{tmp_path}/a@b"


VALID = "is not a valid address"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a repository"), ("a\nb", "needs a repository"), ("\0", "needs a repository"),
        ("-x", "an option"), ("--upload-pack=evil", "an option"),
        ("ext::sh -c evil", "would run a program"), ("fd::17/foo", "would run a program"),
        ("ext::sh%20-c%20evil@main", "would run a program"), ("::x", "would run a program"),
        ("transport-helper::https://example.org/x", "would run a program"),
        ("ssh://-oProxyCommand=evil/x", VALID), ("ssh://a b/x", VALID),
        ("ssh://%2doProxy/x", VALID),
        ("ssh://git@-oProxyCommand=evil/x", VALID), ("ssh://-l@example.org/x", VALID),
        ("-oProxyCommand=evil:x", "an option"), ("git@-oProxyCommand=evil:x", VALID),
        ("git@example.org:-x", "cannot begin with"),
        ("ssh://example.org/-x", "cannot begin with"), ("https://example.org/-x", "cannot begin with"),
        ("https://example.org/a b", "white space"),
        ("https://example.org", VALID), ("https:///x", VALID), ("ftp://example.org/x", VALID),
        ("rsync://example.org/x", VALID), ("javascript://x/y", VALID),
        ("file://example.org/x", VALID),
        ("https://example.org:80x/y", VALID), ("https://[bad/y", VALID), ("~nobody-at-all/x", "home"),
        ("http://example.org/x", "is not encrypted"), ("git://example.org/x", "is not encrypted"),
        ("http://localhost.example.org/x", "is not encrypted"),
        ("http://127.0.0.1.example.org/x", "is not encrypted"), ("https://example.org/x?token=a", "cannot have"),
        ("https://example.org/x#a", "cannot have"),
        ("/srv/x@-f", "is not a valid name"), ("/srv/x@a..b", "is not a valid name"),
        ("/srv/x@a b", "is not a valid name"),
        ("/srv/x@a:b", "is not a valid name"), ("/srv/x@", "is not a valid name"),
        ("/srv/x@main.lock", "is not a valid name"),
        ("/srv/x@^main", "is not a valid name"), ("/srv/x@+main:refs/heads/x", "is not a valid name"),
        ("https://example.org/x@a~1", "is not a valid name"),
    ],
)  # fmt: skip
def test_location_with_a_command_or_an_invalid_address_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_location(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://ann:hunter2-of-ann@example.org/x", "https://hunter2-of-ann@example.org/x", "ssh://ann:hunter2-of-ann@example.org/x",
        "https://ann:hunter2-of-ann/@example.org/x", "https://ann:hunter2-of-ann/x", "https://example.org/x?token=hunter2-of-ann",
        "ann:hunter2-of-ann@example.org:x", "http://ann:hunter2-of-ann@127.0.0.1/x", "https://a@b:hunter2-of-ann@example.org/x",
        "ssh://ann:hunter2-of-ann@[bad/x",
    ],
)  # fmt: skip
def test_a_password_in_an_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_location(text)
    assert "hunter2" not in str(raised.value)
