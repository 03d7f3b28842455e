"""One YAML text into plain data with the place of every key, refusing what a document must not hold.

The event stream is scanned before anything is built from it: libyaml's composer recurses and dies on deep
nesting, and aliases multiply. Values are read by OmegaConf, places from the YAML nodes.
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
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse as parse_interpolation

from runner.base.errors import Place, Problem
from runner.base.storage.safe_files import read_bounded
from runner.base.text import not_text
from runner.documents.plain_values import MAX_DEPTH, KeyPath, plain
from runner.documents.plain_yaml import settled_document
from runner.documents.yaml_errors import explained, lines_of
from runner.documents.yaml_writer import dump_inline

MAX_BYTES = 256 << 10
NOT_READ = "not a document that can be read"
MAX_NODES = 50_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")
"""Numbers to OmegaConf and texts to YAML."""
WORDS: KeyPath = ("dataset", "labels")
"""Where keys are words of a dataset: `yes` and `no` stand there without quotes, which are true and false to YAML."""
_NESTED = re.compile(r"(?<!\\)\$\{[^}]*(?<!\\)\$\{")
_SCALARS = ("str", "int", "float", "bool", "null", "timestamp")
MAX_DIGITS = 80
"""More than 64 bits have in any base; Python refuses to read some thousands."""


@dataclass
class Document:
    """What one file says: its data, where each key stands, and what is wrong with it."""

    file: str
    folder: Path
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    is_own: bool = True
    """Whether it may be told what stands in it; see `own_tree`."""
    lines: list[str] = field(default_factory=list)
    """Its text by lines, as YAML counts them."""
    words: KeyPath = WORDS
    """Where `WORDS` are in it."""
    content: bytes | None = None
    """The file's bytes; None where there is no file."""

    def place(self, at: KeyPath) -> Place:
        """Where a key stands, or the nearest key above it."""
        return place_in(self.places, at) or Place(self.file, is_own=self.is_own)

    def place_at(self, line: int, column: int) -> Place:
        """A place by its line and column, with the line itself where it may be quoted."""
        source = self.lines[line - 1] if self.is_own and line <= len(self.lines) else None
        return Place(self.file, line, column, self.is_own, source)


def place_in(places: Mapping[KeyPath, Place], at: KeyPath) -> Place | None:
    """The place of a key or, where it has none, of the nearest key above it."""
    return next((places[at[:end]] for end in range(len(at), -1, -1) if at[:end] in places), None)


def read(path: Path, shown: str | None = None, *, is_own: bool = True) -> Document:
    """Read a YAML file whose root is a mapping; `shown` is how messages name it."""
    document = Document(shown or str(path), path.parent, is_own=is_own)
    try:
        raw = read_bounded(path, MAX_BYTES)
    except OSError as error:
        large = f"the file is larger than {MAX_BYTES >> 10} KiB; is this a spec?"
        message = large if error.errno == errno.EFBIG else f"cannot read the file: {error.strerror or error}"
        return _failed(document, message, kind=message)
    document.content = raw
    wrong = _binary(raw)
    if wrong is not None:
        return _failed(document, wrong, kind=wrong)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        document.lines = lines_of(raw.decode("utf-8", "replace"))
        before = raw[: error.start].decode("utf-8").split("\n")
        message = f"not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8"
        return _failed(document, message, len(before), len(before[-1]) + 1, kind="not UTF-8")
    return parse(text, document)


