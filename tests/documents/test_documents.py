"""Reading, layering and writing of YAML documents. Errors have a place, and dumped data is read back unchanged."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runner.base.problems import Place
from runner.documents.fetched_files import MARKER, describe_origin, marker_bytes
from runner.documents.yaml_reader import read_yaml
from runner.documents.yaml_writer import dump
from tests.support.document_layers import list_problems, load_in_process, load_text, write_document

# Refused documents

MERGE_KEY_BOMB = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 26))
ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "a.yaml:2:1: a: a duplicate key, which is already set in line 1; remove one of the two"),
        (
            "a: {b: 1, b: 2}\n",
            "a.yaml:1:11: a.b: a duplicate key, which is already set in line 1; remove one of the two",
        ),
        ("{a: 1, 'a': 2}\n", "a.yaml:1:8: a: a duplicate key, which is already set in line 1; remove one of the two"),
        (
            "l:\n- {b: 1, b: 2}\n",
            "a.yaml:2:10: l.0.b: a duplicate key, which is already set in line 2; remove one of the two",
        ),
        (
            "x: !!binary aGk=\n",
            "a.yaml:1:4: explicit YAML tags (tag:yaml.org,2002:binary) are not allowed; remove the tag",
        ),
        (
            "x: !!python/object/apply:os.system [ls]\n",
            (
                "a.yaml:1:4: explicit YAML tags (tag:yaml.org,2002:python/object/apply:os.system) are not allowed; "
                "remove the tag"
            ),
        ),
        (
            "n: 1\nx: !!python/object/apply:pathlib.PosixPath [/]\n",
            (
                "a.yaml:2:4: explicit YAML tags (tag:yaml.org,2002:python/object/apply:pathlib.PosixPath) are not "
                "allowed; remove the tag"
            ),
        ),
        ("x: !own 1\n", "a.yaml:1:4: explicit YAML tags (!own) are not allowed; remove the tag"),
        ("a: &x 1\n", "a.yaml:1:4: anchors (&x) are not allowed; use ${...} or extends"),
        ("a: 1\nb: *x\n", "a.yaml:2:4: aliases (*x) are not allowed; use ${...} or extends"),
        (ALIAS_BOMB, "a.yaml:1:5: anchors (&a0) are not allowed; use ${...} or extends"),
        (MERGE_KEY_BOMB, "a.yaml:1:5: anchors (&a0) are not allowed; use ${...} or extends"),
        ("<<: {a: 1}\n", "a.yaml:1:1: <<: a key must be text, but YAML reads this one as merge; put it in quotes"),
        ("[" * 900, "a.yaml:1:25: nested deeper than 24 levels; use fewer levels"),
        ("a: " + "[" * 900, "a.yaml:1:27: nested deeper than 24 levels; use fewer levels"),
        ("{a: " * 900, "a.yaml:1:97: nested deeper than 24 levels; use fewer levels"),
        (
            "\n".join(f"k{i}: 1" for i in range(26_000)),
            "a.yaml:25000:1: more than 50000 nodes (keys and values); is this a spec?",
        ),
        ("a: 1\nb: é\n".encode("latin-1"), "a.yaml:2:4: not UTF-8 (byte 0xe9); save the file as UTF-8"),
        ("a: 1\n".encode("utf-16"), "a.yaml:1:1: the file is UTF-16; save it as UTF-8"),
        (
            "a: 1\n".encode("utf-16-le"),
            "a.yaml:1:1: the file is UTF-16; save it as UTF-8",
        ),
        ("", "a.yaml:1:1: the file is empty; `nip-run schema` lists the keys"),
        ("# only a comment\n\n", "a.yaml:1:1: the file is empty; `nip-run schema` lists the keys"),
        (
            "- a\n",
            ("a.yaml:1:1: expected a mapping (KEY: VALUE lines), but this is a list; `nip-run schema` lists the keys"),
        ),
        (
            "just text\n",
            (
                "a.yaml:1:1: expected a mapping (KEY: VALUE lines), but this is a single value; "
                "`nip-run schema` lists the keys"
            ),
        ),
        (
            "---\n",
            (
                "a.yaml:1:1: expected a mapping (KEY: VALUE lines), but this is a single value; "
                "`nip-run schema` lists the keys"
            ),
        ),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: a second document starts here; move it to a file of its own"),
        ("a:\n\tb: 1\n", "a.yaml:2:1: a tab in the indentation; indent with spaces, two for each level"),
        ("a: [1,\n", "a.yaml:1:4: the [ that opens here is not closed; add ] where it ends"),
        ("a: 010\n", "a.yaml:1:1: a: 010 means 8 in YAML; write 8, or put the text in quotes"),
        ("a: [1, -0_7]\n", "a.yaml:1:8: a.1: -0_7 means -7 in YAML; write -7, or put the text in quotes"),
        ("a: 12:30\n", "a.yaml:1:1: a: 12:30 means 750 in YAML; write 750, or put the text in quotes"),
        ("a: 1:30.5\n", "a.yaml:1:1: a: 1:30.5 means 90.5 in YAML; write 90.5, or put the text in quotes"),
        ("on: 1\n", "a.yaml:1:1: on: a key must be text, but YAML reads this one as bool; put it in quotes"),
        ("a:\n  1: x\n", "a.yaml:2:3: a.1: a key must be text, but YAML reads this one as int; put it in quotes"),
        ("~: 1\n", "a.yaml:1:1: ~: a key must be text, but YAML reads this one as null; put it in quotes"),
        (
            "a: " + "x" * (256 << 10),
            "a.yaml:1:1: the file is larger than 256 KiB; is this a spec?",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_document_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    assert list_problems(tmp_path, text)[0] == message


@pytest.mark.parametrize("start", ["[", "a: [", "{a: "])
def test_brackets_deeper_than_the_parser_allows_are_refused(tmp_path: Path, start: str) -> None:
    text = start + start[-1] * 100_000 if start.endswith("[") else start * 50_000
    (problem,) = list_problems(tmp_path, text)
    assert problem.endswith(": nested deeper than 24 levels; use fewer levels")


def test_error_about_a_list_key_does_not_show_parser_nodes(tmp_path: Path) -> None:
    (message,) = list_problems(tmp_path, "? [a, b]\n: 1\n")
    assert message.startswith("a.yaml:1:3: ")
    assert "a key must be text" in message
    assert "Node(" not in message


@pytest.mark.parametrize("value", ["${", "${x", "a ${} b", "${:x}"])
def test_malformed_interpolation_is_refused_at_its_key(tmp_path: Path, value: str) -> None:
    (message,) = list_problems(tmp_path, f"n: 1\nz:\n  k: '{value}'\n")
    assert message.startswith("a.yaml:3:3: z.k: ")


@pytest.mark.parametrize("value", ["<<", "="])
def test_special_yaml_scalars_are_text_or_refused_with_their_place(tmp_path: Path, value: str) -> None:
    layered = load_text(tmp_path, f"n: 1\nk: {value}\n")
    assert layered.data.get("k") == value or layered.problems[0].place == Place("a.yaml", 2, 1)


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert load_text(tmp_path, b"\xef\xbb\xbfa: 1\n").data == {"a": 1}


def test_a_missing_file_and_a_folder_cannot_be_read(tmp_path: Path) -> None:
    assert str(read_yaml(tmp_path / "no.yaml", "no.yaml").problems[0]) == (
        "no.yaml:1:1: cannot read the file: No such file or directory"
    )
    assert str(read_yaml(tmp_path, "here").problems[0]) == "here:1:1: cannot read the file: Is a directory"


@contextmanager
def run_without_root() -> Iterator[None]:
    """Switch to the user `nobody` if the tests run as root, who can read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_without_permission_cannot_be_read() -> None:
    with TemporaryDirectory() as folder:  # other users cannot read pytest's folders
        Path(folder).chmod(0o755)
        path = write_document(Path(folder), "a.yaml", "a: 1\n")
        with run_without_root():
            assert read_yaml(path).problems == []
        path.chmod(0)
        with run_without_root():
            assert "Permission denied" in str(read_yaml(path).problems[0])


