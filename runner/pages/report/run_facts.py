"""What was played and where it came from: facts of a run that are known without its games."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.base.errors import RunError
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join
from runner.game.protocols.protocol import Protocol
from runner.models.prices import describe_price, price_of
from runner.models.settings import ModelSettings
from runner.pages.numbers import count, took
from runner.registry.bundles.missing_rows import OPTION, lacks_rows
from runner.registry.fetched_release import is_got, opened
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status
from runner.results.provenance.sources_snapshot import OVERRIDES, WRITTEN
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import used_models
from runner.runs.finished.resume_advice import larger_budget
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

# What was played


def played(protocol: Protocol) -> dict[str, Any]:
    """The rules of a protocol as tables: who is in it, who sees and speaks where, and in which round."""
    return {
        "name": protocol.name,
        "description": protocol.file.description,
        "agents": [_agent(protocol, name) for name in protocol.agent_names],
        "channels": [_channel(protocol, name) for name in protocol.channel_names],
        "steps": list(_steps(protocol)),
        "rounds": _rounds_words(protocol),
    }


def _agent(protocol: Protocol, name: str) -> dict[str, Any]:
    spec, visible = protocol.agent_spec(name), protocol.visible_channels(name)
    argued = "drawn for each game" if protocol.parameters.randomize_prover_stance else spec.stance
    return {
        "name": name,
        "known_as": spec.human_name,
        "role": spec.role,
        "stance": "" if spec.role == "verifier" else argued,
        "sees": [channel in visible for channel in protocol.channel_names],
    }


def _channel(protocol: Protocol, name: str) -> dict[str, Any]:
    members = [agent for agent in protocol.agent_names if name in protocol.visible_channels(agent)]
    return {"name": name, "members": members, "private": len(members) < len(protocol.agent_names)}


def _steps(protocol: Protocol) -> Iterator[dict[str, Any]]:
    for number, step in enumerate(protocol.steps[: protocol.max_message_rounds]):
        yield {
            "round": number,
            "speakers": [{"agent": agent, "channels": channels} for agent, channels in step.speak.items()],
            "one": step.draw == "one" and len(step.speak) > 1,
            "decides": step.may_decide and protocol.verifier_name in step.speak,
        }


def _rounds_words(protocol: Protocol) -> str:
    most, least, cycle = protocol.max_message_rounds, protocol.min_message_rounds, len(protocol.steps)
    again = "" if most <= cycle else f", then again from round 0 on, {count(most)} rounds at most"
    early = "" if least <= 1 else f"; a verdict counts from round {least - 1} on"
    return f"{count(min(most, cycle))} rounds{again}{early}"


# Models


def models(plan: Plan) -> list[dict[str, Any]]:
    """Each agent's model with the settings that it is asked with."""
    experiment, used = plan.spec.experiment, used_models(plan)
    return [
        {
            "agent": name,
            "group": agent.model,
            "model": used[agent.model].name,
            "base": used[agent.model].base_model or "",
            "asked_at": _asked_at(used[agent.model]),
            "settings": _settings(used[agent.model], agent.max_response_words),
            "price": describe_price(price_of(used[agent.model], plan.spec.price_basis.on))
            if used[agent.model].traits.metered
            else "free",
            "trainings": len(used[agent.model].lineage),
        }
        for name, agent in experiment.agents.items()
        if agent.model in used
    ]


def _asked_at(settings: ModelSettings) -> str:
    if not settings.traits.remote:
        return settings.provider
    if settings.is_unserved:
        return "not published"
    return comma_join(address or settings.provider for address in settings.addresses)


def _settings(settings: ModelSettings, words: int | None) -> list[str]:
    said = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.sampling().items()]
    said += [] if words is None else [f"max_response_words={words}"]
    said += [f"chat_format={settings.chat_format}"] if settings.chat_format == "alternating" else []
    return [*said, *(["batch"] if settings.batched else [])]


# Where it came from


def origin(manifest: Manifest, here: Collection[str]) -> list[dict[str, Any]]:
    """Where a run came from, a row for each fact; `run` is that of a page of this site, `here` has those there are."""
    rows = [{"name": name, "text": text, "run": run if run in here else None} for name, text, run in _origins(manifest)]
    return [row for row in rows if row["text"]]


