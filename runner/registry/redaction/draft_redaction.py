"""Drafts into drafts without hosts, addresses and paths: taken out by rule where the run and its spec have them.

What somebody wrote or a model said (prompts, rows of a dataset, messages) stays as it is; where this machine's names
stand in it, the checks stop the publish. The same run is cleaned to the same bytes wherever that is done, and what is
clean already stays as it is.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from runner.base.errors import ReleaseError
from runner.base.storage.log_lines import read_journal
from runner.base.storage.safe_files import create, make_folders
from runner.documents.releases.bundle import Content, opened
from runner.documents.releases.manifest import FileSource, Release
from runner.documents.releases.reference import Kind
from runner.registry.draft import Draft
from runner.registry.redaction.draft_folder import LOGS, ROLLOUTS, lay_out, run_folder
from runner.registry.redaction.journal_redaction import AskedAgain, clean_log
from runner.registry.redaction.rehashed_run import Rehashed, rehashed
from runner.registry.redaction.rules import CACHE, MODEL_KEYS, Rules, renamed_models
from runner.registry.redaction.yaml_redaction import clean_yaml, values_in
from runner.spec.origin import DATA
from runner.spec.rejudged_run import DEBATES
from runner.spec.trainer_files import FOLDER

SPEC, MANIFEST = f"{DATA}/spec.yaml", f"{DATA}/manifest.json"
INPUTS = f"{DATA}/inputs/"
WRITTEN = ("written/", f"{INPUTS}written/")
ROWS = f"{INPUTS}dataset.jsonl"
FREE = (f"{FOLDER}/", *(f"{INPUTS}{name}" for name in ("prompts/", "dataset.", "protocol.yaml", f"{FOLDER}/")))
"""What somebody wrote to be read by models and people, and what a run's hashes are of."""

_CLEANED_KINDS = (Kind.RUN, Kind.SPEC, Kind.AGENT, Kind.TRAINER, Kind.MODEL)
"""Kinds that say where something is served or lies; the others are what somebody wrote, and no more."""
_URL = re.compile(r"https?://[^\s\"',}\]]+")
_GIVEN_URL = re.compile(rf"base_url\s*[=:]\s*[\"']?(\[[^\]]*|{_URL.pattern})")
_PUBLIC = ("api.openai.com",)


def clean(drafts: Sequence[Draft], work: Path) -> list[Draft]:
    """The drafts that belong together, such as a training run's parts and itself, cleaned; new files go to `work`.

    Raises:
        ReleaseError: something cannot be taken out; nothing of it is to be published.
    """
    said = [value for draft in drafts for value in _said(draft)]
    models = renamed_models(text for key, text in said if key in MODEL_KEYS)
    urls = _urls(said)
    return [_cleaned(draft, Rules(models, urls), work / f"{number}") for number, draft in enumerate(drafts)]


def rules_of(draft: Draft) -> Rules:
    """The rules of one draft that is as its run has it: for its addresses, which must stand nowhere."""
    return Rules({}, _urls(_said(draft)))


def _urls(said: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The addresses of servers among what is said, without those that everybody knows."""
    urls = {text for key, text in said if key == "base_url" and "://" in text and "${" not in text}
    return tuple(sorted(url for url in urls if urlsplit(url).hostname not in _PUBLIC))


def _said(draft: Draft) -> Iterator[tuple[str, str]]:
    """Every text of the draft's structured files, with its key."""
    for path, content in draft.contents.items():
        if path.startswith(FREE) or draft.release.kind not in _CLEANED_KINDS:
            continue
        if path.endswith(".yaml"):
            for key, text in values_in(_bytes(content).decode("utf-8", "replace")):
                yield key.rpartition(".")[2], text
        elif path == MANIFEST:
            yield from _texts(orjson.loads(_bytes(content)), "")
        elif path == LOGS[1] and isinstance(content, Path):
            for _, record in read_journal(content):
                yield from _texts(record, "")
        elif path.endswith(".txt"):
            given = _GIVEN_URL.findall(_bytes(content).decode("utf-8", "replace"))
            yield from (("base_url", url) for said in given for url in _URL.findall(said))
    yield from _texts(draft.release.facts, "")


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, str(name).rpartition(".")[2])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str):
        yield key, value


def _bytes(content: Content) -> bytes:
    with opened(content) as file:
        return file.read()


def _cleaned(draft: Draft, rules: Rules, work: Path) -> Draft:
    if draft.release.kind not in _CLEANED_KINDS:
        return replace(draft, release=_without_logins(draft.release))
    again: Rehashed | None = None
    if SPEC in draft.contents:
        # Files of a run as they are: the hashes that they had are needed to make those that they will have.
        again = rehashed(run_folder(lay_out(draft.all_contents, work / "as_it_is")), rules)
        rules.hashes.update(again.hashes)
    make_folders(work / "cleaned")
    contents = {
        path: _content(path, content, rules, again, work / "cleaned" / f"{number}")
        for number, (path, content) in enumerate(draft.contents.items())
    }
    release = _without_logins(draft.release)
    release = replace(
        release,
        description=rules.scalar(release.description, "description"),
        identity={name: rules.hashes.get(value, value) for name, value in release.identity.items()},
        links=tuple(
            replace(link, identity=None if link.identity is None else rules.value(link.identity))
            for link in release.links
        ),
        facts=rules.value(release.facts),
    )
    if draft.made:
        folder = lay_out({**draft.kept, **contents}, work / "as_it_leaves")
        contents |= {path: make(release, folder) for path, make in draft.made.items()}
    told = rules.told() or release.facts.get("cleaned", [])
    return replace(draft, release=replace(release, facts={**release.facts, "cleaned": told}), contents=contents)


