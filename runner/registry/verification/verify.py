"""Find problems in a release, a fetched folder or a run: in its files, inputs and recorded numbers.

`nip-run verify`, `reproduce` and servers use this module. It calls no models and changes no files of the run: it
replays the journal in a temporary folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.base.errors import DamagedRunError, JournalError, NipRunError, ReleaseError
from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import read_json
from runner.base.storage.format_versions import RUN_FOLDER
from runner.base.storage.log_lines import FROM_ELSEWHERE
from runner.base.storage.safe_files import open_to_read
from runner.base.storage.strict_json import is_same
from runner.base.text import shortened
from runner.documents.releases.bundle import check_content
from runner.documents.releases.reference import Kind
from runner.models.journal_records import read_records
from runner.registry.bundles.derived_files import find_differences_from_data
from runner.registry.bundles.missing_rows import lacks_rows
from runner.registry.bundles.run_data import find_accuracy
from runner.registry.bundles.run_facts import copied_facts, load_datapoints
from runner.registry.bundles.runs import ROWS
from runner.registry.check_notes import CheckNote, UncheckedNote, limit_messages
from runner.registry.fetched_release import PARAMETERS, PIN, FetchedRelease, check_lock, fetch_release, open_fetched
from runner.registry.lineage.nodes import find_wrong_facts
from runner.registry.metric_differences import (
    compare_counts,
    compare_metrics,
    describe_versions,
    is_from_0_1,
    is_from_other_version,
)
from runner.registry.recomputed_run import recompute_run
from runner.registry.release_errors import describe_error
from runner.registry.rollouts_file import ROLLOUTS_FILE
from runner.registry.signing import check_release_signature
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.verification.kinds import find_kind_problems, find_torn_logs
from runner.registry.verification.row_differences import find_row_differences
from runner.results.folder import SUMS, RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import COUNTED, PLAYED, Manifest, Status
from runner.results.metric_plugins import find_plugin_metrics, without_plugin_metrics
from runner.results.provenance.input_files import spec_hash
from runner.results.saved_spec import saved_value
from runner.results.table_columns import COLUMNS
from runner.results.tasks import Task
from runner.rollouts.identity import protocol_content
from runner.rollouts.plan import Plan
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.tournaments.summary import games_of, summarize
from runner.spec.model_sources import ModelSource
from runner.spec.origin import DATA
from runner.spec.run_names import SAVED_SPEC
from runner.training.stage_log import read_stages

DERIVED_FILES = frozenset((SUMS, *(f"{name}.parquet" for name in COLUMNS)))
"""Files that `nip-run get` computes and writes next to the files of a release."""

EDITABLE_FILES = frozenset((PARAMETERS, SAVED_SPEC))
"""Files of a fetched run that users may edit to play it with other settings."""


def find_release_problems(registry: Registry, entry: ReleaseEntry, signer_key: Path | None = None) -> Iterator[str]:
    """Yield the problems of a release in a registry: in its files, its signature, and the recorded numbers of a run.

    To check the numbers, a run's journal is replayed once.
    """
    problems = list(registry.find_problems(entry))
    try:
        signature_note = check_release_signature(registry, entry, signer_key)
        yield from () if signature_note is None else (CheckNote(signature_note),)
    except ReleaseError as error:
        problems.append(str(error))
    if not problems:
        problems += find_wrong_facts(entry, registry.read_manifest(entry)[0])
    yield from dict.fromkeys(problems)
    if entry.reference.kind != Kind.RUN or problems:
        return
    with TemporaryDirectory(prefix=".nip-run-") as temporary_folder:
        try:
            fetched = fetch_release(registry, entry.reference, Path(temporary_folder) / "got", tables=False)
        except ReleaseError as error:
            yield str(error)
            return
        yield from (
            _without_folder(temporary_folder, line) for line in _with_unexpected_errors(_find_record_problems(fetched))
        )


def _with_unexpected_errors(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines and, if an exception ends them, its message: a malformed release can cause any exception.

    The advice to run `verify` is removed from the lines, because the user is running `verify`.
    """
    try:
        for line in lines:
            message, advice, _ = line.partition(f"; {FROM_ELSEWHERE}")
            yield message if advice else line  # an unchanged line keeps its type, such as `CheckNote`
    except Exception as error:  # noqa: BLE001
        yield describe_error(error)