def _origins(manifest: Manifest) -> Iterator[tuple[str, str, str | None]]:
    if (parent := manifest.parent_run_id) is not None:
        what = "games of" if manifest.kind == "training" else "test before"
        yield "Part of", f"{parent}, {what} iteration {manifest.iteration}", parent
    if (judged := manifest.rejudge_of) is not None:
        yield "Judges again", f"the debates of {judged.run_id} (verdict: {judged.verdict})", judged.run_id
    if (replayed := manifest.replay_of) is not None:
        until = "" if replayed.until_round is None else f", up to round {replayed.until_round}"
        yield "Replays", f"the answers of {replayed.run_id}{until}", replayed.run_id
    for name, said in (("Got from", manifest.got_from), ("Plays again", manifest.reproduces)):
        if said:
            yield name, _release(said), None
    for slot, said in (manifest.components or {}).items():
        yield f"Component {slot}", _release(said), None
    for part, source in (manifest.sources or {}).items():
        yield part.capitalize(), _source(source), None
    if manifest.point:
        yield "Point of a sweep", " ".join(f"{key}={json.dumps(value)}" for key, value in manifest.point.items()), None
    yield "Board", manifest.benchmark, None
    yield "Seed", str(manifest.seed), None
    dirty = ", with changes" if manifest.git_dirty else ""
    yield "Commit", f"{manifest.git_commit}{dirty}" if manifest.git_commit else "", None
    yield "Played with", f"nip-run {manifest.version}, Python {manifest.python}", None
    yield "Began", manifest.started_at, None
    lasted = took(manifest.started_at, manifest.finished_at)
    yield "Ended", f"{manifest.finished_at} (after {lasted})" if lasted else manifest.finished_at or "", None


def _release(said: Mapping[str, Any]) -> str:
    digest = said.get("sha256")
    return " ".join(str(one) for one in (said.get("release", ""), f"(sha256 {digest})" if digest else "") if one)


def _source(source: Mapping[str, Any]) -> str:
    named = [str(source[key]) for key in ("path", "repository", "commit") if source.get(key)]
    why = [] if source.get("clean") and not source.get("why") else [str(source.get("why") or "not as committed")]
    return ", ".join([*named, *why])


def hashes(manifest: Manifest) -> list[tuple[str, str]]:
    """The hashes by which a run and its parts are known."""
    rows = [(title, getattr(manifest, name)) for name, title in HASHES.items()]
    rows += [(f"Template {name}", digest) for name, digest in manifest.prompts_sha256.items()]
    rows += [(f"Journal of {name}", digest) for name, digest in (manifest.replayed_sha256 or {}).items()]
    return [(name, digest) for name, digest in rows if digest]


# To play it again


def commands(folder: RunFolder, manifest: Manifest) -> list[tuple[str, str]]:
    """What plays a run again or checks it, each with what it does; every word is quoted for a shell.

    Raises:
        RunError: what was written of its spec cannot be read.
    """
    here, release = _told(folder.path), _release_folder(folder)
    if release is not None:
        got = _told(release)
        if manifest.is_training_run:
            return [
                ("Every number of its parts again; WHERE is the registry", _line("reproduce", got, "--from", "WHERE")),
                ("Its numbers in a terminal", _line("show", here)),
            ]
        return [
            ("Every number again, from its transcripts; nobody is called", _line("reproduce", got)),
            ("Played anew and compared: has it drifted?", _line("reproduce", got, "--fresh", *_rows(release))),
            ("Its numbers and games in a terminal", _line("show", here)),
        ]
    again = [("Played anew, with the spec and the data that its folder holds", _line(here, "--again"))]
    if manifest.status not in (Status.DONE, Status.RUNNING):
        again = [("Goes on where it stopped", _line(here, *larger_budget(folder, manifest))), *again]
    written = _as_written(folder, manifest)
    replay = [] if manifest.is_training_run else [
        ("Every answer again under another parser, payoff or metric; nobody is called", _line(here, "--replay", here))
    ]  # fmt: skip
    return [
        *again,
        *([("The same spec as it was written, with its overrides", written)] if written else []),
        *replay,
        ("Checks that its records and numbers follow from its journal", _line("verify", here)),
        ("Its numbers and games in a terminal", _line("show", here)),
    ]


def _line(*words: str) -> str:
    return shlex.join(["nip-run", *words])


def _told(path: Path) -> str:
    """A path as a page may say it: from where it is reached, never a machine's folders."""
    if not path.is_absolute() and ".." not in path.parts:
        return path.as_posix()
    return "/".join(path.parts[-3:] if len(path.parts) > 3 else path.parts[-1:])


def _release_folder(folder: RunFolder) -> Path | None:
    """The folder that a run was got into."""
    root = folder.path.parent
    return root if folder.path.name == DATA and (root / MARKER).is_file() else None


def _rows(release: Path) -> list[str]:
    """What a command takes for a run whose rows are not there; `FILE` is the user's to name."""
    return ["--set", f"{OPTION}=FILE"] if is_got(release) and lacks_rows(opened(release)) else []


def _as_written(folder: RunFolder, manifest: Manifest) -> str | None:
    """The command of its spec's own file, where that is in a repository or comes with nip-run."""
    said = (manifest.sources or {}).get("spec") or {}
    path = str(said.get("path") or "").removeprefix("nip-run:")
    if not path or manifest.parent_run_id is not None or manifest.got_from is not None:
        return None
    return _line(path, *_overrides(folder), "--again")


def _overrides(folder: RunFolder) -> Sequence[str]:
    file = folder.path / "inputs" / WRITTEN / OVERRIDES
    if not file.is_file():
        return ()
    try:
        with open_to_read(file) as lines:
            return lines.read(MAX_OVERRIDES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}") from error