def _content(path: str, content: Content, rules: Rules, again: Rehashed | None, target: Path) -> Content:
    """A file of a draft by the rules; the very same where nothing in it is to be taken out."""
    if path in LOGS:
        return _log(content, target, rules, _same if again is None else again.asked)
    if path == ROLLOUTS:
        return _rollouts(content, target, rules, str if again is None else again.rollout_ids())
    if path == f"{INPUTS}{DEBATES}":
        return _first_line(content, target, rules)
    if path.startswith(FREE):
        return content
    how = _HOW.get(Path(path).suffix)
    if how is None:
        return content
    data = _bytes(content)
    cleaned = how(path, data, rules)
    return content if cleaned == data else cleaned


def _same(_: object, recorded: str) -> str:
    return recorded


def _log(content: Content, target: Path, rules: Rules, asked: AskedAgain) -> Content:
    if isinstance(content, bytes):
        with create(target.with_suffix(".as_it_is")) as file:
            file.write(content)
        content = target.with_suffix(".as_it_is")
    return target if clean_log(content, target, rules, asked) else content


def _rollouts(content: Content, target: Path, rules: Rules, renamed: Callable[[str], str]) -> Content:
    changed = False
    with opened(content) as file, create(target) as out:
        for line in file:
            row = orjson.loads(line)
            said = (row.get("rollout_id"), row.get("error"))
            row["rollout_id"] = renamed(str(said[0]))
            if isinstance(said[1], str):
                row["error"] = rules.error(said[1])
            if (row["rollout_id"], row.get("error")) == said:
                out.write(line)
            else:
                changed = True
                out.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    return target if changed else content


def _first_line(content: Content, target: Path, rules: Rules) -> Content:
    """Debates, whose head says by which models they were held."""
    with opened(content) as file, create(target) as out:
        head = file.readline()
        said = orjson.loads(head)
        cleaned = rules.value(said)
        if cleaned == said:
            return content
        out.write(orjson.dumps(cleaned) + b"\n" * head.endswith(b"\n"))
        shutil.copyfileobj(file, out)
    return target


def _json(path: str, data: bytes, rules: Rules) -> bytes:
    said = orjson.loads(data)
    cleaned = rules.value(said)
    if path == MANIFEST and cleaned.get("cache") is not None:
        cleaned["cache"] = None
        rules.taken[CACHE] += 1
    for name in ("why_stopped",):
        if path == MANIFEST and isinstance(said.get(name), str):
            cleaned[name] = rules.error(said[name])
    if path == MANIFEST and isinstance(said.get("sources"), dict):
        cleaned["sources"] = {part: _source_as_data(source) for part, source in said["sources"].items()}
    return data if cleaned == said else orjson.dumps(cleaned, option=orjson.OPT_INDENT_2)


def _text(_: str, data: bytes, rules: Rules) -> bytes:
    try:
        return rules.written(data.decode()).encode()
    except UnicodeDecodeError:
        return data


def _yaml_text(path: str, data: bytes, rules: Rules) -> bytes:
    """Of a spec as it was written all comments go: they are for whoever wrote it, and name hosts in plain words."""
    try:
        return clean_yaml(data.decode("utf-8-sig"), rules, comments=not path.startswith(WRITTEN)).encode()
    except UnicodeDecodeError:
        return data


def _readme(_: str, data: bytes, rules: Rules) -> bytes:
    return rules.scalar(data.decode()).encode()


_HOW: Mapping[str, Callable[[str, bytes, Rules], bytes]] = {
    ".json": _json, ".yaml": _yaml_text, ".txt": _text, ".lock": _text, ".md": _readme
}  # fmt: skip
"""By the ending of a file's name, how it is cleaned; others hold what somebody wrote."""


def _without_logins(release: Release) -> Release:
    return replace(release, sources={part: public_source(source) for part, source in release.sources.items()})


def public_source(source: FileSource) -> FileSource:
    """A source without a user's name and password in its address; one in a folder of a machine, others cannot get."""
    if source.repository is None:
        return source
    split = urlsplit(source.repository)
    if split.scheme in ("", "file") and not re.match(r"(?:[\w.-]+@)?[\w.-]+:[^/\\]", source.repository):
        why = "its repository's remote is a folder of the machine that it was played on, which others cannot get"
        return replace(source, repository=None, clean=False, why=why)
    if split.scheme in ("http", "https") and "@" in split.netloc:
        return replace(source, repository=urlunsplit(split._replace(netloc=split.netloc.rpartition("@")[2])))
    return source


def _source_as_data(said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    names = {one: said.get(one) for one in ("repository", "commit", "path", "why")}
    try:
        return {**said, **vars(public_source(FileSource(**names, clean=bool(said.get("clean")))))}
    except (TypeError, ValueError, AttributeError) as error:
        raise ReleaseError(f"{MANIFEST}: its sources are damaged: {error}") from error
