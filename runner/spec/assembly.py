"""Build a `Spec` from the merged data of its files: check the data and read the named files, or report all problems.

`runner.spec.loader` does this for each point of a sweep. In this package, `layered` is the merged data of a spec's
files and overrides, with the place of each value. A function `place_of` returns the place of a dotted key.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import ReleaseError, RunError, SpecError
from runner.base.hashing import file_hash, tagged_hash
from runner.base.plugins import PluginPins
from runner.base.problems import Place, PlaceOf, Problem
from runner.base.storage.log_lines import JOURNAL
from runner.base.text import counted, did_you_mean_file
from runner.documents.dataclass_schema import from_plain, to_plain
from runner.documents.merged_data import LayeredData, RenamedKey
from runner.documents.plain_values import KeyPath
from runner.documents.releases.reference import Kind
from runner.documents.schema_check import check_schema
from runner.game.prompts.templates import PromptLoader, PromptSet, source_path
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.loader import load_protocol, unplayable_parameters
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schema import Parameters
from runner.models.prices import PriceBasis
from runner.spec import chat_formats
from runner.spec.checks.agents import agent_problems, decision_problems, group_problems, panel_problems
from runner.spec.checks.checkers import checker_of, checker_problems, reference_problems
from runner.spec.checks.columns import column_problems, protocol_column_problems, unlabelled_problems
from runner.spec.checks.execution import execution_problems, until_problems
from runner.spec.checks.listed_answers import answer_problems, section_problems
from runner.spec.checks.models import budget_problems, model_problems, replay_folder, verdict_problems
from runner.spec.checks.tournaments import tournament_problems
from runner.spec.checks.training import TEST_SPLIT, split_problems, training_problems
from runner.spec.checks.trees import tree_problems
from runner.spec.components import ComponentUse
from runner.spec.datasets.loader import HUB, Dataset, load_dataset
from runner.spec.datasets.settings import DatasetSettings, limits_for_saved_run
from runner.spec.datasets.shards import Shard
from runner.spec.default_agents import fill_default_agents
from runner.spec.experiment import Experiment
from runner.spec.origin import NamedFiles, SpecOrigin, fetched_folder, read_marker
from runner.spec.paired_design import design_problems
from runner.spec.plugins import find_pins, schema_with_plugins
from runner.spec.rejudged_run import RejudgedRun, find_rejudged, rejudge_conflicts, rejudge_problems
from runner.spec.run_names import SAVED_SPEC
from runner.spec.sound_spec import SoundSpec
from runner.spec.tournament_roles import seats_of
from runner.spec.trainer_files import TrainerFiles, find_trainer_files

_DATASET = ("dataset", "path")
_ROW_KEYS = ("answers", "checker", "columns", "explode", "ids", "labels")
"""Keys of `dataset` that determine the ids and labels of its rows."""


@dataclass(frozen=True)
class Spec:
    """One point of a spec: its keys, and the protocol, prompts and datapoints that they name."""

    experiment: Experiment
    protocol: Protocol
    prompts: PromptSet
    dataset: Dataset
    replays: Mapping[str, Path] = field(default_factory=dict)
    """The folder of the replayed run of each model group that replays a run."""
    replayed_sha256: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the journal of each of these runs, by model group."""
    plugins: PluginPins = field(default_factory=dict)
    """The plugins that the spec names; for a run that is read, those in its manifest."""
    rejudged: RejudgedRun | None = None
    """The run whose debates are judged again."""
    cache: Path | None = None
    test: Dataset | None = None
    """The dataset that a training run tests its models on."""
    point: Mapping[str, Any] = field(default_factory=dict)
    """Values that the sweep sets for this point, by dotted key."""
    renamed: tuple[RenamedKey, ...] = ()
    """Keys that are written with their old names."""
    groups_with_default_format: frozenset[str] = frozenset()
    """Model groups without a chat format in the spec. Their chat format depends on their address."""
    groups_with_default_role: frozenset[str] = frozenset()
    """Model groups without a system role in the spec. Their system role depends on their chat format."""
    groups_with_inherited_dummy: frozenset[str] = frozenset()
    """Model groups with a model or an address, but with the provider `dummy` from a file that the spec extends."""
    fetched: Path | None = None
    """The folder of the download that the spec is from; None for a local spec."""
    got_from: Mapping[str, str] | None = None
    """The published run that was downloaded into that folder, and its hash (`release` and `sha256`)."""
    fetched_prices: frozenset[str] = frozenset()
    """Model groups whose price is set, at least in part, by a downloaded file."""
    point_places: Mapping[str, Place] = field(default_factory=dict)
    """The place in a file of each value in `point`."""
    path: Path | None = None
    """The file that the spec was loaded from."""
    overridden: frozenset[str] = frozenset()
    """Dotted keys that overrides set or delete, as the user wrote them."""
    player_prompts: Mapping[str, PromptSet] = field(default_factory=dict)
    """The templates for both seats of each player of a tournament that has its own prompts."""
    trainer_files: Mapping[str, TrainerFiles] = field(default_factory=dict)
    """Files that came with downloaded trainers, by model group."""
    resumed_run_id: str | None = None
    """The id of the run to resume, if the spec is the saved spec in a run's folder."""
    origin: SpecOrigin = field(default_factory=SpecOrigin)
    """The files that the spec was written in, and the files that it names."""
    components: Mapping[str, ComponentUse] = field(default_factory=dict)
    """Installed releases that the spec names, by slot such as `prompts` and `agents.verifier`."""
    shard: Shard | None = None
    """The shard of the run that is played; None for the full run."""
    price_basis: PriceBasis = field(default_factory=PriceBasis)
    """The prices of calls; for a started run, those in its manifest."""
    recorded_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of an earlier manifest about the original files, if this spec names copies of them."""

    def __repr__(self) -> str:
        """Return a short text, since the values of all fields contain the dataset and the templates."""
        datapoints = counted(len(self.dataset.datapoints), "datapoint")
        return f"<Spec {self.experiment.name!r}: {self.protocol.name} on {datapoints}>"

    @property
    def unconfirmed_prices(self) -> frozenset[str]:
        """Model groups of a downloaded spec whose price the user has not set."""
        if self.fetched is None:
            return frozenset()
        return frozenset(
            group
            for group, settings in self.experiment.models.items()
            if settings.price is not None
            and settings.traits.metered
            and (group in self.fetched_prices or any(_sets_price(key, group) for key in self.point))
        )


@dataclass(frozen=True)
class LoadedInputs:
    """The datasets and journals that the points of a sweep have read, so that each is read only once."""

    saved: bool = False
    """Whether the spec is loaded from a run's folder only to read the run. It may have settings of older versions."""
    datasets: dict[str, Dataset | SpecError] = field(default_factory=dict)
    """The dataset, or the error in it, by a hash of its settings."""
    journal_hashes: dict[Path, str] = field(default_factory=dict)
    known_dataset: Dataset | None = None
    """The dataset of a run that was published without its rows. It replaces the dataset that the spec names."""
    checked_sha256: str | None = None
    """The hash of the spec that passed all checks when its run started; None if no checks may be left out."""

    def is_checked(self, layered: LayeredData) -> bool:
        """Return whether the spec is the one that passed all checks."""
        return self.checked_sha256 is not None and tagged_hash("spec", layered.data) == self.checked_sha256

    def journal_hash(self, run: Path) -> str:
        if run not in self.journal_hashes:
            self.journal_hashes[run] = file_hash(run / JOURNAL)
        return self.journal_hashes[run]

    def dataset(self, settings: DatasetSettings, path: Path | None, seed: int, place_of: PlaceOf) -> Dataset:
        if self.saved:
            settings = replace(settings, limits=limits_for_saved_run(settings.limits))
        cache_key = tagged_hash("read", [to_plain(settings), ascii(path), seed])
        if cache_key not in self.datasets:
            try:
                self.datasets[cache_key] = load_dataset(settings, path, seed, place_of)
            except SpecError as error:
                self.datasets[cache_key] = error
        cached = self.datasets[cache_key]
        if isinstance(cached, SpecError):
            raise cached
        return cached


