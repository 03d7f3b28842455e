"""Read a YAML text into plain data with the place of every key, and refuse unsafe or ambiguous documents.

YAML events are checked before data is built from them, because deep nesting crashes libyaml, and aliases can expand to
any size. OmegaConf reads the values; the places come from the YAML nodes.
"""

from __future__ import annotations

import errno
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml

from runner.base.problems import Place, Problem
from runner.base.storage.safe_files import read_bounded
from runner.base.text import encoding_problem
from runner.documents.plain_values import MAX_DEPTH, KeyPath, dotted, to_plain_values
from runner.documents.simple_yaml import read_simple_document
from runner.documents.yaml_errors import TOO_DEEP, explain_error, split_lines
from runner.documents.yaml_writer import dump_inline

MAX_BYTES = 256 << 10
"""Maximum size of a file."""
NOT_READ = "not a document that can be read"
"""The kind of problems whose messages may quote the file. A kind itself quotes nothing; see `_add_problem`."""
MAX_NODES = 50_000
"""Maximum number of keys and values of a file, after its aliases are expanded."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
"""Prefix of the tags of YAML's own types."""
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")
"""Matches keys that OmegaConf reads as numbers, but YAML as text."""
_OCTAL_OR_TIME = re.compile(r"[-+]?(0[0-9_]+|.*:.*)")
"""Matches numbers that YAML reads in base 8 or 60."""
LABELS_KEY: KeyPath = ("dataset", "labels")
"""The mapping whose keys are labels of a dataset. Unquoted `yes` and `no` are text there, not booleans."""
_NESTED = re.compile(r"(?<!\\)\$\{[^}]*(?<!\\)\$\{")
"""Matches an interpolation inside another one."""
_SCALARS = ("str", "int", "float", "bool", "null", "timestamp")
MAX_DIGITS = 80
"""The longest integer, in characters. Any 64-bit integer is shorter; Python refuses to parse thousands of digits."""


@dataclass
class Document:
    """The content of one file: its data, the place of each key, and its problems."""

    file: str
    folder: Path
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    is_own: bool = True
    """Whether messages may quote the file; see `runner.documents.source_tree`."""
    lines: list[str] = field(default_factory=list)
    """The lines of the text, as YAML counts them."""
    labels_path: KeyPath = LABELS_KEY
    """The path of the mapping whose keys are labels; see `LABELS_KEY`."""
    content: bytes | None = None
    """The file's bytes; None if there is no file."""

    def place(self, key_path: KeyPath) -> Place:
        """Return the place of a key, or of the nearest key above it."""
        return place_in(self.places, key_path) or Place(self.file, is_own=self.is_own)

    def place_at(self, line: int, column: int) -> Place:
        """Return the place at a line and column, with the text of the line if messages may quote it."""
        source = self.lines[line - 1] if self.is_own and line <= len(self.lines) else None
        return Place(self.file, line, column, self.is_own, source)


def place_in(places: Mapping[KeyPath, Place], key_path: KeyPath) -> Place | None:
    """Return the place of a key or, if it has none, of the nearest key above it."""
    return next((places[key_path[:end]] for end in range(len(key_path), -1, -1) if key_path[:end] in places), None)


def read_yaml(path: Path, display_name: str | None = None, *, is_own: bool = True) -> Document:
    """Read a YAML file whose root is a mapping; messages name the file by `display_name`."""
    document = Document(display_name or str(path), path.parent, is_own=is_own)
    try:
        raw = read_bounded(path, MAX_BYTES)
    except OSError as error:
        large = f"the file is larger than {MAX_BYTES >> 10} KiB; is this a spec?"
        message = large if error.errno == errno.EFBIG else f"cannot read the file: {error.strerror or error}"
        return _add_problem(document, message, kind=message)
    document.content = raw
    problem = _encoding_problem(raw)
    if problem is not None:
        return _add_problem(document, problem, kind=problem)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        document.lines = split_lines(raw.decode("utf-8", "replace"))
        before = raw[: error.start].decode("utf-8").split("\n")
        message = f"not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8"
        return _add_problem(document, message, len(before), len(before[-1]) + 1, kind="not UTF-8")
    return parse_yaml(text, document)