def _without_folder(temporary_folder: str, line: str) -> str:
    """Return a message without the path of the temporary folder, which no longer exists when the user reads it."""
    message = line.replace(f"{Path(temporary_folder).resolve() / 'got'}/", "").replace(f"{temporary_folder}/got/", "")
    return type(line)(message)  # a `CheckNote` stays a `CheckNote`


def find_folder_problems(folder: Path) -> Iterator[str]:
    """Yield the problems of a fetched folder: each changed file, and problems in the records of a run."""
    try:
        fetched = open_fetched(folder)
    except ReleaseError as error:
        yield str(error)
        return
    ignored = EDITABLE_FILES if fetched.release.kind == Kind.RUN else frozenset[str]()
    problems = [
        *find_changed_files(fetched, lambda path: path not in ignored).values(),
        *_find_added_files(fetched),
        *_find_lock_problems(fetched),
    ]
    yield from problems
    if fetched.release.kind == Kind.RUN and not any(f"{DATA}/" in line for line in problems):
        yield from _with_unexpected_errors(_find_record_problems(fetched))


def find_edited_files(folder: Path) -> list[str]:
    """Return the editable files of a fetched run that were changed.

    Raises:
        UsageError, ReleaseError: as `open_fetched`.
    """
    fetched = open_fetched(folder)
    return sorted(find_changed_files(fetched, EDITABLE_FILES.__contains__)) if fetched.release.kind == Kind.RUN else []


def _find_lock_problems(fetched: FetchedRelease) -> Iterator[str]:
    try:
        check_lock(fetched.folder, fetched.release)
    except ReleaseError as error:
        yield f"{fetched.folder}: {error}"


def find_changed_files(fetched: FetchedRelease, is_selected: Callable[[str], bool]) -> dict[str, str]:
    """Return a message for each changed file of a release, by the file's path; `is_selected` chooses the paths."""
    messages = {}
    for entry in (entry for entry in fetched.release.files if is_selected(entry.path)):
        try:
            with open_to_read(fetched.folder / entry.path) as source:
                check_content(source, entry)
        except ReleaseError as error:
            messages[entry.path] = f"{fetched.folder}: {error}"
        except OSError as error:
            messages[entry.path] = f"{fetched.folder}: {entry.path} cannot be read: {error.strerror}"
    return messages


def _find_added_files(fetched: FetchedRelease) -> Iterator[str]:
    """Yield a message for each file that was added to `data/`. In other folders, users may add files."""
    expected = {entry.path for entry in fetched.release.files} | {f"{DATA}/{name}" for name in DERIVED_FILES}
    expected |= {ROWS} if PIN in expected else set()
    for parent, _, names in os.walk(fetched.folder / DATA):
        for name in names:
            path = Path(parent, name).relative_to(fetched.folder).as_posix()
            if path not in expected:
                yield f"{fetched.folder}: {path} is not a file of the release"


def _find_record_problems(fetched: FetchedRelease) -> Iterator[str]:
    """Yield the problems of the run in a fetched release: in its journal, numbers, logs, facts and extra files."""
    try:
        run = fetched.run
        assert run is not None
        manifest = run.manifest()
        if manifest.status not in PLAYED:  # its numbers may be of any part of its games, so they cannot be checked
            yield f"the run is not finished (its status is {manifest.status}), and only finished runs can be published"
        if lacks_rows(fetched):  # the games cannot be replayed without the rows of the dataset
            yield from () if manifest.is_training_run else _find_journal_problems(run, manifest)
        else:
            yield from find_run_problems(run)
        if not fetched.is_training_run and fetched.release.file(f"{DATA}/{ROLLOUTS_FILE}") is None:
            yield f"{fetched.release.reference}: {DATA}/{ROLLOUTS_FILE} is missing"
        with suppress(JournalError):  # `find_run_problems` has reported the damaged log
            yield from (f"{DATA}/{line}" for line in find_torn_logs(run, run.manifest().identity))
        yield from _find_fact_problems(fetched, run)
        yield from find_differences_from_data(fetched, run, ignored=frozenset(find_edited_files(fetched.folder)))
    except NipRunError as error:
        yield str(error)