def assemble(layered: LayeredData, inputs: LoadedInputs) -> Spec:
    """Return the spec. Check and read as much as possible, because an error must not hide another one.

    Raises:
        SpecError: the spec has errors; lists all of them.
    """
    dataset = protocol = prompts = None
    is_checked = inputs.is_checked(layered)
    problems: list[Problem] = []
    sound = SoundSpec(layered.data, frozenset())
    if not is_checked:
        problems, sound = _check_schema(layered, saved=inputs.saved)
    protocol_problems: list[Problem] = []
    with _collect_problems(protocol_problems):
        protocol = _load_protocol(layered, sound)
    filled_agents = fill_default_agents(layered, protocol)
    if filled_agents is not None:
        problems, sound = _check_schema(layered, saved=inputs.saved)
        problems.extend(filled_agents.unused)
    problems.extend(protocol_problems)
    with _collect_problems(problems):
        dataset = _load_dataset_section(layered, inputs, sound)
    if not is_checked:
        problems.extend(_check_sections(layered, protocol, sound, saved=inputs.saved))
    rejudged = None
    if not any(problem.key.startswith("rejudge") for problem in problems):
        try:
            rejudged = find_rejudged(layered, inputs.journal_hash)
        except RunError as error:
            problems.append(layered.problem_at(("rejudge", "run"), str(error)))
    fallback = None if rejudged is None else rejudged.prompts
    with _collect_problems(problems):
        prompts = _load_prompts(layered, protocol, dataset, sound, fallback)
    if not is_checked:
        problems.extend(_check_columns(layered, dataset, protocol, prompts, sound))
    if problems or dataset is None or protocol is None or prompts is None:
        raise SpecError(problems if filled_agents is None else filled_agents.as_written(problems))
    origin = SpecOrigin(named_files=_named_files(layered, protocol, prompts))
    spec = Spec(from_plain(Experiment, layered.data), protocol, prompts, dataset, rejudged=rejudged, origin=origin)
    return _complete_spec(spec, layered, inputs)


