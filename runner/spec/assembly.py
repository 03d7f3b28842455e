"""Merged data into a `Spec`: everything checked and read, or every problem at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import Place, PlaceOf, Problem, ReleaseError, RunError, SpecError
from runner.base.hashing import file_hash, tagged_hash
from runner.base.storage.journal import JOURNAL
from runner.base.text import did_you_mean_file
from runner.documents.dataclass_schema import from_plain, to_plain
from runner.documents.layered_data import LayeredData, RenamedKey
from runner.documents.plain_values import KeyPath
from runner.documents.releases.reference import Kind
from runner.documents.schema_check import check
from runner.game.prompts.templates import SUFFIX as TEMPLATE
from runner.game.prompts.templates import PromptSet, load_prompts
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.loader import load_protocol, unplayable_parameters
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schema import Parameters
from runner.models.prices import PriceBasis
from runner.spec import chat_formats
from runner.spec.checks.agents import agent_problems, group_problems
from runner.spec.checks.columns import column_problems
from runner.spec.checks.decisions import decision_problems
from runner.spec.checks.execution import execution_problems
from runner.spec.checks.hidden_labels import unlabelled_problems
from runner.spec.checks.models import budget_problems, model_problems, replay_folder, verdict_problems
from runner.spec.checks.training import training_problems
from runner.spec.checks.trees import tree_problems
from runner.spec.checks.until import until_problems
from runner.spec.components import ComponentUse
from runner.spec.datasets.loader import HUB, Dataset, load_dataset
from runner.spec.datasets.settings import DatasetSettings, limits_of_saved
from runner.spec.datasets.shards import Shard
from runner.spec.default_agents import fill_seats
from runner.spec.experiment import SAVED_SPEC, Experiment
from runner.spec.origin import fetched_folder, read_marker
from runner.spec.paired_design import design_problems
from runner.spec.rejudged_run import Rejudged, conflicts, find_rejudged, rejudge_problems
from runner.spec.schemas import experiment_schema
from runner.spec.sound_spec import SoundSpec
from runner.spec.source_files import NamedFiles, Origin
from runner.spec.trainer_files import TrainerFiles, find_trainer_files

_DATASET = ("dataset", "path")


@dataclass(frozen=True)
class Spec:
    """One point of a spec: its keys, and the protocol, prompts and datapoints they name."""

    experiment: Experiment
    protocol: Protocol
    prompts: PromptSet
    dataset: Dataset
    replays: Mapping[str, Path] = field(default_factory=dict)
    """For each model group that replays a run: that run's folder."""
    replayed: Mapping[str, str] = field(default_factory=dict)
    """For each model group that replays a run: the SHA-256 of that run's journal."""
    rejudged: Rejudged | None = None
    """The run whose debates are judged again."""
    cache: Path | None = None
    test: Dataset | None = None
    """What a training run measures its models on."""
    point: Mapping[str, Any] = field(default_factory=dict)
    """What the sweep sets here: dotted keys and their values."""
    renamed: tuple[RenamedKey, ...] = ()
    """Keys that it has by their old names."""
    by_address: frozenset[str] = frozenset()
    """The model groups whose chat format follows from their address, since the spec gives none."""
    by_format: frozenset[str] = frozenset()
    """Those whose instructions' role follows from their chat format."""
    fetched: Path | None = None
    """The folder that it was fetched into, where it came from elsewhere."""
    got_from: Mapping[str, str] | None = None
    """The release that was got into that folder, and its hash."""
    fetched_prices: frozenset[str] = frozenset()
    """The model groups with a price, or a part of one, in a fetched file."""
    point_places: Mapping[str, Place] = field(default_factory=dict)
    """Where the values of the point stand."""
    path: Path | None = None
    """The file that it was loaded from."""
    overridden: frozenset[str] = frozenset()
    """The dotted keys that overrides set or delete, as they were given."""
    trainer_files: Mapping[str, TrainerFiles] = field(default_factory=dict)
    """The files that came with fetched trainers, by model group."""
    begun_as: str | None = None
    """The id of the run that it goes on with, where it is the spec in that run's own folder."""
    origin: Origin = field(default_factory=Origin)
    """The files that it was written in, and those that it names."""
    components: Mapping[str, ComponentUse] = field(default_factory=dict)
    """By slot, such as `prompts` and `agents.verifier`: the installed release that is named there."""
    shard: Shard | None = None
    """Which of several parts of the run is played; None: all of it."""
    price_basis: PriceBasis = field(default_factory=PriceBasis)
    """What calls are priced by: of a run that has begun, by what its manifest says."""
    as_recorded: Mapping[str, Any] = field(default_factory=dict)
    """What an earlier manifest has of the files that this spec names copies of, and its own is to have, too."""

    @property
    def unconfirmed_prices(self) -> frozenset[str]:
        """The model groups whose price somebody else has set. A price that the user gives as KEY=VALUE is confirmed."""
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
class Readers:
    """Datasets and journals that were read already, so that a sweep reads each once."""

    saved: bool = False
    """Whether the spec is that of a run that was played: what is refused since can still be read, and not played."""
    datasets: dict[str, Dataset | SpecError] = field(default_factory=dict)
    journals: dict[Path, str] = field(default_factory=dict)
    given: Dataset | None = None
    """What is known of the datapoints of a run that was published without their rows."""

    def journal_hash(self, run: Path) -> str:
        if run not in self.journals:
            self.journals[run] = file_hash(run / JOURNAL)
        return self.journals[run]

    def dataset(self, settings: DatasetSettings, path: Path | None, seed: int, where: PlaceOf) -> Dataset:
        if self.saved:
            settings = replace(settings, limits=limits_of_saved(settings.limits))
        name = tagged_hash("read", [to_plain(settings), ascii(path), seed])
        if name not in self.datasets:
            try:
                self.datasets[name] = load_dataset(settings, path, seed, where)
            except SpecError as error:
                self.datasets[name] = error
        found = self.datasets[name]
        if isinstance(found, SpecError):
            raise found
        return found