def test_all_duplicate_keys_are_reported_together(tmp_path: Path) -> None:
    assert [m.split(" ")[0] for m in list_problems(tmp_path, "a: 1\na: 2\nb: {c: 1, c: 2}\n1: x\n")] == [
        "a.yaml:2:1:", "a.yaml:3:11:", "a.yaml:4:1:",
    ]  # fmt: skip


# extends


def test_file_overrides_the_file_it_extends(tmp_path: Path) -> None:
    write_document(tmp_path, "base.yaml", "a: 1\nm: {x: 1, y: 2}\nl: [1, 2, 3]\n")
    layered = load_text(tmp_path, "extends: base.yaml\nm: {y: 3, z: 4}\nl: [9]\n")
    assert layered.data == {"a": 1, "m": {"x": 1, "y": 3, "z": 4}, "l": [9]}


def test_later_base_overrides_earlier_bases(tmp_path: Path) -> None:
    write_document(tmp_path, "one.yaml", "a: 1\nb: 1\nc: 1\n")
    write_document(tmp_path, "two.yaml", "b: 2\nc: 2\n")
    assert load_text(tmp_path, "extends: [one.yaml, two.yaml]\nc: 3\n").data == {"a": 1, "b": 2, "c": 3}
    assert load_text(tmp_path, "extends: [two.yaml, one.yaml]\n").data == {"a": 1, "b": 1, "c": 1}