def _find_fact_problems(fetched: FetchedRelease, run: RunFolder) -> Iterator[str]:
    """Yield a message for each fact in the manifest that contradicts the release's files. Boards show these facts."""
    facts, manifest, reference = fetched.release.facts, run.manifest(), fetched.release.reference
    for name, value in copied_facts(manifest).items():
        if name in facts and not is_same(facts[name], value):
            texts = [shortened(repr(fact), 200) for fact in (facts[name], value)]
            yield f"{reference}: its facts say {name} {texts[0]}, but its manifest.json says {texts[1]}"
    # Redaction may change the path of a checker, which is a part of the task.
    if not manifest.is_training_run and not lacks_rows(fetched) and saved_value(run, "dataset", "checker") is None:
        task = Task.of_points(run, load_datapoints(run))
        if facts.get("task") not in {task.sha256, task.earlier_sha256} - {None}:
            yield f"{reference}: its facts say task {facts.get('task')!r}, but its rows give {task.sha256}"
    yield from (f"{reference}: {problem}" for problem in find_kind_problems(run, facts))
    if run.metrics.is_file() and facts.get("accuracy") is not None:
        accuracy = find_accuracy(read_json(run.metrics)) or {}
        for name, value in {"value": None, **dict(facts["accuracy"].items())}.items():
            recorded = accuracy.get(name)
            if not is_same(value, recorded):
                yield f"{reference}: its facts say accuracy.{name} {value!r}, but its metrics.json says {recorded!r}"
    for name, value in {"run": manifest.identity, "game": manifest.game_sha256}.items():
        if fetched.release.identity.get(name, value) != value:
            yield f"{reference}: its identity ({name}) differs from that in its manifest.json"


def find_run_problems(folder: RunFolder) -> Iterator[str]:
    """Yield the problems of a run: in its journal, inputs and recorded numbers, and in its parts if it has parts."""
    try:
        manifest = folder.manifest()
    except NipRunError as error:
        yield str(error)
        return
    if manifest.is_training_run:
        yield from _find_training_problems(folder, manifest)
        return
    if manifest.is_tournament:
        yield from _find_tournament_problems(folder, manifest)
        return
    problems = [*_find_journal_problems(folder, manifest), *_find_input_problems(folder, manifest)]
    yield from problems
    if manifest.format < RUN_FOLDER and not is_from_0_1(manifest):
        yield f"manifest.json has no format, but nip-run {manifest.version}, which played the run, writes one"
    # All versions that record `answers_from` also write a file with the hashes of a finished run's files. The runs of
    # fetched releases do not have this file; `folder.name` is set only for these runs.
    must_have_sums = manifest.status in PLAYED and "answers_from" in manifest.recorded and folder.name is None
    if must_have_sums and not folder.sums.is_file():
        yield f"{folder.sums.name} is missing, so changes to the tables and metrics cannot be detected"
    if folder.sums.is_file():
        yield from _find_hash_problems(folder)
    if not problems:
        try:
            yield from _find_differing_numbers(folder, manifest)
        except NipRunError as error:
            yield str(error)


def _find_hash_problems(folder: RunFolder) -> Iterator[str]:
    for path in (folder.metrics, *map(folder.table, COLUMNS)):
        try:
            folder.check(path)
        except DamagedRunError:
            yield f"{path.name} does not have the hash in {folder.sums.name}"
        except NipRunError as error:
            yield str(error)