def _check_sections(
    layered: LayeredData, protocol: Protocol | None, sound: SoundSpec, *, saved: bool
) -> Iterator[Problem]:
    """Yield the problems of single sections that the schema cannot find."""
    if protocol is not None:
        yield from unplayable_parameters(protocol, _place_finder(layered))
        yield from agent_problems(layered, protocol, sound)
        yield from verdict_problems(layered, protocol, sound)
        yield from panel_problems(layered, protocol, sound)
        yield from section_problems(layered, protocol, sound)
        yield from checker_problems(layered, protocol, sound)
    yield from decision_problems(layered, protocol, sound, saved=saved)
    yield from group_problems(layered, sound)
    yield from model_problems(layered, sound, saved=saved)
    yield from budget_problems(layered, sound, _groups_to_call(layered, protocol))
    yield from rejudge_problems(layered, sound)


def _check_columns(
    layered: LayeredData,
    dataset: Dataset | None,
    protocol: Protocol | None,
    prompts: PromptSet | None,
    sound: SoundSpec,
) -> Iterator[Problem]:
    """Yield the problems of columns that the prompts, the protocol or the checker need from the dataset."""
    if dataset is not None and prompts is not None:
        place = layered.place(_DATASET)
        place = replace(place, is_own=place.is_own and _may_show_dataset(layered))
        yield from column_problems(dataset, prompts, place)
    if dataset is not None and protocol is not None:
        place, shows_columns = layered.place(("protocol", "use")), _may_show_dataset(layered)
        yield from protocol_column_problems(dataset, protocol, place, shows_columns=shows_columns)
    if dataset is not None:
        place = layered.place(("dataset", "checker", "column"))
        yield from reference_problems(dataset, checker_of(sound), place)


def _named_files(layered: LayeredData, protocol: Protocol, prompts: PromptSet) -> NamedFiles:
    folder = package_data.find_file(layered.data["prompts"], layered.folder(("prompts",)))
    own_templates = [name for name in prompts.sources if name not in prompts.inherited]
    return NamedFiles(
        protocol.paths,
        folder,
        () if folder is None else tuple(source_path(folder, name) for name in own_templates),
        _dataset_file(layered, layered.data["dataset"]["path"]),
    )


