"""Reading, layering and checking of YAML documents: every refusal at its place, and what is read is what was meant."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from runner.documents.layers import Layered, Override, dump, load_layers
from runner.documents.reader import read
from runner.errors import Place


def beside(name: str, folder: Path) -> Path | None:
    path = folder / name
    return path if path.exists() else None


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def layers(folder: Path, text: str | bytes, *overrides: str) -> Layered:
    return load_layers(write(folder, "a.yaml", text), "a.yaml", [Override(o) for o in overrides], beside)


def refused(folder: Path, text: str | bytes, *overrides: str) -> list[str]:
    return [str(problem) for problem in layers(folder, text, *overrides).problems]


# What the reader refuses, and where

MERGE_KEY_BOMB = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 26))
ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a: 1\na: 2\n", "a.yaml:2:1: a: the key is given twice"),
        ("a: {b: 1, b: 2}\n", "a.yaml:1:11: a.b: the key is given twice"),
        ("{a: 1, 'a': 2}\n", "a.yaml:1:8: a: the key is given twice"),
        ("l:\n- {b: 1, b: 2}\n", "a.yaml:2:10: l.0.b: the key is given twice"),
        ("x: !!binary aGk=\n", "a.yaml:1:4: explicit YAML tags (tag:yaml.org,2002:binary) are not allowed"),
        (
            "x: !!python/object/apply:os.system [ls]\n",
            "a.yaml:1:4: explicit YAML tags (tag:yaml.org,2002:python/object/apply:os.system) are not allowed",
        ),
        (
            "n: 1\nx: !!python/object/apply:pathlib.PosixPath [/]\n",
            "a.yaml:2:4: explicit YAML tags (tag:yaml.org,2002:python/object/apply:pathlib.PosixPath) are not allowed",
        ),
        ("x: !own 1\n", "a.yaml:1:4: explicit YAML tags (!own) are not allowed"),
        ("a: &x 1\n", "a.yaml:1:4: anchors (&x) are not allowed; use ${...} or extends"),
        ("a: 1\nb: *x\n", "a.yaml:2:4: aliases (*x) are not allowed; use ${...} or extends"),
        (ALIAS_BOMB, "a.yaml:1:5: anchors (&a0) are not allowed; use ${...} or extends"),
        (MERGE_KEY_BOMB, "a.yaml:1:5: anchors (&a0) are not allowed; use ${...} or extends"),
        ("<<: {a: 1}\n", "a.yaml:1:1: <<: a key must be text, YAML reads this one as merge; put it in quotes"),
        ("[" * 100_000, "a.yaml:1:25: nested deeper than 24 levels"),
        ("a: " + "[" * 100_000, "a.yaml:1:27: nested deeper than 24 levels"),
        ("{a: " * 50_000, "a.yaml:1:97: nested deeper than 24 levels"),
        ("\n".join(f"k{i}: 1" for i in range(26_000)), "a.yaml:25000:1: more than 50000 nodes"),
        ("a: 1\nb: é\n".encode("latin-1"), "a.yaml:2:4: not UTF-8 (byte 0xe9); save the file as UTF-8"),
        ("a: 1\n".encode("utf-16"), "a.yaml:1:1: not UTF-8 (byte 0xff); save the file as UTF-8"),
        (
            "a: 1\n".encode("utf-16-le"),
            "a.yaml:1:1: not valid YAML: unacceptable character #x0000: control characters are not allowed",
        ),
        ("", "a.yaml:1:1: the file is empty; `nip-run schema` lists the keys"),
        ("# only a comment\n\n", "a.yaml:1:1: the file is empty; `nip-run schema` lists the keys"),
        ("- a\n", "a.yaml:1:1: a mapping (KEY: VALUE lines) belongs here, this is a list"),
        ("just text\n", "a.yaml:1:1: a mapping (KEY: VALUE lines) belongs here, this is a single value"),
        ("---\n", "a.yaml:1:1: a mapping (KEY: VALUE lines) belongs here, this is a single value"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: a second document starts here; one file holds one document"),
        ("a:\n\tb: 1\n", "a.yaml:2:1: not valid YAML: found character that cannot start any token"),
        ("a: [1,\n", "a.yaml:2:1: not valid YAML: did not find expected node content"),
        ("on: 1\n", "a.yaml:1:1: on: a key must be text, YAML reads this one as bool; put it in quotes"),
        ("a:\n  1: x\n", "a.yaml:2:3: a.1: a key must be text, YAML reads this one as int; put it in quotes"),
        ("~: 1\n", "a.yaml:1:1: ~: a key must be text, YAML reads this one as null; put it in quotes"),
        ("a: " + "x" * (256 << 10), "a.yaml:1:1: the file is larger than 256 KiB; is this a spec?"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_document_must_not_hold_is_refused_at_its_place(tmp_path, text, first):
    assert refused(tmp_path, text)[0] == first


def test_a_key_that_is_a_list_is_refused_without_the_parsers_innards(tmp_path):
    (message,) = refused(tmp_path, "? [a, b]\n: 1\n")
    assert message.startswith("a.yaml:1:3: ")
    assert "a key must be text" in message
    assert "Node(" not in message


@pytest.mark.parametrize("value", ["${", "${x", "a ${} b", "${:x}"])
def test_a_malformed_interpolation_is_refused_at_the_key_that_holds_it(tmp_path, value):
    (message,) = refused(tmp_path, f"n: 1\nz:\n  k: '{value}'\n")
    assert message.startswith("a.yaml:3:3: z.k: ")


@pytest.mark.parametrize("value", ["<<", "="])
def test_yamls_own_odd_scalars_are_text_or_refused_at_their_place(tmp_path, value):
    layered = layers(tmp_path, f"n: 1\nk: {value}\n")
    assert layered.data.get("k") == value or layered.problems[0].place == Place("a.yaml", 2, 1)


def test_a_byte_order_mark_is_read_over(tmp_path):
    assert layers(tmp_path, b"\xef\xbb\xbfa: 1\n").data == {"a": 1}


def test_a_missing_file_and_a_folder_cannot_be_read(tmp_path):
    assert str(read(tmp_path / "no.yaml", "no.yaml").problems[0]) == (
        "no.yaml:1:1: cannot read the file: No such file or directory"
    )
    assert str(read(tmp_path, "here").problems[0]) == "here:1:1: cannot read the file: Is a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_cannot_be_read(tmp_path):
    path = write(tmp_path, "a.yaml", "a: 1\n")
    path.chmod(0)
    assert "Permission denied" in str(read(path).problems[0])


def test_all_double_keys_of_a_file_are_reported_at_once(tmp_path):
    assert [m.split(" ")[0] for m in refused(tmp_path, "a: 1\na: 2\nb: {c: 1, c: 2}\n1: x\n")] == [
        "a.yaml:2:1:", "a.yaml:3:11:", "a.yaml:4:1:",
    ]  # fmt: skip


# extends


def test_a_file_extends_one_other_and_wins(tmp_path):
    write(tmp_path, "base.yaml", "a: 1\nm: {x: 1, y: 2}\nl: [1, 2, 3]\n")
    layered = layers(tmp_path, "extends: base.yaml\nm: {y: 3, z: 4}\nl: [9]\n")
    assert layered.data == {"a": 1, "m": {"x": 1, "y": 3, "z": 4}, "l": [9]}


def test_of_several_bases_the_later_wins(tmp_path):
    write(tmp_path, "one.yaml", "a: 1\nb: 1\nc: 1\n")
    write(tmp_path, "two.yaml", "b: 2\nc: 2\n")
    assert layers(tmp_path, "extends: [one.yaml, two.yaml]\nc: 3\n").data == {"a": 1, "b": 2, "c": 3}
    assert layers(tmp_path, "extends: [two.yaml, one.yaml]\n").data == {"a": 1, "b": 1, "c": 1}


def test_two_files_may_extend_the_same_base(tmp_path):
    write(tmp_path, "base.yaml", "a: 1\n")
    write(tmp_path, "one.yaml", "extends: base.yaml\nb: 1\n")
    write(tmp_path, "two.yaml", "extends: base.yaml\nc: 1\n")
    assert layers(tmp_path, "extends: [one.yaml, two.yaml]\n").data == {"a": 1, "b": 1, "c": 1}


def test_a_base_is_looked_up_beside_the_file_that_names_it(tmp_path):
    write(tmp_path, "sub/one.yaml", "extends: two.yaml\n")
    write(tmp_path, "sub/two.yaml", "a: 2\n")
    assert layers(tmp_path, "extends: sub/one.yaml\n").data == {"a": 2}


def test_a_cycle_of_files_is_refused(tmp_path):
    write(tmp_path, "b.yaml", "extends: a.yaml\n")
    (message,) = refused(tmp_path, "n: 1\nextends: b.yaml\n")
    assert message.endswith("b.yaml:1:1: extends: 'a.yaml' extends itself, by way of this file")
    assert "extends itself" in refused(tmp_path, "extends: a.yaml\n")[0]


def test_a_missing_base_is_reported_where_it_is_named(tmp_path):
    write(tmp_path, "one.yaml", "a: 1\n")
    (message,) = refused(tmp_path, "extends:\n- one.yaml\n- nope.yaml\n")
    assert message.startswith("a.yaml:3:3: extends: no file 'nope.yaml' in ")


@pytest.mark.parametrize("value", ["3", "{a: b}", "[1]"])
def test_extends_takes_file_names_only(tmp_path, value):
    (message,) = refused(tmp_path, f"n: 1\nextends: {value}\n")
    assert message == "a.yaml:2:1: extends: a file name or a list of file names belongs here"


def test_a_chain_of_files_without_end_is_refused(tmp_path):
    for i in range(30):
        write(tmp_path, f"f{i}.yaml", f"extends: f{i + 1}.yaml\n")
    write(tmp_path, "f30.yaml", "a: 1\n")
    assert "more than 16 files extend each other" in refused(tmp_path, "extends: f0.yaml\n")[0]


def test_bases_that_each_name_the_next_twice_do_not_multiply(tmp_path):
    for i in range(15):
        write(tmp_path, f"f{i}.yaml", f"extends: [f{i + 1}.yaml, f{i + 1}.yaml]\n")
    write(tmp_path, "f15.yaml", "a: 1\n")
    path = write(tmp_path, "a.yaml", "extends: f0.yaml\n")
    _within_seconds(5, path)


def test_a_leaf_stands_where_the_file_that_set_it_says_it(tmp_path):
    write(tmp_path, "base.yaml", "# a base\nm:\n  x: 1\n  y: 2\nl: [1, 2]\n")
    layered = layers(tmp_path, "extends: base.yaml\nm: {y: 3}\n")
    assert layered.place(("m", "y")) == Place("a.yaml", 2, 5)
    assert layered.place(("m", "x")).line == 3
    assert layered.place(("m", "x")).file.endswith("base.yaml")
    assert layered.place(("l", 1)).column == 8
    assert layered.place(("m", "missing")) == layered.place(("m",))


def test_a_replaced_mapping_leaves_no_places_behind(tmp_path):
    write(tmp_path, "base.yaml", "# one\n# two\nm: {x: {deep: 1}}\n")
    layered = layers(tmp_path, "extends: base.yaml\nm: {x: 5}\n")
    assert layered.data == {"m": {"x": 5}}
    assert layered.place(("m", "x", "deep")).file == "a.yaml"


def test_errors_of_several_files_come_at_once(tmp_path):
    write(tmp_path, "one.yaml", "a: 1\na: 2\n")
    write(tmp_path, "two.yaml", "x: !t 1\n")
    messages = refused(tmp_path, "extends: [one.yaml, two.yaml, nope.yaml]\n")
    assert len(messages) == 3
    assert "one.yaml:2:1: a: the key is given twice" in messages[0]
    assert "two.yaml:1:4: explicit YAML tags" in messages[1]
    assert "no file 'nope.yaml'" in messages[2]


# Overrides

BASE = "a: 1\nb: {c: 2, d: [1, 2]}\n"


@pytest.mark.parametrize(
    ("override", "at", "value"),
    [
        ("a=2", "a", 2),
        ("a=2.5", "a", 2.5),
        ("a=1e3", "a", 1000.0),
        ("a=true", "a", True),
        ("a=null", "a", None),
        ("a=", "a", None),
        ("a=text", "a", "text"),
        ("a='2'", "a", "2"),
        ('a="x: y"', "a", "x: y"),
        ("a=x=y", "a", "x=y"),
        ("a=é😀", "a", "é😀"),
        ("a=[1, {x: y}]", "a", [1, {"x": "y"}]),
        ("a={x: 1}", "a", {"x": 1}),
        ("b.c=3", "b", {"c": 3, "d": [1, 2]}),
        ("b.d=[9]", "b", {"c": 2, "d": [9]}),
        ("b={e: 1}", "b", {"e": 1}),
        ("b.new=3", "b", {"c": 2, "d": [1, 2], "new": 3}),
        ("+b.new=3", "b", {"c": 2, "d": [1, 2], "new": 3}),
        ("q.r.s=1", "q", {"r": {"s": 1}}),
        ("+q.r=1", "q", {"r": 1}),
        ("~b.c", "b", {"d": [1, 2]}),
        ("a=${b.c}", "a", 2),
    ],
)
def test_an_override_sets_adds_or_deletes(tmp_path, override, at, value):
    layered = layers(tmp_path, BASE, override)
    assert not layered.problems
    assert layered.data[at] == value


def test_a_deleted_key_is_gone(tmp_path):
    assert layers(tmp_path, BASE, "~b").data == {"a": 1}


def test_overrides_are_applied_in_order(tmp_path):
    assert layers(tmp_path, BASE, "a=2", "a=3", "~b.c", "+b.c=4").data == {"a": 3, "b": {"c": 4, "d": [1, 2]}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+a=2", "a: the key is there already; write a=... to change it"),
        ("~b.cc", "b.cc: there is no such key to delete; did you mean 'c'?"),
        ("~nope.x", "nope.x: there is no such key to delete"),
        ("~a=1", "a: a key is deleted by ~KEY alone, without a value"),
        ("a", "a: write KEY=VALUE, +KEY=VALUE or ~KEY"),
        ("+", "write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys"),
        ("=1", "write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys"),
        ("b..c=1", "b..c: write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys"),
        ("a.b=1", "a: 1 is no mapping; 'a.b' cannot be set in it"),
        ("b.d.0=9", "b.d: [1, 2] is no mapping; 'b.d.0' cannot be set in it"),
        ("a=[1", "a: not valid YAML: did not find expected ',' or ']'"),
        ("a=x: y", "a: not valid YAML: mapping values are not allowed in this context"),
        ("a=!!binary aGk=", "a: explicit YAML tags (tag:yaml.org,2002:binary) are not allowed"),
        ("a=&x 1", "a: anchors (&x) are not allowed; use ${...} or extends"),
        ("a={x: 1, x: 2}", "a: the key is given twice"),
        ("a={on: 1}", "a: a key must be text, YAML reads this one as bool; put it in quotes"),
    ],
)
def test_a_malformed_override_is_refused_by_its_own_text(tmp_path, override, message):
    (found,) = refused(tmp_path, BASE, override)
    assert found == f"override {override!r}:1:1: {message}"


def test_an_override_of_two_lines_is_refused_or_kept_whole(tmp_path):
    layered = layers(tmp_path, BASE, "a=1\nz: 2")
    assert layered.problems or "z" in str(layered.data["a"])


def test_all_bad_overrides_are_reported_at_once(tmp_path):
    assert len(refused(tmp_path, BASE, "a.b=1", "nope", "~zz")) == 3


def test_the_place_of_an_overridden_leaf_is_the_override(tmp_path):
    layered = layers(tmp_path, BASE, "b.c=3", "b.d=[7]")
    assert layered.place(("b", "c")).file == "override 'b.c=3'"
    assert layered.place(("b", "d", 0)).file == "override 'b.d=[7]'"
    assert layered.place(("b",)) == Place("a.yaml", 2, 1)


# Interpolation


def test_interpolation_resolves_keys_text_lists_and_mappings(tmp_path):
    text = "n: 3\nt: x${n}y\nl: ['${n}', '${m.k}']\nm: {k: '${..n}', own: '${.k}'}\ncopy: ${m}\nitem: ${l[0]}\n"
    assert layers(tmp_path, text).data == {
        "n": 3, "t": "x3y", "l": [3, 3], "m": {"k": 3, "own": 3}, "copy": {"k": 3, "own": 3}, "item": 3,
    }  # fmt: skip


def test_interpolation_sees_the_override(tmp_path):
    assert layers(tmp_path, "n: 3\nt: ${n}\n", "n=4").data["t"] == 4


def test_every_broken_interpolation_is_reported_at_its_place(tmp_path):
    messages = refused(tmp_path, "a: ${nope}\nm:\n  b: ${a.c.d}\n  c: ${.c}\n")
    assert [m.split(": ")[:2] for m in messages] == [
        ["a.yaml:1:1", "a"], ["a.yaml:3:3", "m.b"], ["a.yaml:4:3", "m.c"],
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["a: ${b}\nb: ${a}\n", "a: ${a}\n", "a: {b: '${a}'}\n"])
def test_interpolation_in_a_circle_is_refused(tmp_path, text):
    assert refused(tmp_path, text)


@pytest.mark.parametrize(
    "value",
    [
        "${oc.env:HOME}",
        "${oc.env:HOME,default}",
        "${oc.env: HOME}",
        "${ oc.env:HOME }",
        "text ${oc.env:HOME} text",
        "${oc.decode:'${oc.env:HOME}'}",
        "${oc.create:{x: 1}}",
        "${oc.select:n}",
        "${oc.select:n,${oc.env:HOME}}",
        "${oc.dict.keys:n}",
        "${oc.dict.values:n}",
        "${oc.deprecated:n}",
        "${${n}:HOME}",
        "${oc.${n}:HOME}",
        "${oc.env:${n}}",
        "${m.${oc.env:HOME}}",
        "${m[${oc.env:HOME}]}",
        "${anything:1}",
        "\\\\${oc.env:HOME}",
    ],
)
def test_no_interpolation_calls_a_function(tmp_path, value):
    quoted = "'" + value.replace("'", "''") + "'"
    (message,) = refused(tmp_path, f"n: env\nm: {{x: 1}}\nl: [0, {quoted}]\n")
    assert message.startswith("a.yaml:3:8: l.1: ")
    assert "only ${key} is allowed" in message
    assert os.environ.get("HOME", "/root") not in message


def test_an_override_calls_no_function_either(tmp_path):
    (message,) = refused(tmp_path, BASE, "a=${oc.env:HOME}")
    assert "only ${key} is allowed" in message


def test_an_escaped_interpolation_stays_text(tmp_path):
    assert layers(tmp_path, "a: \\${oc.env:HOME}\nb: x \\${a} y\n").data == {"a": "${oc.env:HOME}", "b": "x ${a} y"}


def _bomb(first: str, one: str, opening: str = "", closing: str = "", last: int = 9) -> str:
    """Each key holds the one before it ten times; `one` is how it is referred to, `P` its number."""
    rows = [f"a{i}: {opening}{one.replace('P', str(i - 1)) * 10}{closing}\n" for i in range(1, last)]
    return first + "".join(rows)


BOMBS = {
    "text": _bomb("a0: x\n", "${aP}"),
    "spaces": _bomb("a0: x\n", "${ aP }"),
    "lists": _bomb("a0: [x]\n", "'${aP}', ", "[", "]"),
    "empty lists": _bomb("a0: []\n", "'${aP}', ", "[", "]"),
    "empty text": _bomb("a0: ''\n", "'${aP}', ", "[", "]"),
    "brackets": _bomb("a0: [x]\n", "${aP[0]}", "['", "']"),
    "number as a key": _bomb("a0: {'1': x}\n", "${aP.1}", "{'1': '", "'}"),
    "computed names": _bomb("n: a\na0: x\n", "${${n}P}"),
    "relative": _bomb("a0: x\n", "${.aP}"),
    "mappings": "a0: {k: x}\n"
    + "".join(f"a{i}:\n" + "".join(f"  k{j}: ${{a{i - 1}}}\n" for j in range(10)) for i in range(1, 9)),
}


def _within_seconds(seconds: float, path: Path) -> str:
    """Load in a process of its own with little memory, so that a bomb hurts nobody."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from pathlib import Path; from runner.documents.layers import load_layers\n"
        "def find(name, folder): return folder / name\n"
        "path = Path(sys.argv[1]); found = load_layers(path, path.name, (), find)\n"
        "print(*found.problems, sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@pytest.mark.parametrize("name", BOMBS)
