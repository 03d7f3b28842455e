"""What names a release, and where a registry is: what can be neither is refused in words of a bounded length."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.documents.releases.reference import Digest, Kind, Reference, is_reference, parse_reference
from runner.documents.releases.versions import version_order
from runner.registry.transports.locations import connect

FORM = "must be 1 to 100 of a-z"
SHAPE = "is not a reference; write"

WRONG = (
    ("", SHAPE), ("x", SHAPE), ("run/acme", "is a reserved name|unknown kind|has no kind|is not a reference"),
    ("run/acme/x@1@2", SHAPE), ("run/acme/x/y@1", SHAPE), ("run/acme/x@", SHAPE), ("run//x@1", SHAPE),
    ("malware/acme/x@1", "unknown kind 'malware'"), ("runs/acme/x@1", "did you mean 'run'"), ("run/../x@1", FORM),
    ("run/./x@1", FORM), ("run/acme/..@1", FORM), ("run/acme/x@..", FORM), ("run/Acme/x@1", FORM),
    ("run/\u0430cme/x@1", FORM), ("run/acme/x\n@1", FORM), ("run/acme/x\x00@1", FORM), ("run/acme/x@1 ", FORM),
    ("run/acme/x@\u0661", FORM), ("run/-rf/x@1", FORM), ("run/acme/.git@1", FORM), ("run/acme/a..b@1", "two dots"),
    ("run/con/x@1", "reserved"), ("run/acme/nul.txt@1", "reserved"), ("run/latest/x@1", "reserved"),
    ("run/acme/x\u202e@1", FORM), (f"run/{'a' * 101}/x@1", FORM), ("sha256:abc", SHAPE), ("sha256:" + "g" * 64, SHAPE),
    ("sha256:" + "A" * 64, SHAPE), ("sha256:" + "a" * 65, SHAPE), ("md5:" + "a" * 32, SHAPE), ("x" * 100_000, SHAPE),
    ("run/" + "x" * 100_000 + "/y@1", FORM), ("run/acme/x@" + "9" * 100_000, FORM), ("https://evil/x@1", SHAPE),
    ("run/acme\\x@1", FORM), ("run/$HOME/x@1", FORM), ("run/~/x@1", FORM), ("run/acme/%2e%2e@1", FORM),
)  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG, ids=lambda value: repr(value)[:30])
def test_what_is_no_reference_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_reference(text, None if text.count("/") > 1 else Kind.RUN) if text != "run/acme" else parse_reference(
            text
        )
    assert len(str(caught.value)) < 600


def test_a_reference_and_a_hash_are_what_they_say() -> None:
    assert parse_reference("model/acme/x.y@1.0-rc1") == Reference(Kind.MODEL, "acme", "x.y", "1.0-rc1")
    assert parse_reference("acme/x@latest", Kind.RUN) == Reference(Kind.RUN, "acme", "x")
    assert parse_reference("sha256:" + "a" * 12) == Digest("a" * 12)
    assert not is_reference("prompts/mine")
    assert is_reference("acme/x@1")


WHERES = (
    ("", "no registry is given"), ("file:", "names no folder"), ("file://host/share", "names no folder"),
    ("ftp://x/y", "not the address"),
    ("http://github.com/a/b", "has no TLS"), ("https://h/a?b=c", "not the address"),
    ("s3:bucket", "not the address"), ("ext::sh -c id", "not the address"),
    ("a\nb", "control characters"), ("a\x00b", "control characters"), ("\x1b[2J", "control characters"),
    ("a\u202eb", "control characters"), ("x:" + "y" * 100_000, "not the address"),
    ("-oProxyCommand=x:y", "not the address"),
)  # fmt: skip


@pytest.mark.parametrize(("where", "words"), WHERES, ids=lambda value: repr(value)[:30])
def test_where_no_registry_can_be_is_refused(where: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIP_RUN_REGISTRY", raising=False)
    with pytest.raises(UsageError, match=words) as caught:
        connect(where)
    assert len(str(caught.value)) < 600
    assert "\x1b" not in str(caught.value)


def test_a_token_in_an_address_is_not_said_again() -> None:
    with pytest.raises(UsageError) as caught:
        connect("https://me:ghp_0123456789abcdef@github.com/acme/registry")
    assert "ghp_" not in str(caught.value)
    assert "cannot have a user or password" in str(caught.value)


def test_a_folder_is_a_registry_by_its_name_or_as_a_file_address(tmp_path: Path) -> None:
    assert len({connect(text).address for text in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}")}) == 1


# Versions

RISING = (
    "a1b2", "0.9", "1.0-rc1", "1.0-rc2", "1.0-rc10", "1.0rc11", "1.0", "1.0.post1", "1.0.1", "1.2", "1.10", "2",
    "10.0", "2026.11.22", "20260101",
)  # fmt: skip


def test_versions_rise_by_their_numbers_and_a_candidate_comes_before_its_version() -> None:
    for lower, higher in pairwise(RISING):
        assert version_order(lower) < version_order(higher), (lower, higher)
    assert sorted(set(RISING), key=version_order) == list(RISING)


@pytest.mark.parametrize("pair", [("1.0", "1.00"), ("1-a", "1-b"), ("01", "1"), ("a.b", "a_b"), ("9" * 100, "9" * 99)])
def test_any_two_versions_have_an_order(pair: tuple[str, str]) -> None:
    one, other = map(version_order, pair)
    assert (one < other) != (other < one)
