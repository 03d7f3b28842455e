"""Facts about a run that do not depend on its games: models, origin, hashes and commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runner.base.errors import RunError
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join
from runner.models.prices import describe_price, price_of
from runner.models.settings import ModelSettings
from runner.pages.numbers import elapsed
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import RUNS
from runner.results.manifest import Manifest, Status
from runner.results.provenance.sources_snapshot import OVERRIDES, WRITTEN
from runner.rollouts.plan import Plan, used_models
from runner.runs.finished.resume_advice import budget_overrides
from runner.spec.experiment import AgentSettings
from runner.spec.origin import DATA, MARKER

HASHES = {
    "identity": "Identity of the run",
    "game_sha256": "Rules, prompts and models",
    "spec_sha256": "Spec",
    "protocol_sha256": "Protocol",
    "dataset_sha256": "Datapoints",
    "dataset_source_sha256": "Dataset's file",
}

MAX_OVERRIDES = 1 << 20

# Models


@dataclass(frozen=True)
class AgentModel:
    """The model of an agent, with its server, settings and price."""

    agent: str
    settings: ModelSettings
    asked_at: str
    options: Sequence[str]
    price: str


def agent_models(plan: Plan, agents: Mapping[str, AgentSettings] | None = None) -> list[AgentModel]:
    """Return the model of each agent with its settings; `agents` replaces the agents of the spec."""
    used = used_models(plan)
    return [
        AgentModel(
            name,
            settings := used[agent.model],
            _asked_at(settings),
            _describe_options(settings, agent.max_response_words),
            describe_price(price_of(settings, plan.spec.price_basis.day)) if settings.has_costs else "free",
        )
        for name, agent in (agents or plan.spec.experiment.agents).items()
        if agent.model in used
    ]


def _asked_at(settings: ModelSettings) -> str:
    if not settings.traits.remote:
        return settings.provider
    if settings.lacks_address:
        return "not published"
    return comma_join(address or settings.provider for address in settings.addresses)


def _describe_options(settings: ModelSettings, max_words: int | None) -> list[str]:
    options = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.request_parameters.items()]
    options += [] if max_words is None else [f"max_response_words={max_words}"]
    options += [f"chat_format={settings.chat_format}"] if settings.chat_format == "alternating" else []
    return [*options, *(["batch"] if settings.is_batched else [])]


# Origin


class OriginFact(NamedTuple):
    """A fact about the origin of a run; `run` is the id of a run that the fact names, or None."""

    name: str
    text: str
    run: str | None = None


def origin(manifest: Manifest, here: Collection[str]) -> list[OriginFact]:
    """Return facts about the origin of a run; only runs on the same site (`here`) are linked."""
    facts = [fact for fact in _origins(manifest) if fact.text]
    return [fact if fact.run in here else fact._replace(run=None) for fact in facts]


def _describe_part(manifest: Manifest) -> str:
    """Describe a part of a tournament or a training run, whose id ends with the number of the pairing or iteration."""
    if re.search(rf"-p{manifest.iteration}[ab]\Z", manifest.run_id):
        return f"games of pairing {manifest.iteration}"
    return f"{'games of' if manifest.kind == 'training' else 'test before'} iteration {manifest.iteration}"


def _origins(manifest: Manifest) -> Iterator[OriginFact]:
    if (parent := manifest.parent_run_id) is not None:
        yield OriginFact("Part of", f"{parent}, {_describe_part(manifest)}", parent)
    if (judged := manifest.rejudge_of) is not None:
        yield OriginFact("Judges again", f"the debates of {judged.run_id} (verdict: {judged.verdict})", judged.run_id)
    if (replayed := manifest.replay_of) is not None:
        until = "" if replayed.until_round is None else f", up to round {replayed.until_round}"
        yield OriginFact("Replays", f"the answers of {replayed.run_id}{until}", replayed.run_id)
    for name, release in (("Got from", manifest.got_from), ("Plays again", manifest.reproduces)):
        if release:
            yield OriginFact(name, _describe_release(release))
    for slot, release in (manifest.components or {}).items():
        yield OriginFact(f"Component {slot}", _describe_release(release))
    for part, source in (manifest.sources or {}).items():
        yield OriginFact(part.capitalize(), _describe_source(source))
    if manifest.point:
        yield OriginFact(
            "Point of a sweep", " ".join(f"{key}={json.dumps(value)}" for key, value in manifest.point.items())
        )
    yield OriginFact("Board", manifest.benchmark)
    yield OriginFact("Seed", str(manifest.seed))
    dirty = ", with changes" if manifest.git_dirty else ""
    yield OriginFact("Commit", f"{manifest.git_commit}{dirty}" if manifest.git_commit else "")
    yield OriginFact("Played with", f"nip-run {manifest.version}, Python {manifest.python}")
    yield OriginFact("Began", manifest.started_at)
    duration = elapsed(manifest.started_at, manifest.finished_at)
    yield OriginFact("Ended", f"{manifest.finished_at} (after {duration})" if duration else manifest.finished_at or "")


def _describe_release(release: Mapping[str, object]) -> str:
    digest = release.get("sha256")
    return " ".join(str(text) for text in (release.get("release", ""), f"(sha256 {digest})" if digest else "") if text)


def _describe_source(source: Mapping[str, object]) -> str:
    facts = [str(source[key]) for key in ("path", "repository", "commit") if source.get(key)]
    reasons = [] if source.get("clean") and not source.get("why") else [str(source.get("why") or "not as committed")]
    return ", ".join([*facts, *reasons])


def hashes(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the hashes that identify a run and its parts, with their titles."""
    rows = [(title, getattr(manifest, name)) for name, title in HASHES.items()]
    rows += [(f"Template {name}", digest) for name, digest in manifest.prompts_sha256.items()]
    rows += [(f"Journal of {name}", digest) for name, digest in (manifest.replayed_sha256 or {}).items()]
    rows += [
        (f"Plugin {key.partition(':')[2]}", f"{pin['distribution']} {pin['version']}, {pin['sha256']}")
        for key, pin in (manifest.plugins or {}).items()
    ]
    return [(name, digest) for name, digest in rows if digest]