def test_two_files_may_extend_the_same_base(tmp_path: Path) -> None:
    write_document(tmp_path, "base.yaml", "a: 1\n")
    write_document(tmp_path, "one.yaml", "extends: base.yaml\nb: 1\n")
    write_document(tmp_path, "two.yaml", "extends: base.yaml\nc: 1\n")
    assert load_text(tmp_path, "extends: [one.yaml, two.yaml]\n").data == {"a": 1, "b": 1, "c": 1}


def test_base_is_found_relative_to_the_file_that_extends_it(tmp_path: Path) -> None:
    write_document(tmp_path, "sub/one.yaml", "extends: two.yaml\n")
    write_document(tmp_path, "sub/two.yaml", "a: 2\n")
    assert load_text(tmp_path, "extends: sub/one.yaml\n").data == {"a": 2}


def test_extends_cycle_is_refused(tmp_path: Path) -> None:
    write_document(tmp_path, "b.yaml", "extends: a.yaml\n")
    (message,) = list_problems(tmp_path, "n: 1\nextends: b.yaml\n")
    assert message.endswith(
        "b.yaml:1:1: extends: 'a.yaml' extends itself through this file; remove one of the `extends`"
    )
    assert "extends itself" in list_problems(tmp_path, "extends: a.yaml\n")[0]


def test_missing_base_is_reported_with_its_place(tmp_path: Path) -> None:
    write_document(tmp_path, "one.yaml", "a: 1\n")
    (message,) = list_problems(tmp_path, "extends:\n- one.yaml\n- nope.yaml\n")
    assert message.startswith("a.yaml:3:3: extends: no file 'nope.yaml' in ")


@pytest.mark.parametrize("value", ["3", "{a: b}", "[1]"])
def test_extends_accepts_only_file_names(tmp_path: Path, value: str) -> None:
    (message,) = list_problems(tmp_path, f"n: 1\nextends: {value}\n")
    assert message == "a.yaml:2:1: extends: expected a file name or a list of file names"


def test_long_extends_chain_is_refused(tmp_path: Path) -> None:
    for i in range(30):
        write_document(tmp_path, f"f{i}.yaml", f"extends: f{i + 1}.yaml\n")
    write_document(tmp_path, "f30.yaml", "a: 1\n")
    assert "a chain of more than 16 files" in list_problems(tmp_path, "extends: f0.yaml\n")[0]


def test_chain_of_bases_extended_twice_loads_in_bounded_time(tmp_path: Path) -> None:
    for i in range(15):
        write_document(tmp_path, f"f{i}.yaml", f"extends: [f{i + 1}.yaml, f{i + 1}.yaml]\n")
    write_document(tmp_path, "f15.yaml", "a: 1\n")
    path = write_document(tmp_path, "a.yaml", "extends: f0.yaml\n")
    load_in_process(5, path)