def _find_training_problems(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    try:
        read_stages(folder.path, manifest.identity)
    except NipRunError as error:
        yield str(error)
    yield from _find_input_problems(folder, manifest)
    for part in Results.of(folder).parts_of(manifest.run_id) if folder.name is None else ():
        yield from (f"{part.run_id}: {line}" for line in find_run_problems(part))


def _find_tournament_problems(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    parts = list(Results.of(folder).parts_of(manifest.run_id))
    problems = list(_find_input_problems(folder, manifest))
    for part in parts:
        problems += [
            line if isinstance(line, CheckNote) else f"{part.run_id}: {line}" for line in find_run_problems(part)
        ]
    yield from problems
    if manifest.status != Status.DONE or any(not isinstance(line, CheckNote) for line in problems):
        return
    try:
        summary, recorded = _rounded(summarize(folder, games_of(folder), parts)), _rounded(folder.read_metrics())
    except NipRunError as error:
        yield str(error)
        return
    for name, value in summary.items():
        if recorded.get(name) != value:
            problem = f"metrics.json: {name} do not follow from the games of the tournament's parts"
            # In 1.0.0, the p-value came from rounding errors if the results did not depend on the players.
            is_known = name == "intransitivity" and is_from_other_version(manifest)
            yield CheckNote(f"{problem} ({describe_versions(manifest)})") if is_known else problem


def _rounded(summary: Mapping[str, object]) -> dict[str, object]:
    """Return a summary as its file has it, with numbers rounded, because linear algebra differs between machines."""
    rounded: dict[str, Any] = json.loads(json.dumps(summary), parse_float=lambda text: round(float(text), 4))
    return rounded


def _find_journal_problems(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    try:
        for _ in read_records(folder.journal, manifest.identity):
            pass
    except NipRunError as error:
        yield str(error)


def _find_input_problems(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    """Yield a message for each input that does not have the hash in the manifest."""
    try:
        plan = saved_plan(folder)
    except NipRunError as error:
        yield f"{folder.path}: the run's inputs cannot be read: {error}"
        return
    inputs = folder.path / "inputs"
    prompts = {name: tagged_hash("prompt", text) for name, text in plan.spec.prompts.sources.items()}
    for name in sorted(prompts.keys() | manifest.prompts_sha256.keys()):
        if prompts.get(name) != manifest.prompts_sha256.get(name):
            yield f"{inputs / 'prompts' / name}.jinja does not have the hash in the manifest"
    for name, is_equal in _compare_hashes(folder, plan, manifest):
        if not is_equal:
            yield f"{folder.path}: {name} does not have the hash in the manifest"


def _compare_hashes(folder: RunFolder, plan: Plan, manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """Yield the name of each input, and whether it has the hash in the manifest."""
    yield "inputs/dataset.jsonl", plan.spec.dataset.sha256 == manifest.dataset_sha256
    if is_from_0_1(manifest):  # 0.1.0 hashed protocols and specs differently
        return
    protocol = tagged_hash("protocol", protocol_content(plan.spec.protocol))
    if not manifest.is_training_run and manifest.parent_run_id is None:
        yield "inputs/protocol.yaml", protocol == manifest.protocol_sha256
    yield "the game (rules, prompts, models)", plan.game_hash == manifest.game_sha256
    # The manifest has the hash of the spec as saved. The spec in the plan also has keys that later versions added.
    saved_hash = tagged_hash("spec", ModelSource(folder.path).spec)
    yield "spec.yaml", manifest.spec_sha256 in (saved_hash, spec_hash(plan))


def _find_differing_numbers(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    """Replay the journal, and yield a message for each recorded number that does not follow from it."""
    if manifest.status not in PLAYED:
        return
    with recompute_run(folder) as recomputed_run:
        recorded_metrics = read_json(folder.metrics)
        if plugin_metrics := find_plugin_metrics(recorded_metrics, manifest):
            yield UncheckedNote(
                f"not checked, because a plugin computed them: {shortened(', '.join(plugin_metrics), 200)}"
            )
        checked_metrics = without_plugin_metrics(recorded_metrics, manifest)
        differences = compare_metrics(checked_metrics, recomputed_run.metrics, manifest)
        yield from limit_messages(differences.errors, unit="numbers")
        if differences.version_notes:
            yield from map(
                UncheckedNote, (describe_versions(manifest), *limit_messages(differences.version_notes, unit="numbers"))
            )
        names = [*COUNTED, "status", *(["answers_from"] if manifest.answers_from is not None else [])]
        if manifest.prices is None and manifest.cost_usd is not None:
            names.append("cost_usd")
        yield from (
            f"manifest.json says {name} {recorded!r}, but the journal gives {value!r}"
            for name, recorded, value in compare_counts(manifest, {name: recomputed_run.counts[name] for name in names})
        )
        yield from limit_messages(
            find_row_differences(folder, recomputed_run.folder, allow_missing=is_from_other_version(manifest)),
            unit="rows",
        )