# Commands


def commands(folder: RunFolder, manifest: Manifest) -> list[tuple[str, str]]:
    """Return the description and the text of commands that play or check a run; arguments are quoted for a shell.

    Raises:
        RunError: the saved overrides of the run's spec cannot be read.
    """
    here, release = display_path(folder.path), _release_folder(folder)
    if release is not None:
        return _commands_of_release(release, manifest, here)
    play_commands = [("Play the run again as a new run, with the saved spec and data", _command_line(here, "--again"))]
    if manifest.status not in (Status.DONE, Status.RUNNING):
        play_commands = [
            ("Resume the run where it stopped", _command_line(here, *budget_overrides(folder, manifest))),
            *play_commands,
        ]
    original = _original_command(folder, manifest)
    replay = [("Replay the answers with another parser, payoff or metric", _command_line(here, "--replay", here))]
    return [
        *play_commands,
        *([("Play the original spec file again, with its overrides", original)] if original else []),
        *([] if manifest.has_parts else replay),
        ("Check that records and numbers follow from the journal", _command_line("verify", here)),
        ("Show the run's numbers and games in a terminal", _command_line("show", here)),
    ]


def _commands_of_release(release: Path, manifest: Manifest, here: str) -> list[tuple[str, str]]:
    """Return the commands for a run in the folder of a fetched release."""
    fetched = display_path(release)
    if manifest.is_training_run:
        return [
            (
                "Recompute every number of the run's parts; WHERE is the registry",
                _command_line("reproduce", fetched, "--from", "WHERE"),
            ),
            ("Show the run's numbers in a terminal", _command_line("show", here)),
        ]
    return [
        (
            "Recompute every number from the transcripts, without calling a model",
            _command_line("reproduce", fetched),
        ),
        (
            "Play the run again, and test for a difference",
            _command_line("reproduce", fetched, "--fresh", *_rows_option(release)),
        ),
        ("Show the run's numbers and games in a terminal", _command_line("show", here)),
    ]


def _command_line(*arguments: str) -> str:
    return shlex.join(["nip-run", *arguments])


def display_path(path: Path) -> str:
    """Return the path that a page shows: a relative path, or only the last parts, to hide folders of this machine.

    The path of a run in a results folder begins with the results folder, where the page says to run the commands.
    """
    is_relative = not path.is_absolute() and ".." not in path.parts
    if is_relative and (len(path.parts) <= 3 or path.parent.name != RUNS):
        return path.as_posix()
    return "/".join(path.parts[-3:] if len(path.parts) > 3 else path.parts[-1:])


def _release_folder(folder: RunFolder) -> Path | None:
    """Return the folder of the fetched release that a run belongs to, or None."""
    root = folder.path.parent
    return root if folder.path.name == DATA and (root / MARKER).is_file() else None


def _rows_option(release: Path) -> list[str]:
    """Return the option for a run's missing rows, with the placeholder FILE; empty if no rows are missing."""
    from runner.registry.bundles.missing_rows import ROWS_KEY, lacks_rows
    from runner.registry.fetched_release import is_fetched, open_fetched

    return ["--set", f"{ROWS_KEY}=FILE"] if is_fetched(release) and lacks_rows(open_fetched(release)) else []


def _original_command(folder: RunFolder, manifest: Manifest) -> str | None:
    """Return the command for the original spec file, if it is in a repository or ships with nip-run."""
    source = (manifest.sources or {}).get("spec") or {}
    path = str(source.get("path") or "").removeprefix("nip-run:")
    if not path or manifest.parent_run_id is not None or manifest.got_from is not None:
        return None
    return _command_line(path, *_overrides(folder), "--again")


def _overrides(folder: RunFolder) -> Sequence[str]:
    file = folder.path / "inputs" / WRITTEN / OVERRIDES
    if not file.is_file():
        return ()
    try:
        with open_to_read(file) as lines:
            return lines.read(MAX_OVERRIDES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror}; check the permissions of the file") from error