def _check_schema(layered: LayeredData, *, saved: bool = False) -> tuple[list[Problem], SoundSpec]:
    """Return the problems that the schema finds, the problems of plugins, and the parts of the spec without any."""
    schema, problems = schema_with_plugins(layered, saved=saved)
    problems += check_schema(layered, schema)
    return problems, SoundSpec(layered.data, frozenset(problem.key for problem in problems))


@contextmanager
def _collect_problems(problems: list[Problem]) -> Iterator[None]:
    """Add the problems of a `SpecError` to the list, and continue after the context."""
    try:
        yield
    except SpecError as error:
        problems.extend(error.problems)


def _find_cache(layered: LayeredData, experiment: Experiment, problems: list[Problem]) -> Path | None:
    """Return the file of the cache, or None without a cache. Add a problem if it cannot be used."""
    if experiment.cache is None:
        return None
    cache = layered.folder(("cache",)) / experiment.cache
    reason = "it is a folder" if package_data.is_folder(cache) else package_data.why_unusable(cache)
    if reason is not None:
        message = f"cannot use {str(cache)!r} as a cache: {reason}; set another file"
        problems.append(layered.problem_at(("cache",), message))
    return cache


def _complete_spec(spec: Spec, layered: LayeredData, inputs: LoadedInputs) -> Spec:
    """Return the spec with everything that depends on several sections, once each section has no problem.

    Raises:
        SpecError: the spec has errors; lists all of them.
    """
    experiment, models, written = spec.experiment, spec.experiment.models, layered.data["models"]
    place_of, test = _place_finder(layered), _load_test_dataset(layered, inputs, experiment)
    problems: list[Problem] = []
    spec = replace(spec, player_prompts=_load_player_prompts(spec, layered, problems))
    if not inputs.is_checked(layered):
        problems.extend(_check_combinations(spec, test, layered))
    cache = _find_cache(layered, experiment, problems)
    replays = {group: replay_folder(layered, group) for group in models if models[group].traits.needs_run}
    trainer_files = _find_all_trainer_files(layered, experiment, problems)
    if inputs.saved:  # A saved run has all answers in its own journal, so a replayed run may be missing.
        replays = {group: run for group, run in replays.items() if package_data.exists(run)}
    saved_specs = {group: run / SAVED_SPEC for group, run in replays.items()}
    replayed_formats, mixed_agents = chat_formats.find_replayed_formats(experiment, saved_specs)
    problems.extend(chat_formats.mixed_problems(models, mixed_agents, place_of))
    if problems:
        raise SpecError(problems)
    fetched = fetched_folder([*layered.folders.values(), *_function_folders(spec)])
    return replace(
        spec,
        protocol=spec.protocol if experiment.stances is None else spec.protocol.with_given_stance(),
        experiment=replace(experiment, models=chat_formats.resolve_chat_formats(models, written, replayed_formats)),
        groups_with_default_format=chat_formats.groups_with_default_format(models, written),
        groups_with_default_role=frozenset(group for group in models if "system_role" not in written[group]),
        groups_with_inherited_dummy=frozenset(group for group in models if _inherits_dummy(layered, experiment, group)),
        test=test,
        cache=cache,
        replays=replays,
        replayed_sha256={group: inputs.journal_hash(run) for group, run in replays.items()},
        plugins={} if inputs.saved else find_pins(experiment),
        trainer_files=trainer_files,
        renamed=tuple(layered.renamed_keys),
        fetched=fetched,
        fetched_prices=frozenset(group for group in written if _has_fetched_price(layered, group)),
        got_from=None if fetched is None else _find_downloaded_run(layered.folders.values()),
    )


def _inherits_dummy(layered: LayeredData, experiment: Experiment, group: str) -> bool:
    """Return whether a group's provider calls no model, and is from another file than its model or its address."""
    keys = [key for key in ("provider", "model", "base_url") if layered.data["models"][group].get(key)]
    files = {layered.place(("models", group, key)).file for key in keys}
    return experiment.models[group].traits.generates_locally and len(files) > 1