def test_place_of_a_value_is_in_the_file_that_sets_it(tmp_path: Path) -> None:
    write_document(tmp_path, "base.yaml", "# a base\nm:\n  x: 1\n  y: 2\nl: [1, 2]\n")
    layered = load_text(tmp_path, "extends: base.yaml\nm: {y: 3}\n")
    assert layered.place(("m", "y")) == Place("a.yaml", 2, 5)
    assert layered.place(("m", "x")).line == 3
    assert layered.place(("m", "x")).file.endswith("base.yaml")
    assert layered.place(("l", 1)).column == 8
    assert layered.place(("m", "missing")) == layered.place(("m",))


def test_places_of_a_replaced_mapping_are_removed(tmp_path: Path) -> None:
    write_document(tmp_path, "base.yaml", "# one\n# two\nm: {x: {deep: 1}}\n")
    layered = load_text(tmp_path, "extends: base.yaml\nm: {x: 5}\n")
    assert layered.data == {"m": {"x": 5}}
    assert layered.place(("m", "x", "deep")).file == "a.yaml"


def test_errors_of_several_files_are_reported_together(tmp_path: Path) -> None:
    write_document(tmp_path, "one.yaml", "a: 1\na: 2\n")
    write_document(tmp_path, "two.yaml", "x: !t 1\n")
    messages = list_problems(tmp_path, "extends: [one.yaml, two.yaml, nope.yaml]\n")
    assert len(messages) == 3
    assert "one.yaml:2:1: a: a duplicate key" in messages[0]
    assert "two.yaml:1:4: explicit YAML tags" in messages[1]
    assert "no file 'nope.yaml'" in messages[2]


# Dumping and loading


def dump_and_load(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    layered = load_text(folder, dump(data))
    assert not layered.problems
    return layered.data


@pytest.mark.parametrize(
    "text",
    [
        "", " a ", "a\nb\n", "\t", "é İ 😀", "\ufeff", "yes", "null", "~", "017", "1_000", "1:30", ".nan", "2024-01-01",
        "# x", "a: b", "- a", "!x", "&a", "*a", "---", "<<", "=", "${a}", "x ${oc.env:HOME} y", "$", "${", "}", "\\",
        "1e3", "1E5", "1.e5", "1.5e3", "\x85", "\\${a}", "\\\\${a}", "\\\\\\${a}", "???", "a\\", "\\n", "x" * 400,
    ],
)  # fmt: skip
def test_dumped_text_is_read_back_unchanged(tmp_path: Path, text: str) -> None:
    assert dump_and_load(tmp_path, {"k": text, "l": [text]}) == {"k": text, "l": [text]}


@pytest.mark.parametrize("name", ["on", "1", "1e3", "", "a.b", "<<", "${k}", "é"])
def test_dumped_keys_are_read_back_unchanged(tmp_path: Path, name: str) -> None:
    assert dump_and_load(tmp_path, {"m": {name: 1}}) == {"m": {name: 1}}


def test_any_data_is_read_back_unchanged(tmp_path: Path) -> None:
    rng = random.Random(7)
    pieces = ["${", "}", "\\", "a", " ", "\n", "'", '"', ":", "#", "é", "😀", "1", "e", ".", "-", "{", "\u2028"]

    def make_value(depth: int) -> Any:
        kind = rng.randrange(9 if depth else 6)
        if kind < 3:
            return "".join(rng.choices(pieces, k=rng.randrange(8)))
        if kind < 6:
            return rng.choice([None, True, False, 0, -5, 10**20, 1.5, 1e300, 1e-7, float("inf")])
        if kind == 6:
            return [make_value(depth - 1) for _ in range(rng.randrange(4))]
        return {f"k{i}": make_value(depth - 1) for i in range(rng.randrange(4))}

    for _ in range(60):
        data = {f"r{i}": make_value(3) for i in range(4)}
        assert dump_and_load(tmp_path, data) == data


def test_origin_of_downloaded_files_is_described(tmp_path: Path) -> None:
    download = tmp_path / "got"
    download.mkdir()
    (download / MARKER).write_bytes(marker_bytes("run/acme/learn@1", "0" * 64, "file:/there"))
    assert describe_origin(download / "spec.yaml", download) == "was downloaded"
    assert describe_origin(tmp_path / "own.yaml", download) == "uses the download run/acme/learn@1"
