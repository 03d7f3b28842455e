"""Redact drafts of releases for `publishing`: replace private values in structured data, and leave free text unchanged.

Structured data are specs, manifests, logs and facts. Free text is what a person or a model wrote: prompts, rows of a
dataset, messages. If free text has private text, the checks stop the publish. The same run is redacted to the same
bytes on every machine, and redacting it twice changes nothing.
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

from runner.analysis.labels import LABELS
from runner.analysis.published import SUFFIX
from runner.base.errors import ReleaseError
from runner.base.storage.log_lines import ANSWER, RUN, encode, log_seed, read_journal, scan
from runner.base.storage.safe_files import create, make_folders, open_to_read
from runner.documents.releases.bundle import Content, open_content
from runner.documents.releases.manifest import FileSource
from runner.documents.releases.reference import Kind
from runner.models.answers import CHOICES, with_values
from runner.models.interface import SampleKey
from runner.models.journal_records import ANSWER_TEXT
from runner.models.provider_traits import PROVIDERS
from runner.registry.draft import Draft
from runner.registry.redaction.draft_folder import LOGS, ROLLOUTS, run_folder, write_draft_folder
from runner.registry.redaction.location_patterns import is_public_host
from runner.registry.redaction.rehashed_run import RehashedRun, rehash_run
from runner.registry.redaction.rules import CACHE, MODEL_KEYS, RedactionRules, choose_public_names, strings_in
from runner.registry.redaction.yaml_redaction import redact_yaml, values_in
from runner.results.table_columns import ANALYSES
from runner.spec.origin import DATA
from runner.spec.rejudged_run import DEBATES
from runner.spec.trainer_files import FOLDER

SPEC, MANIFEST = f"{DATA}/spec.yaml", f"{DATA}/manifest.json"
INPUTS = f"{DATA}/inputs/"
ROWS = f"{INPUTS}dataset.jsonl"
FREE_TEXT = (f"{FOLDER}/", *(f"{INPUTS}{name}" for name in ("prompts/", "dataset.", "protocol.yaml", f"{FOLDER}/")))
"""Files and folders with free text. A run's hashes depend on these files, so they cannot be changed."""
ANALYSIS_FOLDERS = (f"{DATA}/{ANALYSES}/", f"{DATA}/{LABELS}/")
"""Folders with results of analyses and labels of people."""
_USER_SPECS = ("written/", f"{INPUTS}written/")
"""Folders with copies of the user's specs, which were saved at the start of the run. Comments in them are removed: if a
comment had private text, the user could no longer correct it, because the run is finished."""

_REDACTED_KINDS = (Kind.RUN, Kind.SPEC, Kind.AGENT, Kind.TRAINER, Kind.MODEL)
"""Kinds of releases with structured data. The others have only free text."""
_URL = re.compile(r"https?://[^\s\"',}\]]+")
_BASE_URL_OVERRIDE = re.compile(rf"base_url\s*[=:]\s*[\"']?(\[[^\]]*|{_URL.pattern})")
_PUBLIC_HOSTS = frozenset(urlsplit(traits.base_url).hostname for traits in PROVIDERS.values() if traits.base_url)


def redact_drafts(drafts: Sequence[Draft], work_folder: Path) -> list[Draft]:
    """Redact drafts that belong together, such as a training run and its parts. Large files go to `work_folder`.

    Raises:
        ReleaseError: a draft cannot be redacted; nothing may be published.
    """
    strings = [pair for draft in drafts for pair in _structured_strings(draft)]
    models = choose_public_names(text for key, text in strings if key in MODEL_KEYS)
    urls = _private_urls(strings)
    redacted_drafts: list[Draft] = []
    hashes: dict[str, str] = {}
    for number, draft in enumerate(drafts):
        rules = RedactionRules(models, urls)
        redacted_drafts.append(_redact(draft, rules, work_folder / f"{number}"))
        hashes |= rules.hashes
    return [_with_new_hashes(draft, hashes) for draft in redacted_drafts]


def _with_new_hashes(draft: Draft, hashes: Mapping[str, str]) -> Draft:
    """Return a draft that names other runs by their hashes after redaction: a part its training run, for example."""
    release = draft.release
    identity = {name: hashes.get(value, value) for name, value in release.identity.items()}
    links = tuple(replace(link, identity=hashes.get(link.identity or "", link.identity)) for link in release.links)
    return replace(draft, release=replace(release, identity=identity, links=links))


