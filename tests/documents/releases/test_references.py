"""References to releases and addresses of registries: malformed ones get an error of bounded length."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.documents.releases.reference import Digest, Kind, Reference, is_reference, parse_reference, version_order
from runner.registry.transports.locations import connect

NAME_RULE = "must consist of 1 to 100 of a-z"
NOT_A_REFERENCE = "is not a reference; write"

WRONG_REFERENCES = (
    ("", NOT_A_REFERENCE), ("x", NOT_A_REFERENCE),
    ("run/acme", "is a reserved name|unknown kind|has no kind|is not a reference"), ("run/acme/x@1@2", NOT_A_REFERENCE),
    ("run/acme/x/y@1", NOT_A_REFERENCE), ("run/acme/x@", NOT_A_REFERENCE), ("run//x@1", NOT_A_REFERENCE),
    ("malware/acme/x@1", "unknown kind 'malware'"), ("runs/acme/x@1", "did you mean 'run'"), ("run/../x@1", NAME_RULE),
    ("run/./x@1", NAME_RULE), ("run/acme/..@1", NAME_RULE), ("run/acme/x@..", NAME_RULE), ("run/Acme/x@1", NAME_RULE),
    ("run/\u0430cme/x@1", NAME_RULE), ("run/acme/x\n@1", NAME_RULE), ("run/acme/x\x00@1", NAME_RULE),
    ("run/acme/x@1 ", NAME_RULE), ("run/acme/x@\u0661", NAME_RULE), ("run/-rf/x@1", NAME_RULE),
    ("run/acme/.git@1", NAME_RULE), ("run/acme/a..b@1", "two dots"), ("run/con/x@1", "reserved"),
    ("run/acme/nul.txt@1", "reserved"), ("run/latest/x@1", "reserved"), ("run/acme/x\u202e@1", NAME_RULE),
    (f"run/{'a' * 101}/x@1", NAME_RULE), ("sha256:abc", NOT_A_REFERENCE), ("sha256:" + "g" * 64, NOT_A_REFERENCE),
    ("sha256:" + "A" * 64, NOT_A_REFERENCE), ("sha256:" + "a" * 65, NOT_A_REFERENCE),
    ("md5:" + "a" * 32, NOT_A_REFERENCE), ("x" * 100_000, NOT_A_REFERENCE),
    ("run/" + "x" * 100_000 + "/y@1", NAME_RULE), ("run/acme/x@" + "9" * 100_000, NAME_RULE),
    ("https://evil/x@1", NOT_A_REFERENCE), ("run/acme\\x@1", NAME_RULE), ("run/$HOME/x@1", NAME_RULE),
    ("run/~/x@1", NAME_RULE), ("run/acme/%2e%2e@1", NAME_RULE),
)  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG_REFERENCES, ids=lambda value: repr(value)[:30])
def test_malformed_reference_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_reference(text, None if text.count("/") > 1 else Kind.RUN) if text != "run/acme" else parse_reference(
            text
        )
    assert len(str(caught.value)) < 600


def test_references_and_digests_are_parsed() -> None:
    assert parse_reference("model/acme/x.y@1.0-rc1") == Reference(Kind.MODEL, "acme", "x.y", "1.0-rc1")
    assert parse_reference("acme/x@latest", Kind.RUN) == Reference(Kind.RUN, "acme", "x")
    assert parse_reference("sha256:" + "a" * 12) == Digest("a" * 12)
    assert not is_reference("prompts/mine")
    assert is_reference("acme/x@1")


WRONG_ADDRESSES = (
    ("", r"no registry is given; add --from WHERE \(to publish: --to WHERE\)"),
    ("file:", "names no folder"), ("file://host/share", "names no folder"),
    ("ftp://x/y", "not the address"),
    ("http://github.com/a/b", "has no TLS"), ("https://h/a?b=c", "not the address"),
    ("s3:bucket", "not the address"), ("ext::sh -c id", "not the address"),
    ("a\nb", "control characters"), ("a\x00b", "control characters"), ("\x1b[2J", "control characters"),
    ("a\u202eb", "control characters"), ("x:" + "y" * 100_000, "not the address"),
    ("-oProxyCommand=x:y", "not the address"),
)  # fmt: skip


@pytest.mark.parametrize(("address", "message"), WRONG_ADDRESSES, ids=lambda value: repr(value)[:30])
def test_malformed_registry_address_is_refused(address: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIP_RUN_REGISTRY", raising=False)
    with pytest.raises(UsageError, match=message) as caught:
        connect(address)
    assert len(str(caught.value)) < 600
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "message"), [("https", "cannot have a user or password"), ("ftp", "not the address of a registry")]
)
def test_error_does_not_repeat_a_token_in_an_address(scheme: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        connect(f"{scheme}://me:t0ken-in-an-address@github.com/acme/registry")
    assert "t0ken" not in str(caught.value)


def test_registry_folder_can_be_a_path_or_file_address(tmp_path: Path) -> None:
    assert len({connect(text).address for text in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}")}) == 1


# Versions

ASCENDING_VERSIONS = (
    "a1b2", "0.9", "1.0-rc1", "1.0-rc2", "1.0-rc10", "1.0rc11", "1.0", "1.0.post1", "1.0.1", "1.2", "1.10", "2",
    "10.0", "2026.11.22", "20260101",
)  # fmt: skip


def test_versions_are_ordered_by_number_and_candidates_come_before_releases() -> None:
    for lower, higher in pairwise(ASCENDING_VERSIONS):
        assert version_order(lower) < version_order(higher), (lower, higher)
    assert sorted(set(ASCENDING_VERSIONS), key=version_order) == list(ASCENDING_VERSIONS)


@pytest.mark.parametrize("pair", [("1.0", "1.00"), ("1-a", "1-b"), ("01", "1"), ("a.b", "a_b"), ("9" * 100, "9" * 99)])
def test_any_two_different_versions_are_ordered(pair: tuple[str, str]) -> None:
    first_order, second_order = map(version_order, pair)
    assert (first_order < second_order) != (second_order < first_order)