def _function_folders(spec: Spec) -> Iterator[Path]:
    """Yield the folder of each Python function, since a function needs consent if its folder was downloaded."""
    for prompts in (spec.prompts, *spec.player_prompts.values()):
        yield from (Path(prompts.files[name].file).parent for name in prompts.functions)


def _check_combinations(spec: Spec, test: Dataset | None, layered: LayeredData) -> Iterator[Problem]:
    """Yield problems of sections that are valid alone, but not together."""
    experiment, protocol, dataset, place_of = spec.experiment, spec.protocol, spec.dataset, _place_finder(layered)
    for key, message in (
        *tree_problems(experiment, protocol, dataset),
        *design_problems(experiment, protocol, spec.prompts),
        *until_problems(experiment),
        *execution_problems(experiment),
        *unlabelled_problems(experiment, protocol, dataset),
        *answer_problems(experiment, protocol, dataset),
        *training_problems(experiment, protocol, dataset),
        *tournament_problems(experiment, protocol, spec.prompts, spec.player_prompts),
        *rejudge_conflicts(experiment),
    ):
        yield Problem(place_of(key), key, message)
    used_variables = frozenset().union(*spec.prompts.variables.values())
    yield from split_problems(
        experiment, dataset, test, place_of(TEST_SPLIT), used_variables, names_datapoints=_may_show_dataset(layered)
    )


def _find_all_trainer_files(
    layered: LayeredData, experiment: Experiment, problems: list[Problem]
) -> dict[str, TrainerFiles]:
    """Return the files that came with downloaded trainers, by model group. Add errors to `problems`."""
    trainer_files: dict[str, TrainerFiles] = {}
    for group, trainer in ({} if experiment.training is None else experiment.training.trainers).items():
        try:
            files = find_trainer_files(layered, group, trainer)
        except ReleaseError as error:
            problems.append(layered.problem_at(("training", "trainers", group, "command"), str(error)))
        else:
            trainer_files |= {} if files is None else {group: files}
    return trainer_files


def _sets_price(key: str, group: str) -> bool:
    """Return whether a key of a sweep sets a group's price, a part of it, or a section that contains it."""
    path, price = key.split("."), ["models", group, "price"]
    return all(part == price_part for part, price_part in zip(path, price, strict=False))


def _has_fetched_price(layered: LayeredData, group: str) -> bool:
    """Return whether a downloaded file sets at least a part of a group's price."""
    price, path = layered.data["models"][group].get("price"), ("models", group, "price")
    keys = [(*path, name) for name, value in price.items() if value is not None] if isinstance(price, dict) else []
    return fetched_folder(layered.folder(key) for key in keys if layered.is_set_by_file(key)) is not None


def _find_downloaded_run(folders: Iterable[Path]) -> Mapping[str, str] | None:
    """Return the release and hash of the first downloaded run whose folder is one of `folders` or contains one."""
    downloads = (fetched_folder([folder]) for folder in folders)
    markers = (read_marker(download) for download in downloads if download is not None)
    return next((run for run in markers if run is not None and run["release"].startswith(f"{Kind.RUN}/")), None)


def _groups_to_call(layered: LayeredData, protocol: Protocol | None) -> Collection[str] | None:
    """Return the model groups that the run calls, with `rejudge` only the judge's; None means all."""
    agents = layered.data.get("agents")
    if not layered.data.get("rejudge") or protocol is None or not isinstance(agents, dict):
        return None
    if protocol.file.panel is not None:  # `panel_problems` reports it
        return None
    judge = agents.get(protocol.verifier_name)
    return [str(judge.get("model"))] if isinstance(judge, dict) else None


def _place_finder(layered: LayeredData) -> PlaceOf:
    """Return a function from a dotted key to the place that sets it."""
    return lambda key: layered.place(tuple(key.split(".")))