def _binary(raw: bytes) -> str | None:
    """Why a file is no text in UTF-8, as far as its bytes as a whole say it."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or (
        raw[:2].count(0) == 1 and raw[:64].count(0) >= len(raw[:64]) // 2
    ):
        return "the file is UTF-16; save it as UTF-8"
    if b"\0" in raw:
        return "a binary file, not text; give a YAML file"
    return None


def parse(text: str, document: Document) -> Document:
    """Read YAML text into `document`."""
    wrong = not_text(text)
    if wrong is not None:
        return _failed(document, wrong)
    document.lines = lines_of(text)
    try:
        refused = list(_refusals(text))
        node = None if refused else yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        found = explained(error, text, document.lines)
        return _failed(document, found.message, found.line, found.column, kind="not valid YAML")
    for message, line, column in refused:
        _failed(document, message, line, column)
    if refused:
        return document
    if node is None:
        empty = "the file is empty; `nip-run schema` lists the keys"
        return _failed(document, empty, kind=empty)
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        message = f"a mapping (KEY: VALUE lines) belongs here, this is {kind}; `nip-run schema` lists the keys"
        return _failed(document, message, kind=message)
    return _read_mapping(node, text, document)


def from_mapping(data: Mapping[str, Any], document: Document) -> Document:
    """A mapping into `document`, with the same refusals as for the YAML text that says it; keys have no lines."""
    refused: list[tuple[KeyPath, str]] = []
    parse(dump_inline(plain(data, refused)), document)
    # The text has lines that nobody has seen.
    nowhere = Place(document.file, is_own=document.is_own)
    document.places = dict.fromkeys(document.places, nowhere)
    document.problems = [replace(problem, place=nowhere) for problem in document.problems]
    document.problems.extend(Problem(nowhere, ".".join(map(str, at)), message) for at, message in refused)
    return document


def _read_mapping(node: yaml.MappingNode, text: str, document: Document) -> Document:
    """Read the root of a file, without the values that are broken."""
    broken: list[Problem] = []
    has_words = _take_words(node, document.words)
    _walk(node, (), document, broken)
    is_sound = not document.problems
    document.problems.extend(broken)
    if not is_sound:
        return document
    try:
        if broken or has_words:
            text = yaml.serialize(node, Dumper=yaml.SafeDumper)  # _walk has emptied what is broken in the nodes
        elif (settled := settled_document(node)) is not None:
            document.data = settled
            return document
        config = OmegaConf.load(io.StringIO(text), max_yaml_expanded_nodes=MAX_NODES)
    except Exception as error:  # noqa: BLE001 - OmegaConf raises its own and antlr's errors; both are about the text
        return _failed(document, f"OmegaConf cannot read the file: {str(error).splitlines()[0]}")
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    document.data = cast("dict[str, Any]", data)  # _walk has refused every key that is no text
    return document


def _take_words(node: yaml.Node, at: KeyPath) -> bool:
    """Make the keys below `at` the words that stand there; whether YAML read some otherwise."""
    if not isinstance(node, yaml.MappingNode):
        return False
    if at:
        return any(_take_words(value, at[1:]) for key, value in node.value if key.value == at[0])
    taken = [key for key, _ in node.value if key.tag in (_TAG + "bool", _TAG + "int")]
    for key in taken:
        key.tag = _TAG + "str"
    return bool(taken)


def _failed(document: Document, message: str, line: int = 1, column: int = 1, kind: str = NOT_READ) -> Document:
    """Add a problem; `kind` is the message without what stands in the file."""
    document.problems.append(Problem(document.place_at(line, column), "", message, kind))
    return document


def _refusals(text: str) -> Iterator[tuple[str, int, int]]:
    depth = documents = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
    for count, event in enumerate(events):
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if count > MAX_NODES:
            yield f"more than {MAX_NODES} nodes", line, column
            return
        for message in _event_refusals(event):
            yield message, line, column
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if depth > MAX_DEPTH:
            yield f"nested deeper than {MAX_DEPTH} levels", line, column
            return
        if documents > 1:
            yield "a second document starts here; one file holds one document", line, column
            return


def _event_refusals(event: Any) -> Iterator[str]:
    if isinstance(event, yaml.AliasEvent):
        yield f"aliases (*{event.anchor}) are not allowed; use ${{...}} or extends"
    elif getattr(event, "anchor", None):
        yield f"anchors (&{event.anchor}) are not allowed; use ${{...}} or extends"
    if getattr(event, "tag", None):
        yield f"explicit YAML tags ({event.tag}) are not allowed"


def _scalar_problem(node: yaml.ScalarNode) -> str | None:
    """What neither YAML's types nor the interpolation grammar have a meaning for."""
    if node.tag == _TAG + "int" and len(node.value) > MAX_DIGITS:
        return f"a number of {len(node.value)} characters; a whole number has at most 63 bits here"
    if node.tag.removeprefix(_TAG) not in _SCALARS:
        return f"{node.value!r} means something else in YAML; put it in quotes"
    return interpolation_problem(node.value) if node.tag == _TAG + "str" else None


def interpolation_problem(text: str) -> str | None:
    """Why a text's `${...}` cannot be resolved: grammar, functions, names that are computed."""
    if "${" not in text:
        return None
    try:
        tree = parse_interpolation(text)
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


def _walk(node: yaml.Node, at: KeyPath, document: Document, broken: list[Problem]) -> None:
    """Note the place of every key; what is wrong with a value goes to `broken`, and the value is emptied."""
    place = document.places.setdefault(at, _place(node, document))
    if isinstance(node, yaml.ScalarNode):
        message = _scalar_problem(node)
        if message is not None:
            broken.append(Problem(place, ".".join(map(str, at)), message))
            node.tag, node.value = _TAG + "null", ""
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*at, index), document, broken)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if _is_sound_key(key_node, at, document, seen):
                seen.add(key_node.value)
                document.places[(*at, key_node.value)] = _place(key_node, document)
                _walk(value_node, (*at, key_node.value), document, broken)


def _place(node: yaml.Node, document: Document) -> Place:
    return document.place_at(node.start_mark.line + 1, node.start_mark.column + 1)


def _is_sound_key(node: yaml.Node, at: KeyPath, document: Document, seen: set[str]) -> bool:
    """Whether a key is a text, and a new one in its mapping; where it is not, that is a problem of the document."""
    key = ".".join(map(str, (*at, node.value)))
    if not isinstance(node, yaml.ScalarNode):
        key, message = ".".join(map(str, at)), "a key must be text, not a list or mapping; put it in quotes"
    elif node.tag != _TAG + "str":
        message = f"a key must be text, YAML reads this one as {node.tag.removeprefix(_TAG)}; put it in quotes"
    elif not node.style and _NUMBER.fullmatch(node.value):
        message = "a key must be text, this one may be read as a number; put it in quotes"
    elif node.value in seen:
        first = document.places[(*at, node.value)].line
        message = f"the key is given twice; it stands in line {first} already, leave one out"
    else:
        return True
    document.problems.append(Problem(_place(node, document), key, message))
    return False