def test_an_interpolation_bomb_is_refused(tmp_path, name):
    assert "a.yaml:" in _within_seconds(5, write(tmp_path, "a.yaml", BOMBS[name]))


@pytest.mark.parametrize("name", BOMBS)
def test_the_same_in_small_is_no_bomb(tmp_path, name):
    small = BOMBS[name].split("a3:")[0]
    layered = layers(tmp_path, small)
    assert name == "computed names" or not layered.problems


# Writing and reading again


def _read_again(folder: Path, data: dict) -> dict:
    layered = layers(folder, dump(data))
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
def test_dumped_text_is_read_back_unchanged(tmp_path, text):
    assert _read_again(tmp_path, {"k": text, "l": [text]}) == {"k": text, "l": [text]}


@pytest.mark.parametrize("name", ["on", "1", "1e3", "", "a.b", "<<", "${k}", "é"])
def test_dumped_keys_are_read_back_unchanged(tmp_path, name):
    assert _read_again(tmp_path, {"m": {name: 1}}) == {"m": {name: 1}}


def test_any_data_is_read_back_unchanged(tmp_path):
    rng = random.Random(7)
    pieces = ["${", "}", "\\", "a", " ", "\n", "'", '"', ":", "#", "é", "😀", "1", "e", ".", "-", "{", "\u2028"]

    def value(depth: int):
        kind = rng.randrange(9 if depth else 6)
        if kind < 3:
            return "".join(rng.choices(pieces, k=rng.randrange(8)))
        if kind < 6:
            return rng.choice([None, True, False, 0, -5, 10**20, 1.5, 1e300, 1e-7, float("inf")])
        if kind == 6:
            return [value(depth - 1) for _ in range(rng.randrange(4))]
        return {f"k{i}": value(depth - 1) for i in range(rng.randrange(4))}

    for _ in range(60):
        data = {f"r{i}": value(3) for i in range(4)}
        assert _read_again(tmp_path, data) == data