def _encoding_problem(raw: bytes) -> str | None:
    """Return a message if a file is UTF-16 or has null bytes; otherwise None."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or (
        raw[:2].count(0) == 1 and raw[:64].count(0) >= len(raw[:64]) // 2
    ):
        return "the file is UTF-16; save it as UTF-8"
    if b"\0" in raw:
        return "the file is binary, not text; name a YAML file"
    return None


def parse_yaml(text: str, document: Document) -> Document:
    """Read YAML text into `document`, and return the document."""
    problem = encoding_problem(text)
    if problem is not None:
        return _add_problem(document, problem)
    document.lines = split_lines(text)
    try:
        refused = list(_find_refusals(text))
        node = None if refused else yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        explanation = explain_error(error, text, document.lines)
        return _add_problem(document, explanation.message, explanation.line, explanation.column, kind="not valid YAML")
    for message, line, column in refused:
        _add_problem(document, message, line, column)
    if refused:
        return document
    if node is None:
        empty = "the file is empty; `nip-run schema` lists the keys"
        return _add_problem(document, empty, kind=empty)
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        message = f"expected a mapping (KEY: VALUE lines), but this is {kind}; `nip-run schema` lists the keys"
        return _add_problem(document, message, kind=message)
    return _read_mapping(node, text, document)


def from_mapping(data: Mapping[str, object], document: Document) -> Document:
    """Read a mapping into `document` with the same checks as for YAML text; its places have no line numbers."""
    refused: list[tuple[KeyPath, str]] = []
    parse_yaml(dump_inline(to_plain_values(data, refused)), document)
    # The user never saw the YAML text, so its line numbers would mislead.
    nowhere = Place(document.file, is_own=document.is_own)
    document.places = dict.fromkeys(document.places, nowhere)
    document.problems = [replace(problem, place=nowhere) for problem in document.problems]
    document.problems.extend(Problem(nowhere, dotted(key_path), message) for key_path, message in refused)
    return document


def _read_mapping(node: yaml.MappingNode, text: str, document: Document) -> Document:
    """Read the root mapping of a file into `document`; invalid values become problems and are left out."""
    value_problems: list[Problem] = []
    has_non_text_labels = _make_keys_text(node, document.labels_path)
    _record_places(node, (), document, value_problems)
    keys_are_valid = not document.problems
    document.problems.extend(value_problems)
    if not keys_are_valid:
        return document
    try:
        if value_problems or has_non_text_labels:
            text = yaml.serialize(node, Dumper=yaml.SafeDumper)  # `_record_places` has set the invalid nodes to null
        elif (data_without_omegaconf := read_simple_document(node)) is not None:
            document.data = data_without_omegaconf
            return document
        from omegaconf import OmegaConf  # not at the top, since most documents are simple

        config = OmegaConf.load(io.StringIO(text), max_yaml_expanded_nodes=MAX_NODES)
    except Exception as error:  # noqa: BLE001 - OmegaConf raises its own and antlr's errors; both are about the text
        return _add_problem(document, f"OmegaConf cannot read the file: {str(error).splitlines()[0]}")
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    document.data = cast("dict[str, Any]", data)  # `_record_places` has refused every key that is not text
    return document


def _make_keys_text(node: yaml.Node, key_path: KeyPath) -> bool:
    """Make text of the boolean and integer keys of the mapping at `key_path`; return whether there were any."""
    if not isinstance(node, yaml.MappingNode):
        return False
    if key_path:
        return any(_make_keys_text(value, key_path[1:]) for key, value in node.value if key.value == key_path[0])
    non_text_keys = [key for key, _ in node.value if key.tag in (_TAG + "bool", _TAG + "int")]
    for key in non_text_keys:
        key.tag = _TAG + "str"
    return bool(non_text_keys)


def _add_problem(document: Document, message: str, line: int = 1, column: int = 1, kind: str = NOT_READ) -> Document:
    """Add a problem to a document, and return the document; `kind` is a form of the message that quotes no content."""
    document.problems.append(Problem(document.place_at(line, column), "", message, kind))
    return document


def _find_refusals(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the message, line and column of each thing in a YAML text that is not allowed."""
    depth = documents = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
    for count, event in enumerate(events):
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if count > MAX_NODES:
            yield f"more than {MAX_NODES} nodes (keys and values); is this a spec?", line, column
            return
        for message in _find_event_refusals(event):
            yield message, line, column
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if depth > MAX_DEPTH:
            yield TOO_DEEP, line, column
            return
        if documents > 1:
            yield "a second document starts here; move it to a file of its own", line, column
            return