def build_rules(draft: Draft) -> RedactionRules:
    """Return the redaction rules for the server addresses in one draft. The draft must not be redacted yet."""
    return RedactionRules({}, _private_urls(_structured_strings(draft)))


def _private_urls(strings: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the base URLs in structured data, except those of public providers."""
    urls = {text for key, text in strings if key == "base_url" and "://" in text and "${" not in text}
    return tuple(sorted(url for url in urls if urlsplit(url).hostname not in _PUBLIC_HOSTS))


def _structured_strings(draft: Draft) -> Iterator[tuple[str, str]]:
    """Yield each string of the draft's structured data with the last part of its key."""
    for path, content in draft.contents.items():
        if path.startswith(FREE_TEXT) or draft.release.kind not in _REDACTED_KINDS:
            continue
        if path.endswith(".yaml"):
            for key, text in values_in(_read(content).decode("utf-8", "replace")):
                yield key.rpartition(".")[2], text
        elif path == MANIFEST:
            yield from strings_in(orjson.loads(_read(content)))
        elif path.startswith(ANALYSIS_FOLDERS[0]):
            yield from (("model", str(orjson.loads(line).get("model"))) for line in _read(content).splitlines())
        elif path == LOGS[1] and isinstance(content, Path):
            for _, record in read_journal(content):
                yield from strings_in(record)
        elif path.endswith(".txt"):
            overrides = _BASE_URL_OVERRIDE.findall(_read(content).decode("utf-8", "replace"))
            yield from (("base_url", url) for override in overrides for url in _URL.findall(override))
    yield from strings_in(draft.release.facts)


def _read(content: Content) -> bytes:
    with open_content(content) as file:
        return file.read()


def _redact(draft: Draft, rules: RedactionRules, work_folder: Path) -> Draft:
    """Return a redacted draft, with large files in `work_folder`."""
    sources = {part: redact_source(source) for part, source in draft.release.sources.items()}
    release = replace(draft.release, sources=sources)
    if release.kind not in _REDACTED_KINDS:
        return replace(draft, release=release)
    rehashed_run: RehashedRun | None = None
    if SPEC in draft.contents:
        rehashed_run = rehash_run(run_folder(write_draft_folder(draft.all_contents, work_folder / "original")), rules)
        rules.hashes.update(rehashed_run.hashes)
    make_folders(work_folder / "redacted")
    contents = {
        path: _redact_content(path, content, rules, rehashed_run, work_folder / "redacted" / f"{number}")
        for number, (path, content) in enumerate(draft.contents.items())
    }
    release = replace(
        release,
        description=rules.redact_string(release.description, "description"),
        links=tuple(replace(link, identity=rules.redact_value(link.identity)) for link in release.links),
        facts=rules.redact_value(release.facts),
    )
    if draft.rebuilders:
        folder = write_draft_folder({**draft.withheld, **contents}, work_folder / "published")
        contents |= {path: rebuild(release, folder) for path, rebuild in draft.rebuilders.items()}
    counts = rules.summary() or release.facts.get("cleaned", [])
    return replace(draft, release=replace(release, facts={**release.facts, "cleaned": counts}), contents=contents)


def _redact_content(
    path: str, content: Content, rules: RedactionRules, rehashed: RehashedRun | None, target: Path
) -> Content:
    """Return a file of a draft redacted. Logs and rollouts are written to `target`."""
    if path in LOGS:
        return _redact_log(content, target, rules, _keep_hash if rehashed is None else rehashed.rehash_parameters)
    if path == ROLLOUTS:
        return _redact_rollouts(content, target, rules, str if rehashed is None else rehashed.make_rollout_renamer())
    if path.startswith(ANALYSIS_FOLDERS) and path.endswith(SUFFIX):
        return _redact_analysis(content, rules, {} if rehashed is None else rehashed.new_rollout_ids())
    if path == f"{INPUTS}{DEBATES}":
        return _redact_first_line(content, target, rules)
    redact = None if path.startswith(FREE_TEXT) else _BY_SUFFIX.get(Path(path).suffix)
    if redact is None:
        return content
    data = _read(content)
    try:
        redacted = redact(path, data, rules)
    except UnicodeDecodeError:
        return content
    return content if redacted == data else redacted


def _keep_hash(_: object, recorded: str) -> str:
    """Return the recorded hash. Used if a release has logs but no spec to recompute their hashes from."""
    return recorded


def _redact_log(content: Content, target: Path, rules: RedactionRules, rehash: RehashParameters) -> Content:
    if isinstance(content, bytes):
        original = target.with_suffix(".original")
        with create(original) as file:
            file.write(content)
        content = original
    return target if redact_log(content, target, rules, rehash) else content


def _redact_rollouts(content: Content, target: Path, rules: RedactionRules, rename: Callable[[str], str]) -> Content:
    changed = False
    with open_content(content) as file, create(target) as out:
        for line in file:
            row = orjson.loads(line)
            redacted = {**row, "rollout_id": rename(str(row.get("rollout_id")))}
            if isinstance(row.get("error"), str):
                redacted["error"] = rules.redact_message(row["error"])
            changed = changed or redacted != row
            out.write(line if redacted == row else orjson.dumps(redacted, option=orjson.OPT_APPEND_NEWLINE))
    return target if changed else content


def _redact_analysis(content: Content, rules: RedactionRules, new_ids: Mapping[str, str]) -> bytes:
    """Redact results or labels: ids of rollouts, names of models, and messages of failed calls."""
    lines = []
    for line in _read(content).splitlines():
        row = orjson.loads(line)
        redacted = {**row, **{name: rules.redact_value(row[name], name) for name in ("model",) if row.get(name)}}
        if row.get("status") == "failed" and row.get("reason"):
            redacted["reason"] = rules.redact_message(row["reason"])
        for name in ("rollout_id", "unit_id"):
            rollout_id, slash, place = str(row.get(name)).partition("/")
            if rollout_id in new_ids:
                redacted[name] = f"{new_ids[rollout_id]}{slash}{place}"
        lines.append(orjson.dumps(redacted, option=orjson.OPT_APPEND_NEWLINE))
    return b"".join(lines)


def _redact_first_line(content: Content, target: Path, rules: RedactionRules) -> Content:
    """Redact the first line of a file with recorded debates. It names the models that debated."""
    with open_content(content) as file, create(target) as out:
        line = file.readline()
        head = orjson.loads(line)
        redacted = rules.redact_value(head)
        if redacted == head:
            return content
        out.write(orjson.dumps(redacted) + b"\n" * line.endswith(b"\n"))
        shutil.copyfileobj(file, out)
    return target


def _redact_json(path: str, data: bytes, rules: RedactionRules) -> bytes:
    value = orjson.loads(data)
    redacted = rules.redact_value(value)
    if path == MANIFEST:
        if redacted.get("cache") is not None:
            redacted["cache"] = None
            rules.counts[CACHE] += 1
        if isinstance(value.get("sources"), dict):
            redacted["sources"] = {part: _redact_source_facts(source) for part, source in value["sources"].items()}
    return data if redacted == value else orjson.dumps(redacted, option=orjson.OPT_INDENT_2)


def _redact_lines(_: str, data: bytes, rules: RedactionRules) -> bytes:
    return rules.redact_lines(data.decode()).encode()


def _redact_yaml(path: str, data: bytes, rules: RedactionRules) -> bytes:
    return redact_yaml(data.decode("utf-8-sig"), rules, comments=not path.startswith(_USER_SPECS)).encode()


def _redact_readme(_: str, data: bytes, rules: RedactionRules) -> bytes:
    return rules.redact_string(data.decode()).encode()


_BY_SUFFIX: Mapping[str, Callable[[str, bytes, RedactionRules], bytes]] = {
    ".json": _redact_json, ".yaml": _redact_yaml, ".txt": _redact_lines, ".lock": _redact_lines, ".md": _redact_readme
}  # fmt: skip
"""The function that redacts a file, by the file's suffix. Files with other suffixes are free text."""


def redact_source(source: FileSource) -> FileSource:
    """Return a source without a login in its URL, and without a repository that is not on the public internet."""
    if source.repository is None:
        return source
    url = urlsplit(source.repository)
    scp_address = re.match(r"(?:[\w.-]+@(?P<host>[\w.-]+)|[\w.-]+):[^/\\]", source.repository)
    if url.scheme in ("", "file") and scp_address is None:
        reason = "its repository's remote is a folder of the machine that it was played on, which others cannot get"
        return replace(source, repository=None, clean=False, why=reason)
    host = url.hostname or (scp_address and scp_address["host"])
    if host and not is_public_host(host):
        reason = "its repository's remote is on a server that is not on the public internet"
        return replace(source, repository=None, clean=False, why=reason)
    if url.scheme in ("http", "https") and "@" in url.netloc:
        return replace(source, repository=urlunsplit(url._replace(netloc=url.netloc.rpartition("@")[2])))
    return source


def _redact_source_facts(facts: Any) -> Any:
    if not isinstance(facts, dict):
        return facts
    names = {name: facts.get(name) for name in ("repository", "commit", "path", "why")}
    try:
        return {**facts, **vars(redact_source(FileSource(**names, clean=bool(facts.get("clean")))))}
    except (TypeError, ValueError, AttributeError) as error:
        raise ReleaseError(
            f"{MANIFEST} of the run is damaged at sources: {error}; restore the file from a backup"
        ) from error


_CALL_KINDS = ("call", "ended", "failure")

RehashParameters = Callable[[SampleKey, str], str]
"""A function that returns the new hash of a sample's model parameters, given the recorded hash."""


def redact_log(source: Path, target: Path, rules: RedactionRules, rehash: RehashParameters) -> bool:
    """Write the redacted log to `target`, and return whether any line changed.

    Lines without private values keep their exact bytes. A changed line gets a new checksum. The checksums of all lines
    depend on the first line, so if the first line changes, every line gets a new checksum.

    Raises:
        JournalError: the log is damaged.
        ReleaseError: an answer cannot be redacted.
        OSError: the target cannot be written.
    """
    changed, has_new_seed, seed = False, False, 0
    with open_to_read(source) as file, create(target) as out:
        for sequence, (_, line, record) in enumerate(scan(file, source)):
            if record is None:
                out.write(line)  # an incomplete last line, which the checks report
                continue
            redacted = rules.redact_value(record) if "stage" in record else _redact_record(record, rules, rehash)
            if sequence == 0:
                new_line = line if redacted == record else encode(0, redacted)
                has_new_seed, seed = new_line != line, log_seed(new_line, redacted)
            else:
                new_line = line if redacted == record and not has_new_seed else encode(sequence, redacted, seed)
            changed = changed or new_line != line
            out.write(new_line)
    return changed


def _redact_record(record: Mapping[str, Any], rules: RedactionRules, rehash: RehashParameters) -> dict[str, object]:
    redacted = dict(record)
    kind = redacted.get("kind")
    if RUN in redacted and kind == "begun":
        redacted[RUN] = rules.hashes.get(redacted[RUN], redacted[RUN])
    if kind not in _CALL_KINDS:
        return redacted
    if "asked" in redacted:
        parameters, messages = redacted["asked"]
        redacted["asked"] = [rehash(SampleKey(*redacted["sample"]), parameters), messages]
    for name in ("model", "message", *(("error",) if kind == "failure" else ())):
        if isinstance(redacted.get(name), str):
            redacted[name] = rules.redact_string(redacted[name], name)
    if isinstance(redacted.get("other"), dict):
        redacted["other"] = rules.redact_answer(redacted["other"])
    if ANSWER in redacted:
        redacted[ANSWER] = _redact_answer(redacted[ANSWER], rules)
    if ANSWER_TEXT in redacted:
        redacted[ANSWER_TEXT] = _redact_answer(redacted[ANSWER_TEXT].encode(), rules).decode()
    return redacted


def _redact_answer(content: bytes, rules: RedactionRules) -> bytes:
    answer = orjson.loads(content)
    try:
        redacted = rules.redact_answer(answer)
        if redacted == answer:
            return content
        changed = {name: value for name, value in redacted.items() if value != answer[name]}
        if redacted.keys() == answer.keys() and CHOICES not in changed:
            return with_values(content, changed)  # keeps the other bytes of the answer
        return orjson.dumps(redacted)
    except (RecursionError, TypeError) as error:
        raise ReleaseError(
            "an answer in journal.jsonl is nested too deeply to be redacted: the run cannot be published, only its spec"
        ) from error