def assemble(layered: LayeredData, readers: Readers) -> Spec:
    """Check and read all that its own errors allow, so that one mistake does not hide the next.

    Raises:
        SpecError: with everything that is wrong.
    """
    dataset = protocol = prompts = None
    problems, sound = _checked(layered)
    refused: list[Problem] = []
    with _collecting(refused):
        protocol = _protocol(layered, sound)
    filled = fill_seats(layered, protocol)
    if filled is not None:
        problems, sound = _checked(layered)
        problems.extend(filled.unused)
    problems.extend(refused)
    with _collecting(problems):
        dataset = _dataset(layered, readers, sound)
    if protocol is not None:
        problems.extend(unplayable_parameters(protocol, _where(layered)))
        problems.extend(agent_problems(layered, protocol, sound))
        problems.extend(verdict_problems(layered, protocol, sound))
    problems.extend(decision_problems(layered, sound, saved=readers.saved))
    problems.extend(group_problems(layered, sound))
    problems.extend(model_problems(layered, sound, saved=readers.saved))
    problems.extend(budget_problems(layered, sound, _asked_groups(layered, protocol)))
    problems.extend(rejudge_problems(layered, sound))
    rejudged = None
    if not any(problem.key.startswith("rejudge") for problem in problems):
        with _collecting_run_errors(layered, problems):
            rejudged = find_rejudged(layered, readers.journal_hash)
    with _collecting(problems):
        prompts = _prompts(layered, protocol, dataset, sound, None if rejudged is None else rejudged.prompts)
    if dataset is not None and prompts is not None:
        place = layered.place(_DATASET)
        place = replace(place, is_own=place.is_own and _shows_dataset(layered))
        problems.extend(column_problems(dataset, prompts, place))
    if problems or dataset is None or protocol is None or prompts is None:
        raise SpecError(problems if filled is None else filled.as_written(problems))
    origin = Origin(named=_named_files(layered, protocol, prompts))
    spec = Spec(from_plain(Experiment, layered.data), protocol, prompts, dataset, rejudged=rejudged, origin=origin)
    return _complete(spec, layered, readers)


def _named_files(layered: LayeredData, protocol: Protocol, prompts: PromptSet) -> NamedFiles:
    folder = package_data.find_file(layered.data["prompts"], layered.folder(("prompts",)))
    own = [name for name in prompts.sources if name not in prompts.inherited]
    return NamedFiles(
        protocol.paths,
        folder,
        () if folder is None else tuple(folder / (name + TEMPLATE) for name in own),
        _dataset_file(layered, layered.data["dataset"]["path"]),
    )


def _checked(layered: LayeredData) -> tuple[list[Problem], SoundSpec]:
    """What the schema finds wrong, and the rest."""
    problems = check(layered, experiment_schema())
    return problems, SoundSpec(layered.data, frozenset(problem.key for problem in problems))


@contextmanager
def _collecting(problems: list[Problem]) -> Iterator[None]:
    """Goes on after a `SpecError`, with its problems added."""
    try:
        yield
    except SpecError as error:
        problems.extend(error.problems)