def _find_event_refusals(event: Any) -> Iterator[str]:
    if isinstance(event, yaml.AliasEvent):
        yield f"aliases (*{event.anchor}) are not allowed; use ${{...}} or extends"
    elif getattr(event, "anchor", None):
        yield f"anchors (&{event.anchor}) are not allowed; use ${{...}} or extends"
    if getattr(event, "tag", None):
        yield f"explicit YAML tags ({event.tag}) are not allowed; remove the tag"


def _scalar_problem(node: yaml.ScalarNode) -> str | None:
    """Return a message if a scalar is too long, has an unsupported YAML type or a bad interpolation; otherwise None."""
    if node.tag == _TAG + "int" and len(node.value) > MAX_DIGITS:
        return f"a number of {len(node.value)} characters; a whole number has at most 63 bits here"
    if node.tag in (_TAG + "int", _TAG + "float") and _OCTAL_OR_TIME.fullmatch(node.value):
        number = yaml.safe_load(node.value)
        return f"{node.value} means {number} in YAML; write {number}, or put the text in quotes"
    if node.tag.removeprefix(_TAG) not in _SCALARS:
        return f"{node.value!r} means something else in YAML; put it in quotes"
    return interpolation_problem(node.value) if node.tag == _TAG + "str" else None


def interpolation_problem(text: str) -> str | None:
    """Return a message if an interpolation `${...}` in a text is malformed, or not just a key; otherwise None."""
    if "${" not in text:
        return None
    from omegaconf.errors import OmegaConfBaseException
    from omegaconf.grammar_parser import parse

    try:
        tree = parse(text)
    except OmegaConfBaseException as error:
        return f"{text!r} is not a valid interpolation: {str(error).splitlines()[0]}; write \\${{ for the text itself"
    if "InterpolationResolverContext" in _node_kinds(tree):
        return f"{text!r}: only ${{key}} is allowed, no function such as ${{oc.env:...}}; write the value out"
    if _NESTED.search(text):
        return f"{text!r}: the key of an interpolation must be written out"
    return None


def _node_kinds(node: Any) -> Iterator[str]:
    yield type(node).__name__
    for child in getattr(node, "children", None) or ():
        yield from _node_kinds(child)


def _record_places(node: yaml.Node, key_path: KeyPath, document: Document, value_problems: list[Problem]) -> None:
    """Record the place of every key below a node. Set invalid values to null, and add `value_problems`."""
    place = document.places.setdefault(key_path, _place(node, document))
    if isinstance(node, yaml.ScalarNode):
        message = _scalar_problem(node)
        if message is not None:
            value_problems.append(Problem(place, dotted(key_path), message))
            node.tag, node.value = _TAG + "null", ""
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _record_places(item, (*key_path, index), document, value_problems)
    elif isinstance(node, yaml.MappingNode):
        seen_keys: set[str] = set()
        for key_node, value_node in node.value:
            if _is_valid_key(key_node, key_path, document, seen_keys):
                seen_keys.add(key_node.value)
                document.places[(*key_path, key_node.value)] = _place(key_node, document)
                _record_places(value_node, (*key_path, key_node.value), document, value_problems)


def _place(node: yaml.Node, document: Document) -> Place:
    return document.place_at(node.start_mark.line + 1, node.start_mark.column + 1)


def _is_valid_key(node: yaml.Node, key_path: KeyPath, document: Document, seen_keys: set[str]) -> bool:
    """Return whether a key is text and unique in its mapping; otherwise add a problem to the document."""
    key = dotted((*key_path, node.value))
    if not isinstance(node, yaml.ScalarNode):
        key, message = dotted(key_path), "a key must be text, not a list or mapping; put it in quotes"
    elif node.tag != _TAG + "str":
        message = f"a key must be text, but YAML reads this one as {node.tag.removeprefix(_TAG)}; put it in quotes"
    elif not node.style and _NUMBER.fullmatch(node.value):
        message = "a key must be text, but this one may be read as a number; put it in quotes"
    elif node.value in seen_keys:
        first = document.places[(*key_path, node.value)].line
        message = f"a duplicate key, which is already set in line {first}; remove one of the two"
    else:
        return True
    document.problems.append(Problem(_place(node, document), key, message))
    return False