def _load_dataset_section(layered: LayeredData, inputs: LoadedInputs, sound: SoundSpec) -> Dataset | None:
    # Without its section `transcripts`, the dataset would be read as a table, whose columns are others.
    has_mistake = any(f"{key}.".startswith("dataset.transcripts.") for key in sound.broken)
    if has_mistake or "path" not in sound.section("dataset"):
        return None
    settings = from_plain(DatasetSettings, sound.section("dataset"))
    seed = layered.data.get("seed", 0) if "seed" not in sound.broken else 0
    try:
        return _read_dataset(layered, inputs, settings, seed)
    except SpecError as error:
        if not any(f"{key}.".startswith(f"dataset.{name}.") for key in sound.broken for name in _ROW_KEYS):
            raise
        if problems := [problem for problem in error.problems if problem.key not in ("dataset", "dataset.labels")]:
            raise SpecError(problems) from error
        return None  # rows without an id or a label may be due to the mistake


def assemble_whole_dataset(layered: LayeredData, sections: Collection[str]) -> Dataset:
    """Return the dataset of a spec with all splits, without `limit`, `balance` and `shuffle`.

    Only `sections`, which include `dataset`, are checked. On the Hub, a dataset has one split.

    Raises:
        SpecError: one of the sections has errors; lists all of them.
    """
    problems, sound = _check_schema(layered)
    if "dataset" not in layered.data:
        missing = layered.problem_at(("dataset",), "missing key; write the file's path: dataset: {path: FILE}")
        raise SpecError([missing, *(problem for problem in problems if problem.kind == "unknown key")])
    if problems := [problem for problem in problems if problem.key.partition(".")[0] in sections]:
        raise SpecError(problems)
    settings = from_plain(DatasetSettings, sound.section("dataset"))
    split = settings.split if settings.path.startswith(HUB) else None
    settings = replace(settings, split=split, limit=None, balance="none", shuffle=False)
    return _read_dataset(layered, LoadedInputs(), settings, 0)


def _read_dataset(layered: LayeredData, inputs: LoadedInputs, settings: DatasetSettings, seed: int) -> Dataset:
    if inputs.known_dataset is not None:
        return inputs.known_dataset
    path = _dataset_file(layered, settings.path)
    if path is None and not settings.path.startswith(HUB):
        hint = _suggest_path(layered, _DATASET, settings.path, package_data.is_file)
        message = f"there is no file {settings.path!r}, and no built-in file of this name{hint}"
        raise SpecError([layered.problem_at(_DATASET, message)])
    try:
        return inputs.dataset(settings, path, seed, _place_finder(layered))
    except SpecError as error:
        if path is None or _may_show_dataset(layered):
            raise
        place = replace(layered.place(_DATASET), is_own=False)
        kind = f"dataset.path: {path} cannot be used. To see the reason, add {shlex.quote(f'dataset.path={path}')}"
        if layered.has_foreign_data:  # a downloaded file may set the path, so the message must not quote it
            kind = "dataset.path: the dataset cannot be used"
        raise SpecError([Problem(place, "", "", kind)]) from error
    except OSError as error:
        if path is None:
            raise
        file_name = f"{error.filename or path}: " if _may_show_dataset(layered) else ""
        message = f"cannot read the dataset: {file_name}{error.strerror or error}"
        raise SpecError([layered.problem_at(_DATASET, message)]) from error


def _dataset_file(layered: LayeredData, path: str) -> Path | None:
    """Return the file of a dataset; None if it does not exist or is on the Hub."""
    return None if path.startswith(HUB) else package_data.find_file(path, layered.folder(_DATASET))


def _suggest_path(layered: LayeredData, key_path: KeyPath, path_text: str, is_candidate: Callable[[Path], bool]) -> str:
    """Return a hint about a missing file or folder: a similar name in its folder, if the names there may be quoted."""
    folder = layered.folder(key_path) / Path(path_text).parent
    hint = "; a path in a file starts from the folder of this file, a path in an override from the current folder"
    try:
        if not layered.may_quote(key_path, folder):
            return hint
        names = [path.name for path in folder.iterdir() if is_candidate(path)]
        return did_you_mean_file(Path(path_text).name, names) or hint
    except (OSError, ValueError):  # not a valid folder name
        return hint


def _may_show_dataset(layered: LayeredData) -> bool:
    """Return whether messages may quote the dataset, such as ids and column names."""
    path = _dataset_file(layered, layered.data["dataset"]["path"])
    return path is None or layered.may_quote(_DATASET, path)