def _complete(spec: Spec, layered: LayeredData, readers: Readers) -> Spec:
    """The spec with what can only be read and checked once its parts are sound by themselves.

    Raises:
        SpecError: with everything that is wrong.
    """
    experiment, where = spec.experiment, _where(layered)
    test, used = _test_dataset(layered, readers, experiment), frozenset().union(*spec.prompts.variables.values())
    problems = [
        *tree_problems(experiment, spec.protocol, spec.dataset, where),
        *design_problems(experiment, spec.protocol, spec.prompts, where),
        *until_problems(experiment, where),
        *execution_problems(experiment, where),
        *unlabelled_problems(experiment, spec.protocol, spec.dataset, where),
        *training_problems(
            experiment, spec.protocol, spec.dataset, test, where, used=used, names_datapoints=_shows_dataset(layered)
        ),
        *(Problem(where(key), key, message) for key, message in conflicts(experiment)),
    ]
    cache = None if experiment.cache is None else layered.folder(("cache",)) / experiment.cache
    wrong = None if cache is None else package_data.why_unusable(cache)
    if wrong is not None:
        problems.append(Problem(layered.place(("cache",)), "cache", f"no cache can be at {str(cache)!r}: {wrong}"))
    replayed_groups = [group for group, settings in experiment.models.items() if settings.traits.needs_run]
    replays = {group: replay_folder(layered, group) for group in replayed_groups}
    trainer_files: dict[str, TrainerFiles] = {}
    for group, trainer in ({} if experiment.training is None else experiment.training.trainers).items():
        try:
            stored = find_trainer_files(layered, group, trainer)
        except ReleaseError as error:
            key = f"training.trainers.{group}.command"
            problems.append(Problem(where(key), key, str(error)))
        else:
            trainer_files |= {} if stored is None else {group: stored}
    if readers.saved:  # whose own journal has the answers
        replays = {group: run for group, run in replays.items() if package_data.exists(run)}
    saved_specs = {group: run / SAVED_SPEC for group, run in replays.items()}
    asked_in, mixed = chat_formats.replayed_formats(experiment, saved_specs)
    problems.extend(chat_formats.mixed_problems(experiment.models, mixed, where))
    if problems:
        raise SpecError(problems)
    replayed = {group: readers.journal_hash(run) for group, run in replays.items()}
    models, said = experiment.models, layered.data["models"]
    fetched = fetched_folder(layered.folders.values())
    return replace(
        spec,
        protocol=spec.protocol if experiment.stances is None else spec.protocol.with_given_stance(),
        experiment=replace(experiment, models=chat_formats.resolved(models, said, asked_in)),
        by_address=chat_formats.by_default(models, said),
        by_format=frozenset(group for group in models if "system_role" not in said[group]),
        test=test,
        cache=cache,
        replays=replays,
        replayed=replayed,
        trainer_files=trainer_files,
        renamed=tuple(layered.renamed),
        fetched=fetched,
        fetched_prices=frozenset(group for group in said if _has_fetched_price(layered, group)),
        got_from=None if fetched is None else _got_run(layered.folders.values()),
    )


def _sets_price(key: str, group: str) -> bool:
    """Whether a key of a sweep sets a group's price, alone or with more."""
    at = tuple(key.split("."))
    return at[: len(price := ("models", group, "price"))] == price[: len(at)]


def _has_fetched_price(layered: LayeredData, group: str) -> bool:
    price, at = layered.data["models"][group].get("price"), ("models", group, "price")
    places = [(*at, name) for name, value in price.items() if value is not None] if isinstance(price, dict) else []
    folders = [layered.folder(place) for place in places if layered.is_set_by_file(place)]
    return fetched_folder(folders) is not None


def _got_run(folders: Iterable[Path]) -> Mapping[str, str] | None:
    """The run in whose folder, as it was got, a file of the spec lies."""
    roots = (fetched_folder([folder]) for folder in folders)
    said = (read_marker(root) for root in roots if root is not None)
    return next((one for one in said if one is not None and one["release"].startswith(f"{Kind.RUN}/")), None)


@contextmanager
def _collecting_run_errors(layered: LayeredData, problems: list[Problem]) -> Iterator[None]:
    """Goes on where the run that is to be judged again cannot be read, with that as a problem."""
    try:
        yield
    except RunError as error:
        problems.append(Problem(layered.place(("rejudge", "run")), "rejudge.run", str(error)))


def _asked_groups(layered: LayeredData, protocol: Protocol | None) -> Collection[str] | None:
    """The model groups that are asked; None: all."""
    agents = layered.data.get("agents")
    if not layered.data.get("rejudge") or protocol is None or not isinstance(agents, dict):
        return None
    judge = agents.get(protocol.verifier_name)
    return [str(judge.get("model"))] if isinstance(judge, dict) else None


def _where(layered: LayeredData) -> PlaceOf:
    """A dotted key into the place that set it."""
    return lambda key: layered.place(tuple(key.split(".")))


