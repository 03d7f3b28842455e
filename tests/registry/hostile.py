"""A table of hostile releases, and the messages that refuse them.

Each row changes a valid release. If its files, manifest and checksum agree, the attacker has written all of them, and
only the reader's own rules protect the reader.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.release_trees import ReleaseTree, file_entry, manifest_bytes

Change = Callable[[ReleaseTree], object]


@dataclass(frozen=True)
class HostileRelease:
    name: str
    change: Change
    message: str


FORM = "each part of a path is 1 to 100 of"
LONG = "a path is at most 240 characters in 8 parts"
RESERVED = "is reserved for the registry"
NAME_FORM = "must consist of 1 to 100 of a-z"
DAMAGED = "release.json is damaged"
NOT_CANONICAL = "not formatted as nip-run writes it"


def _list_evil_file(path: str) -> Change:
    """List a single file with this path in the manifest."""

    def change(tree: ReleaseTree) -> None:
        tree.changes["files"] = [file_entry(path, b"evil")]

    return change


def _list_files(*paths: str) -> Change:
    return lambda tree: tree.changes.update(files=[file_entry(path, b"x") for path in paths])


def _change_file(**changes: Any) -> Change:
    """Change fields of the only file in the manifest; `...` removes a field."""

    def change(tree: ReleaseTree) -> None:
        entry = file_entry("README.md", b"hello\n")
        tree.files = {"README.md": b"hello\n"}
        tree.changes["files"] = [{name: value for name, value in {**entry, **changes}.items() if value is not ...}]

    return change


def _set(**changes: Any) -> Change:
    return lambda tree: tree.changes.update(changes)


def _encode(make: Callable[[dict[str, Any]], bytes]) -> Change:
    """Write the bytes that `make` returns as the manifest."""

    def change(tree: ReleaseTree) -> None:
        tree.manifest = make(tree.manifest_data())

    return change


def _replace(old: str, new: str) -> Change:
    def make(fields: dict[str, Any]) -> bytes:
        text = manifest_bytes(fields).decode()
        assert text.count(old) == 1
        return text.replace(old, new).encode()

    return _encode(make)


def _after(action: Callable[[Path], object]) -> Change:
    def change(tree: ReleaseTree) -> None:
        tree.after = action

    return change


PATHS = (
    ("../evil", FORM), ("a/../../evil", FORM), ("/etc/x", FORM), ("..\\evil", FORM), ("C:\\x", FORM), ("C:x", FORM),
    ("a\nb", FORM), ("a\tb", FORM), ("a\x00b", FORM), ("a\x1b[2Jb", FORM), ("a\x9bb", FORM), ("con.txt", "reserved"),
    ("CON", "reserved"), ("nul", "reserved"), ("a/aux.md", "reserved"), ("Com1.json", "reserved"),
    ("lpt9.csv", "reserved"), (".git/config", FORM), (".env", FORM), ("a/.ssh/id", FORM), (".nip-run-fetched", FORM),
    ("a/.nip-run-fetched", FORM), ("", FORM), (".", FORM), ("..", FORM), ("a//b", FORM), ("a/", FORM), ("/", FORM),
    ("a/./b", FORM), ("a.", FORM), ("a./b", FORM), ("a ", FORM), (" a", FORM), ("a\u202eb", FORM), ("\u00e9", FORM),
    ("\uff41", FORM), ("\uff43\uff4f\uff4e", FORM), ("\u212a", FORM), ("a\u200bb", FORM), ("a" * 101, FORM),
    ("/".join("a" * 9), LONG), ("/".join(["a" * 80] * 4), LONG), ("a" * 3_999, LONG), ("-rf", FORM), ("~/x", FORM),
    ("~root", FORM), ("$HOME", FORM), ("%2e%2e/x", FORM), ("a:b", FORM), ("a*b", FORM), ("a?b", FORM), ("a|b", FORM),
    ("`id`", FORM), ("release.json", RESERVED), ("RELEASE.JSON", RESERVED), ("release.sha256", RESERVED),
    ("yanked/yanked.json", RESERVED),
    ("signature/x", RESERVED), ("Signature", RESERVED), ("sitecustomize.py", "a release is data"),
    ("runner/__init__.py", "a release is data"), ("a.so", "a release is data"), ("run.SH", "a release is data"),
    ("evil.pth", "a release is data"), ("a.pyc", "a release is data"), ("GIT~1/config", FORM),
)  # fmt: skip

_DEEP: Any = 1
for _ in range(30):
    _DEEP = [_DEEP]

MANIFESTS: tuple[tuple[str, Change, str], ...] = (
    # files that conflict with each other
    ("a file twice", _list_files("a.md", "a.md"), "is listed twice"),
    ("a pair by case", _list_files("A.md", "a.md"), "only in case"),
    ("folders by case", _list_files("A/x.md", "a/y.md"), "only in case"),
    ("a file as a folder", _list_files("a", "a/b.md"), "the same path is a file and a folder"),
    ("a folder as a file, by case", _list_files("A/b.md", "a"), "the same path is a file and a folder"),
    ("files in another order", _list_files("b.md", "a.md"), "not sorted by path"),
    ("2,001 files", _list_files(*(f"f{n:04}" for n in range(2_001))), "2001 files; at most 2000 are allowed"),
    # sizes
    ("a size below 0", _change_file(size=-1), "size cannot be -1"),
    ("a size that is true", _change_file(size=True), "unexpected value"),
    ("a size of half a byte", _change_file(size=5.5), "unexpected value"),
    ("a size in words", _change_file(size="6"), "unexpected value"),
    ("a size of 2**63", _change_file(size=1 << 63), "at most 4,294,967,296 are allowed"),
    ("one file too large", _change_file(size=(4 << 30) + 1), "at most 4,294,967,296 are allowed"),
    (
        "too much in all",
        _set(files=[file_entry(f"f{n}", b"", size=4 << 30) for n in range(5)]),
        "bytes in all; at most",
    ),
    ("a size that is too small", _change_file(size=5), "longer than the 5 bytes"),
    ("a size that is too large", _change_file(size=7), "has 6 of 7 bytes"),
    ("a size of 0", _change_file(size=0), "longer than the 0 bytes"),
    ("a size as a list", _change_file(size=[6]), "unexpected value"),
    # hashes and types of files
    ("a hash in capitals", _change_file(sha256="A" * 64), "is not of the form"),
    ("a short hash", _change_file(sha256="a" * 63), "is not of the form"),
    ("a hash with a line end", _change_file(sha256="a" * 64 + "\n"), "is not of the form"),
    ("no hash", _change_file(sha256=None), "unexpected value"),
    ("a hash of other bytes", _change_file(sha256="a" * 64), "README.md is damaged: its SHA-256 differs"),
    ("a hash of 4,000 letters", _change_file(sha256="g" * 4_000), "is not of the form"),
    ("a media type of two lines", _change_file(media_type="text/plain\r\nx: y"), "is not of the form"),
    ("a media type that is long", _change_file(media_type="a" * 70 + "/b"), "is not of the form"),
    ("no media type", _change_file(media_type=None), "unexpected value"),
    ("a file without a size", _change_file(size=...), "missing or unknown keys"),
    ("a file with a mode", _change_file(mode=0o4755), "missing or unknown keys"),
    ("a file with a link", _change_file(link="/etc/passwd"), "missing or unknown keys"),
    ("a file that is a list", _set(files=[["README.md"]]), "unexpected value"),
    ("files that are a mapping", _set(files={"README.md": 1}), "unexpected value"),
    ("a path that is a number", _change_file(path=1), "unexpected value"),
    # fields of the manifest
    ("another name", _set(name="other"), "its release.json is that of run/acme/other@1"),
    ("another owner", _set(owner="evil"), "its release.json is that of run/evil/tiny@1"),
    ("another version", _set(version="2"), "its release.json is that of run/acme/tiny@2"),
    ("another kind", _set(kind="model"), "its release.json is that of model/acme/tiny@1"),
    ("no kind of ours", _set(kind="malware"), "is not a valid Kind"),
    ("a kind that is a list", _set(kind=["run"]), "unexpected value"),
    ("a kind of 4,000 letters", _set(kind="x" * 4_000), "a text of 4,000 characters"),
    ("an owner in capitals", _set(owner="Acme"), NAME_FORM),
    ("an owner in Cyrillic", _set(owner="\u0430cme"), NAME_FORM),
    ("an owner above", _set(owner=".."), NAME_FORM),
    ("an owner with a folder", _set(owner="a/b"), NAME_FORM),
    ("an owner of two lines", _set(owner="a\nb"), NAME_FORM),
    ("an owner of 101 letters", _set(owner="a" * 101), NAME_FORM),
    ("an owner that is a device", _set(owner="con"), "reserved name"),
    ("a name with two dots", _set(name="a..b"), "two dots in a row"),
    ("a version called latest", _set(version="latest"), "reserved name"),
    ("a version that is a number", _set(version=1), "unexpected value"),
    ("a long description", _set(description="x" * 4_001), "a text of 4,001 characters"),
    ("a description that is no text", _set(description={}), "unexpected value"),
    ("a licence that is a list", _set(licence=["MIT"]), "unexpected value"),
    ("an unknown visibility", _set(visibility="secret"), "unknown visibility 'secret'"),
    ("a visibility of a megabyte", _set(visibility=["x" * 900_000]), "unknown visibility"),
    ("an identity that is no hash", _set(identity={"run": "x"}), "is not of the form"),
    ("an identity that is a list", _set(identity=["a" * 64]), "unexpected value"),
    ("a source with more keys", _set(sources={"spec": {"x": 1}}), "missing or unknown keys"),
    (
        "a source that is clean of nothing",
        _set(sources={"spec": {"repository": None, "commit": None, "path": None, "clean": True, "why": None}}),
        "has no repository, commit or path",
    ),
    (
        "a commit that is an option",
        _set(sources={"s": {"repository": "x", "commit": "--upload-pack=x", "path": "a", "clean": True, "why": None}}),
        "is not of the form",
    ),
    (
        "a password in an address",
        _set(sources={"s": {"repository": "https://u:p@h/x", "commit": None, "path": "", "clean": False, "why": ""}}),
        "repository has a password",
    ),
    ("a link to a path", _set(links=[_link := {"role": "input", "release": "../../x", "sha256": None,
                                               "identity": None}]), "which is not KIND/OWNER/NAME@VERSION"),
    ("a link to the latest", _set(links=[{**_link, "release": "run/a/b@latest"}]), "which is not KIND"),
    ("a link to no version", _set(links=[{**_link, "release": "run/a/b"}]), "which is not KIND"),
    ("a link of 4,000 letters", _set(links=[{**_link, "release": "x" * 4_000}]), "which is not KIND"),
    ("a link of no role", _set(links=[{**_link, "role": "Evil role"}]), "is not of the form"),
    ("a link with a short hash", _set(links=[{**_link, "release": None, "sha256": "ab"}]), "is not of the form"),
    ("links that are a mapping", _set(links=_link), "unexpected value"),
    ("facts that are a list", _set(facts=[1]), "unexpected value"),
    ("facts nested 30 deep", _set(facts={"x": _DEEP}), "nested deeper than 24 levels"),
    ("1,001 facts", _set(facts={f"f{n}": 1 for n in range(1_001)}), "1,001 names; at most 1,000"),
    ("a fact of a long name", _set(facts={"x" * 201: 1}), "a text of 201 characters"),
    ("an unknown key", _set(hooks={"after": "sh"}), "missing or unknown keys: hooks"),
    ("an unknown key of 100,000 letters", _set(**{"x" * 100_000: 1}), "missing or unknown keys"),
    ("a key is missing", _set(files=...), "missing or unknown keys: files"),
    ("format 0", _set(format=0), "its format cannot be 0"),
    ("format true", _set(format=True), NOT_CANONICAL),
    ("format 1.0", _set(format=1.0), NOT_CANONICAL),
    ("no format", _set(format=...), "its format cannot be None"),
    ("a format of a megabyte", _set(format="1" * 900_000), "its format cannot be '1111"),
    ("a newer format", _set(format=2), "written by a newer version of nip-run (format 2)"),
    # bytes that are not canonical JSON
    ("no bytes", _encode(lambda _: b""), DAMAGED),
    ("no JSON", _encode(lambda _: b"PK\x03\x04"), DAMAGED),
    ("a list", _encode(lambda _: b"[]"), "not an object"),
    ("null", _encode(lambda _: b"null"), "not an object"),
    ("a text", _encode(lambda _: b'"x"'), "not an object"),
    ("NaN", _replace('"facts": {}', '"facts": {"x": NaN}'), DAMAGED),
    ("Infinity", _replace('"facts": {}', '"facts": {"x": Infinity}'), DAMAGED),
    ("1e999", _replace('"facts": {}', '"facts": {"x": 1e999}'), DAMAGED),
    ("a number beyond 64 bits", _replace('"facts": {}', '"facts": {"x": 123456789012345678901}'), DAMAGED),
    ("a number of 100,000 digits", _replace('"facts": {}', f'"facts": {{"x": {"1" * 100_000}}}'), DAMAGED),
    ("a key twice", _replace('"owner": "acme"', '"owner": "evil",\n  "owner": "acme"'), NOT_CANONICAL),
    ("half a surrogate pair", _replace('"description": ""', '"description": "\\ud800"'), DAMAGED),
    ("a byte order mark", _encode(lambda fields: b"\xef\xbb\xbf" + manifest_bytes(fields)), DAMAGED),
    ("UTF-16", _encode(lambda fields: manifest_bytes(fields).decode().encode("utf-16")), DAMAGED),
    ("bytes that are no UTF-8", _replace('"description": ""', '"description": "\\udcff"'), DAMAGED),
    ("more behind it", _encode(lambda fields: manifest_bytes(fields) + b"{}"), DAMAGED),
    ("another line behind it", _encode(lambda fields: manifest_bytes(fields) + b"\n"), NOT_CANONICAL),
    ("in one line", _encode(lambda fields: json.dumps(fields, sort_keys=True).encode()), NOT_CANONICAL),
    ("in another order", _encode(lambda fields: manifest_bytes(dict(reversed(fields.items()))).replace(b"{", b"{ ", 1)),
     NOT_CANONICAL),
    ("with other line ends", _encode(lambda fields: manifest_bytes(fields).replace(b"\n", b"\r\n")), NOT_CANONICAL),
    ("escaped otherwise", _replace('"acme"', '"\\u0061cme"'), NOT_CANONICAL),
    ("100,000 brackets", _encode(lambda _: b"[" * 100_000), DAMAGED),
    ("100,000 braces", _encode(lambda _: b'{"a":' * 100_000), DAMAGED),
    ("more than a megabyte", _encode(lambda fields: manifest_bytes(fields) + b" " * (1 << 20)),
     "larger than 1,048,576"),
)  # fmt: skip

CHECKSUMS = (
    ("empty", b""), ("another line", b"%b  release.json\n%b  data/a.txt\n"), ("in capitals", b"%B  release.json\n"),
    ("of another file", b"%b  ../release.json\n"), ("one blank", b"%b release.json\n"), ("no line end",
     b"%b  release.json"), ("CRLF", b"%b  release.json\r\n"), ("marked as binary", b"%b *release.json\n"),
    ("escaped", b"\\%b  release.json\n"), ("short", b"abc  release.json\n"), ("binary", b"\0" * 80),
)  # fmt: skip


def _checksum(form: bytes) -> Change:
    def change(tree: ReleaseTree) -> None:
        tree.checksum = form.replace(b"%b", b"a" * 64).replace(b"%B", b"A" * 64)

    return change


def _swap(path: str, make: Callable[[Path], object]) -> Change:
    """Replace a file of the release by what `make` creates."""

    def action(folder: Path) -> None:
        target = folder / path
        target.unlink()
        make(target)

    return _after(action)


def _link_folder(up: int) -> Change:
    """Move a parent folder of the release out of the registry, and replace it by a link."""

    def action(folder: Path) -> None:
        linked = folder
        for _ in range(up):
            linked = linked.parent
        moved = linked.parents[3 - up] / "elsewhere"
        linked.rename(moved)
        linked.symlink_to(moved)

    return _after(action)


def _make_socket(path: Path) -> None:
    working_folder = Path.cwd()
    os.chdir(path.parent)  # a socket's path is at most 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(working_folder)


def _link_data(folder: Path) -> None:
    (folder / "data").rename(folder.parents[4] / "data-aside")
    (folder / "data").symlink_to(folder.parents[4] / "data-aside")


def _flatten_data(folder: Path) -> None:
    (folder / "data/a.txt").unlink()
    (folder / "data").rmdir()
    (folder / "data").touch()


def _write_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"hello\n")
        file.truncate(1 << 40)


SECRET = "secret.txt"
"""A file of the reader next to the registry."""


def _link_to_secret(path: Path) -> None:
    path.symlink_to(path.parents[5] / SECRET)


LINK = "this is a link, which nip-run does not follow here"
MISSING = "the release is incomplete"

TREES: tuple[tuple[str, Change, str], ...] = (
    ("a file is missing", _swap("README.md", lambda _: None), f"README.md is missing; {MISSING}"),
    ("a file is shorter", _swap("README.md", lambda p: p.write_bytes(b"hell")), "README.md is damaged: it has 4"),
    ("a file is longer", _swap("README.md", lambda p: p.write_bytes(b"hello\n\n")), "longer than the 6 bytes"),
    ("a file is empty", _swap("README.md", lambda p: p.touch()), "README.md is damaged: it has 0 of 6 bytes"),
    ("a file has other bytes", _swap("README.md", lambda p: p.write_bytes(b"Hello\n")), "README.md is damaged: its"),
    ("a file has a terabyte", _swap("README.md", _write_sparse), "README.md is damaged: it is longer than the 6 bytes"),
    ("a file is a link out", _swap("README.md", _link_to_secret), LINK),
    ("a file is a link in", _swap("README.md", lambda p: p.symlink_to("data/a.txt")), LINK),
    ("a file is a link to itself", _swap("README.md", lambda p: p.symlink_to(p.name)), LINK),
    ("a file is a link to nothing", _swap("README.md", lambda p: p.symlink_to("no")), LINK),
    ("a file is a link to a device", _swap("README.md", lambda p: p.symlink_to("/dev/zero")), LINK),
    ("a file is a FIFO", _swap("README.md", os.mkfifo), "not a regular file"),
    ("a file is a socket", _swap("README.md", _make_socket), "not a regular file"),
    ("a file is a folder", _swap("README.md", Path.mkdir), "Is a directory"),
    ("a folder is a link", _after(_link_data), LINK),
    ("a folder is a file", _after(_flatten_data), "Not a directory"),
    ("no manifest", _swap("release.json", lambda _: None), f"release.json is missing; {MISSING}"),
    ("the manifest is a link out", _swap("release.json", _link_to_secret), LINK),
    ("the manifest is a FIFO", _swap("release.json", os.mkfifo), "not a regular file"),
    ("the manifest is a folder", _swap("release.json", Path.mkdir), "Is a directory"),
    ("the manifest is cut", _swap("release.json", lambda p: p.write_bytes(b"{")), "or release.sha256 is damaged"),
    ("no checksum", _swap("release.sha256", lambda _: None), "has no run/acme/tiny"),
    ("the checksum is a link", _swap("release.sha256", _link_to_secret), "has no run/acme/tiny"),
    ("the checksum is a FIFO", _swap("release.sha256", os.mkfifo), "has no run/acme/tiny"),
    ("the checksum is a folder", _swap("release.sha256", Path.mkdir), "has no run/acme/tiny"),
    ("the release is a link", _link_folder(0), "has no run/acme/tiny"),
    ("the name is a link", _link_folder(1), "has no run/acme/tiny"),
    ("the owner is a link", _link_folder(2), "has no run/acme/tiny"),
    ("the kind is a link", _link_folder(3), "has no run/acme/tiny"),
)  # fmt: skip


def _yank(data: bytes) -> Change:
    def action(folder: Path) -> None:
        (folder / "yanked").mkdir()
        (folder / "yanked" / "yanked.json").write_bytes(data)

    return _after(action)


YANKS = (
    ("no JSON", b"x"), ("a list", b"[]"), ("a text", b'"reason"'), ("no reason", b"{}"), ("null", b"null"),
    ("a reason that is a number", b'{"reason": 5}'), ("a reason of another hash", b'{"reason": "x", "sha256": "y"}'),
    ("4,000 brackets", b"[" * 4_000), ("13,000 brackets", b"[" * 12_900), ("NaN", b"NaN"), ("no bytes", b""),
    ("a reason of two lines", json.dumps({"reason": "a\nb", "sha256": "x"}).encode()),
    ("a reason that drives a terminal", b'{"reason": "\\u001b[2J"}'), ("half a pair", b'{"reason": "\\ud800"}'),
    ("bytes that are no UTF-8", b"\xff\xfe"),
    ("a reason of 1,001 letters", json.dumps({"reason": "x" * 1_001}).encode()),
)  # fmt: skip

ROWS = (
    *(HostileRelease(f"path {path[:30]!r} of {len(path)}", _list_evil_file(path), words) for path, words in PATHS),
    *(HostileRelease(f"manifest: {name}", change, words) for name, change, words in MANIFESTS),
    *(HostileRelease(f"checksum: {name}", _checksum(form), "release.sha256 is damaged") for name, form in CHECKSUMS),
    HostileRelease("checksum: of other bytes", _checksum(b"%b  release.json\n"), "or release.sha256 is damaged"),
    HostileRelease(
        "checksum: long", _checksum(b"%b  release.json\n" * 20), "release.sha256 is larger than 1,000 bytes"
    ),
    *(HostileRelease(f"tree: {name}", change, words) for name, change, words in TREES),
    *(HostileRelease(f"yank: {name}", _yank(data), "yanked/yanked.json is damaged") for name, data in YANKS),
    HostileRelease("yank: 20,000 bytes", _yank(b"x" * 20_000), "yanked.json is larger than"),
)
