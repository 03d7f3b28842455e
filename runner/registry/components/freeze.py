"""List the release or commit of each part of a spec, and write a copy of the spec that names all versions.

`nip-run freeze` does this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from runner.base.errors import RunError, UsageError
from runner.base.storage.safe_files import create_only, read_bounded
from runner.documents.plain_values import KeyPath
from runner.documents.releases.manifest import FileSource
from runner.documents.releases.reference import Digest, Kind, Reference, is_reference, parse_reference
from runner.documents.yaml_reader import MAX_BYTES
from runner.documents.yaml_writer import dump_inline
from runner.results.provenance.sources_snapshot import sources_of
from runner.spec.components import ComponentUse
from runner.spec.loader import Spec


@dataclass(frozen=True)
class FrozenPin:
    """A part of a spec with the release or commit that pins its content, or with the reason why it is not pinned."""

    part: str
    """`spec`, `protocol`, `prompts`, `dataset`, or the key that names a release, such as `agents.verifier`."""
    source: FileSource | None = None
    release: str | None = None
    sha256: str | None = None

    @property
    def is_pinned(self) -> bool:
        return self.release is not None or (self.source is not None and self.source.clean)

    @property
    def description(self) -> str:
        """The release or commit that pins the part, in one line; empty if the part is not pinned."""
        if self.release is not None:
            return f"{self.release} sha256:{self.sha256}"
        if self.source is None or not self.source.clean:
            return ""
        if self.source.repository is None:
            return f"{self.source.path}, {self.source.why}"
        return f"{self.source.repository} {self.source.commit} {self.source.path}"

    @property
    def label(self) -> str:
        """The release, or the file and its commit, for people."""
        if self.release is not None or self.source is None:
            return self.release or self.part
        path, repository, commit = self.source.path or self.part, self.source.repository, self.source.commit
        return f"{path} at {commit[:10]} of {repository}" if repository is not None and commit is not None else path

    @property
    def state(self) -> str:
        """`installed` for a release, `clean` for a commit, or the reason why the part is not pinned."""
        if self.is_pinned:
            return "clean" if self.release is None else "installed"
        return self.why_not or "not known"

    @property
    def why_not(self) -> str | None:
        """The reason why the part is not pinned; None if it is pinned, or if the reason is unknown."""
        return None if self.is_pinned or self.source is None else self.source.why


def list_pins(specs: Iterable[Spec]) -> list[FrozenPin]:
    """Return the pins of the specs of all points of a sweep, without duplicates, sorted by part."""
    pins: dict[FrozenPin, None] = {}
    for spec in specs:
        for key, use in spec.components.items():
            pins[FrozenPin(key, release=use.release, sha256=use.sha256)] = None
        for part, source in sources_of(spec).items():
            pins[FrozenPin(part, source)] = None
    return sorted(pins, key=lambda pin: (pin.part, pin.description))


_REFERENCE_KINDS: dict[KeyPath, Kind] = {
    ("extends",): Kind.SPEC,
    ("protocol", "use"): Kind.PROTOCOL,
    ("prompts",): Kind.PROMPTS,
    ("dataset", "path"): Kind.DATASET,
    ("models", "*", "use"): Kind.MODEL,
    ("agents", "*", "use"): Kind.AGENT,
    ("training", "trainers", "*", "use"): Kind.TRAINER,
}
"""The keys of a spec that can name a release, with the release's kind."""


def write_frozen(path: Path, specs: Iterable[Spec], target: Path) -> None:
    """Write a copy of a spec file, including comments, that names each release with its version.

    Raises:
        UsageError: the target exists, or is not in the spec's folder, so that relative paths in it would be wrong.
        RunError: the target cannot be written.
    """
    if target.absolute().parent.resolve() != path.absolute().parent.resolve():
        raise UsageError(
            f"-o {target}: the paths in {path} are relative to the folder of {path}; name a file in that folder"
        )
    uses = [use for spec in specs for use in spec.components.values()]

    def replace_reference(keys: KeyPath, text: str) -> str | None:
        kind = _kind_at(keys) if is_reference(text) else None
        return None if kind is None else _with_version(text, kind, uses)

    try:
        frozen = replace_texts(read_bounded(path, MAX_BYTES).decode(), replace_reference)
        with os.fdopen(create_only(target, os.O_WRONLY), "wb") as file:
            file.write(frozen.encode())
    except FileExistsError as error:
        raise UsageError(f"{target} exists already; choose another name") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error


def _kind_at(keys: KeyPath) -> Kind | None:
    """Return the kind of release that a key can name; None if the key names none."""
    names = keys[:1] if keys[:1] == ("extends",) else keys  # `extends` is a reference or a list of references
    for key, kind in _REFERENCE_KINDS.items():
        if len(key) == len(names) and all(part in ("*", name) for part, name in zip(key, names, strict=True)):
            return kind
    return None


def _with_version(text: str, kind: Kind, uses: Iterable[ComponentUse]) -> str | None:
    """Return a reference with the version that the spec uses now; None if the text already has a version."""
    written = parse_reference(text, kind)
    if isinstance(written, Digest) or written.version is not None:
        return None
    prefix = f"{kind}/" if text.startswith(f"{kind}/") else ""
    for use in uses:
        used = parse_reference(use.release)
        if isinstance(used, Reference) and (used.kind, used.owner, used.name) == (kind, written.owner, written.name):
            return f"{prefix}{written.owner}/{written.name}@{used.version}"
    return None


NewText = Callable[[KeyPath, str], str | None]
"""Returns the new text for a key and its current text, or None if the text stays as it is."""


def replace_texts(text: str, new: NewText) -> str:
    """Return a YAML text with the texts of some keys replaced, after it was read without problems."""
    # The faster loader in C does not report the character positions of values.
    for key_path, node in reversed(list(_scalars(yaml.compose(text, Loader=yaml.SafeLoader), ()))):
        value = new(key_path, node.value)
        if value is not None:
            text = text[: node.start_mark.index] + dump_inline(value) + text[node.end_mark.index :]
    return text


def _scalars(node: yaml.Node | None, key_path: KeyPath) -> Iterator[tuple[KeyPath, yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield key_path, node
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _scalars(item, (*key_path, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, (*key_path, key.value))