def _dataset(layered: LayeredData, readers: Readers, sound: SoundSpec) -> Dataset | None:
    if "path" not in sound.section("dataset"):
        return None
    settings = from_plain(DatasetSettings, sound.section("dataset"))
    seed = layered.data.get("seed", 0) if "seed" not in sound.broken else 0
    return _read_dataset(layered, readers, settings, seed)


def _read_dataset(layered: LayeredData, readers: Readers, settings: DatasetSettings, seed: int) -> Dataset:
    if readers.given is not None:
        return readers.given
    path = _dataset_file(layered, settings.path)
    if path is None and not settings.path.startswith(HUB):
        hint = _near(layered, _DATASET, settings.path, package_data.is_file)
        message = f"no file {settings.path!r} beside the spec, nor among the built-in ones{hint}"
        raise SpecError([Problem(layered.place(_DATASET), "dataset.path", message)])
    try:
        return readers.dataset(settings, path, seed, _where(layered))
    except SpecError as error:
        if path is None or _shows_dataset(layered):
            raise
        place = replace(layered.place(_DATASET), is_own=False)
        named = "it" if layered.has_foreign_data else path  # its name may have come from somebody else's file
        raise SpecError([Problem(place, "", "", f"dataset.path: {named} cannot be used")]) from error


def _dataset_file(layered: LayeredData, named: str) -> Path | None:
    """The file of a dataset; None where there is none, or it is on the Hub."""
    return None if named.startswith(HUB) else package_data.find_file(named, layered.folder(_DATASET))


def _near(layered: LayeredData, at: KeyPath, named: str, is_meant: Callable[[Path], bool]) -> str:
    """The next step where a file or folder is not there: a like name beside it, if that may be told."""
    folder = layered.folder(at) / Path(named).parent
    hint = "; a path is relative to the folder of the file that says it"
    try:
        if not layered.may_quote(at, folder):
            return hint
        return did_you_mean_file(Path(named).name, [path.name for path in folder.iterdir() if is_meant(path)]) or hint
    except (OSError, ValueError):  # no folder of this name can be
        return hint


def _shows_dataset(layered: LayeredData) -> bool:
    """Whether it may be told what stands in the dataset, such as its ids and the names of its columns."""
    path = _dataset_file(layered, layered.data["dataset"]["path"])
    return path is None or layered.may_quote(_DATASET, path)


def _test_dataset(layered: LayeredData, readers: Readers, experiment: Experiment) -> Dataset | None:
    """The other split of the dataset, which a training run measures its models on."""
    training = experiment.training
    if training is None or (training.test.scheme == "none" and training.rerun_tests is None):
        return None
    test, where = training.test, _where(layered)
    settings = replace(experiment.dataset, split=test.split, limit=test.limit)
    try:
        return _read_dataset(layered, readers, settings, experiment.seed)
    except SpecError as error:
        ours = "training.test.split"
        raise SpecError(
            [replace(p, key=ours, place=where(ours)) if p.key == "dataset.split" else p for p in error.problems]
        ) from error


def _protocol(layered: LayeredData, sound: SoundSpec) -> Protocol | None:
    section = sound.section("protocol")
    if "use" not in section:
        return None
    known = {field.name for field in fields(Parameters)}
    parameters = {name: value for name, value in section.items() if name in known}
    at = ("protocol", "use")
    # One that the user names has a tree of its own.
    tree = layered.tree if layered.is_set_by_file(at) else None
    return load_protocol(section["use"], parameters, folder=layered.folder(at), where=_where(layered), tree=tree)


def _prompts(
    layered: LayeredData, protocol: Protocol | None, dataset: Dataset | None, sound: SoundSpec, otherwise: Path | None
) -> PromptSet | None:
    """The prompts; `otherwise` is the folder of templates that this one need not have."""
    name, place = layered.data.get("prompts"), layered.place(("prompts",))
    if not isinstance(name, str):
        return None
    folder = package_data.find_file(name, layered.folder(("prompts",)))
    if folder is None or not package_data.is_folder(folder):
        hint = _near(layered, ("prompts",), name, package_data.is_folder)
        message = f"no folder {name!r} beside the spec, nor among the built-in ones{hint}"
        raise SpecError([Problem(place, "prompts", message)])
    if protocol is None:
        return None
    shows = partial(layered.may_quote, ("prompts",))
    columns, names_columns = (dataset.columns, _shows_dataset(layered)) if dataset else (None, True)
    verdict, format_ = (sound.section(name) for name in ("verdict", "decision_format"))
    states = from_plain(VerdictSettings, verdict).states
    marker = from_plain(DecisionFormat, format_).confidence if states else None
    return load_prompts(
        folder, protocol, columns, place, shows, names_columns=names_columns, confidence=marker, otherwise=otherwise
    )