def _load_test_dataset(layered: LayeredData, inputs: LoadedInputs, experiment: Experiment) -> Dataset | None:
    """Load the split of the dataset that a training run tests its models on."""
    training = experiment.training
    if training is None or (training.test.scheme == "none" and training.rerun_tests is None):
        return None
    test, place_of = training.test, _place_finder(layered)
    settings = replace(experiment.dataset, split=test.split, limit=test.limit)
    try:
        return _read_dataset(layered, inputs, settings, experiment.seed)
    except SpecError as error:
        key = "training.test.split"
        raise SpecError(
            [replace(p, key=key, place=place_of(key)) if p.key == "dataset.split" else p for p in error.problems]
        ) from error


def _load_protocol(layered: LayeredData, sound: SoundSpec) -> Protocol | None:
    section = sound.section("protocol")
    if "use" not in section:
        return None
    parameter_names = {field.name for field in fields(Parameters)}
    parameters = {name: value for name, value in section.items() if name in parameter_names}
    key_path = ("protocol", "use")
    # A protocol that the user names by an override may be in any folder.
    tree = layered.tree if layered.is_set_by_file(key_path) else None
    return load_protocol(
        section["use"], parameters, folder=layered.folder(key_path), where=_place_finder(layered), tree=tree
    )


def _load_player_prompts(spec: Spec, layered: LayeredData, problems: list[Problem]) -> dict[str, PromptSet]:
    """Return the templates of the players that have their own prompts. Add errors to `problems`."""
    settings, templates = spec.experiment.tournament, {}
    if settings is None:
        return {}
    seats, shows_columns = seats_of(settings, spec.protocol), _may_show_dataset(layered)
    for name, player in settings.players.items():
        key_path = ("tournament", "players", name, "prompts")
        if player.prompts is None:
            continue
        place, may_quote = layered.place(key_path), partial(layered.may_quote, key_path)
        loader = PromptLoader(spec.protocol, spec.dataset.columns, place, may_quote, shows_columns, agents=seats)
        player_problems: list[Problem] = []
        with _collect_problems(player_problems):
            templates[name] = loader.load(_find_prompt_folder(layered, key_path, player.prompts))
            player_problems.extend(column_problems(spec.dataset, templates[name], layered.place(_DATASET)))
        key = ".".join(key_path)
        problems.extend(
            replace(problem, key=key) if problem.key == "prompts" else problem for problem in player_problems
        )
    return templates


def _find_prompt_folder(layered: LayeredData, key_path: KeyPath, name: str) -> Path:
    """Return the folder of templates that a key names.

    Raises:
        SpecError: there is no such folder.
    """
    folder = package_data.find_file(name, layered.folder(key_path))
    if folder is not None and package_data.is_folder(folder):
        return folder
    hint = _suggest_path(layered, key_path, name, package_data.is_folder)
    message = f"there is no folder {name!r}, and no built-in folder of this name{hint}"
    raise SpecError([layered.problem_at(key_path, message)])


def _load_prompts(
    layered: LayeredData, protocol: Protocol | None, dataset: Dataset | None, sound: SoundSpec, fallback: Path | None
) -> PromptSet | None:
    """Return the prompts. Templates that are missing in their folder are taken from the folder `fallback`."""
    name, place = layered.data.get("prompts"), layered.place(("prompts",))
    if not isinstance(name, str):
        return None
    folder = _find_prompt_folder(layered, ("prompts",), name)
    if protocol is None:
        return None
    may_quote = partial(layered.may_quote, ("prompts",))
    columns, names_columns = (dataset.columns, _may_show_dataset(layered)) if dataset else (None, True)
    states_confidence = from_plain(VerdictSettings, sound.section("verdict")).states
    decision_format = from_plain(DecisionFormat, sound.section("decision_format"))
    marker = decision_format.confidence if states_confidence else None
    loader = PromptLoader(
        protocol, columns, place, may_quote, names_columns, confidence=marker, checker=checker_of(sound)
    )
    return loader.load(folder, otherwise=fallback)
