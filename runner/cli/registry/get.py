"""Download a published run or component into a folder and check it.

Examples:
  nip-run get acme/nip-0123456789 --from DIR
  nip-run get run/acme/nip-0123456789@1 mine --from hf:acme/board
"""

from __future__ import annotations

import argparse
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, dollar_range, in_one_line, with_interval
from runner.cli.arguments import REF, add_registry, folder
from runner.cli.terminal.output import heading, print_json, say, warn
from runner.documents.fetched_files import fetched_registry
from runner.version import __version__

if TYPE_CHECKING:
    from runner.registry.bundles.requirements import PlayRequirements
    from runner.registry.fetched_release import FetchedRelease


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("reference", metavar="REF", help=f"{REF}; without a kind, a run")
    add("folder", metavar="DIR", nargs="?", type=folder, help="default: the name of the release")
    add_registry(parser)
    add("--signer-key", type=Path, metavar="FILE", help="check the signature with this public key (PEM)")


def execute(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from runner.documents.releases.reference import Kind, parse
    from runner.registry.board.wording import describe_tier
    from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
    from runner.registry.bundles.requirements import find_requirements
    from runner.registry.fetched_release import WITHOUT_ROWS, get
    from runner.registry.transports.locations import connect_to_read

    named = parse(args.reference, None if args.reference.count("/") > 1 else Kind.RUN)
    with connect_to_read(args.where) as registry:
        got = get(registry, named, args.folder, args.signer_key)
        vouched = describe_tier(registry.find(got.release.reference), registry.where)
    takes = find_requirements(got.folder) if got.release.kind == Kind.RUN else None
    if lacks_rows(got):
        got = replace(got, notes=(*(line for line in got.notes if line != WITHOUT_ROWS), describe_missing_rows(got)))
    for line in () if args.json else got.notes:
        warn(f"warning: {line}" if "yanked" in line else f"note: {line}")
    if args.json:
        print_json({**_as_json(got, takes), "vouched": vouched})
        return ExitCode.DONE
    heading(f"{got.release.reference}  sha256:{got.sha256[:12]}")
    if got.release.description:
        say(in_one_line(got.release.description))
    for name, shown in _of_run(got, takes, vouched, quiet=args.quiet) if takes else _of_component(got):
        say(f"{name:<12} {shown}")
    return ExitCode.DONE


def _as_json(got: FetchedRelease, takes: PlayRequirements | None) -> dict[str, Any]:
    from runner.registry.bundles.requirements import reproduce_command
    from runner.registry.components.drafts import spec_entry

    release = got.release
    return {
        "release": str(release.reference),
        "sha256": got.sha256,
        "folder": str(got.folder),
        "facts": dict(release.facts),
        "licence": release.licence,
        "version": release.facts.get("version"),
        "nip_run": __version__,
        "notes": list(got.notes),
        "environment": _environment(got) if takes else None,
        "play": None if takes is None else takes.to_json(),
        "reproduce": None if takes is None else reproduce_command(got),
        "named": None if takes else spec_entry(release),
    }


def _environment(got: FetchedRelease) -> str:
    """The command that makes the environment in which it was played; None where the release has no lock."""
    from runner.registry.fetched_release import LOCK

    if got.release.file(LOCK) is None:
        return "not recorded"
    venv, lock = (shlex.quote(str(got.folder / name)) for name in (".venv", LOCK))
    return f"python -m venv {venv} && {shlex.quote(str(got.folder / '.venv' / 'bin' / 'pip'))} install -r {lock}"


def _of_run(got: FetchedRelease, takes: PlayRequirements, vouched: str | None, *, quiet: bool) -> list[tuple[str, str]]:
    from runner.registry.board.board import DEFAULT_TIER as SELF_REPORTED
    from runner.registry.bundles.requirements import reproduce_command
    from runner.registry.fetched_release import PARAMETERS

    facts = got.release.facts
    rows = [
        ("what", " ".join(str(facts[name]) for name in ("kind", "protocol", "benchmark") if facts.get(name))),
        ("result", f"{_result(got)}; {vouched or SELF_REPORTED}: {reproduce_command(got)}"),
        ("models", _models(facts.get("models"))),
        *((("of others", in_one_line("; ".join(kin))),) if (kin := _kin(got)) else ()),
        ("licence", got.release.licence or "none given: all rights are with its publisher"),
        *((("not pinned", "its files are in no public commit"),) if facts.get("pinned") is False else ()),
        ("where", str(got.folder)),
    ]
    if facts.get("version") != __version__:
        rows.append(("version", f"played with nip-run {facts.get('version')}, and this is {__version__}"))
    if quiet:
        return rows
    return [
        *rows,
        ("environment", _environment(got)),
        ("play it", _play(got, takes)),
        ("contacts", _contacts(takes)),
        ("costs", _costs(takes)),
        *(("price", in_one_line(line)) for line in takes.prices),
        *(("trainer", line) for use in takes.keys for line in use.files or ()),
        ("change it", f"{got.folder / PARAMETERS}: what is edited there wins"),
        *(_training_rows(got, takes) if got.is_training_run else [("play again", takes.fresh(reproduce_command(got)))]),
        ("check it", f"nip-run verify {shlex.quote(str(got.folder))}"),
    ]


def _training_rows(got: FetchedRelease, takes: PlayRequirements) -> list[tuple[str, str]]:
    """Return how the training of a got run continues, and what that needs and the release does not have."""
    from runner.registry.bundles.missing_rows import lacks_rows

    rows = [("not in it", in_one_line(line)) for line in takes.missing]
    with suppress(TypeError, KeyError, IndexError):  # the facts are its publisher's
        made = {str(row["group"]): row["made"][-1] for row in got.release.facts["trained"] if row["made"]}
        for group, sha256 in ((group, model["weights_sha256"]) for group, model in made.items()):
            where = "the model's own release has them if its publisher included them"
            line = f"trainer {group}: the weights of its model, sha256:{sha256[:12]}; {where}" if sha256 else ""
            rows += [("not in it", in_one_line(line))] if line else []
        if made and takes.problem is None and not lacks_rows(got):
            rows.insert(0, ("continue it", f"{takes.command} {shlex.quote(f'training.from={got.folder}')}"))
    return rows


def _kin(got: FetchedRelease) -> list[str]:
    """What it is of other runs: which it continues, is a child of, or plays again; nothing of wrong facts."""
    from runner.base.errors import ReleaseError
    from runner.registry.lineage.relations import describe_relations
    from runner.registry.lineage.sessions import session_of_release
    from runner.registry.transports.registry import ReleaseEntry

    with suppress(ReleaseError):
        return describe_relations(session_of_release(ReleaseEntry(got.release.reference, got.sha256), got.release))
    return []


def _play(got: FetchedRelease, takes: PlayRequirements) -> str:
    from runner.registry.bundles.missing_rows import lacks_rows

    if lacks_rows(got):
        return f"once its rows were given to reproduce: {takes.command}"
    return takes.command if takes.problem is None else f"cannot be played as it is: {takes.problem}"


def _result(got: FetchedRelease) -> str:
    """Return the accuracy with its interval, as it was published; of a training run, that of each test."""
    from runner.base.errors import ReleaseError
    from runner.base.storage.strict_json import parse_strict_json
    from runner.registry.fetched_release import read_small
    from runner.spec.origin import DATA
    from runner.training.summary import test_name

    if not got.is_training_run:
        return _accuracy(got.release.facts.get("accuracy"))
    try:
        metrics = parse_strict_json(read_small(got.folder / DATA / "metrics.json"))
        done = len(metrics["iterations"])
        tests = [f"{test_name(test, done, over=True)}: {_accuracy(test['accuracy'])}" for test in metrics["tests"]]
    except (ReleaseError, ValueError, KeyError, TypeError):
        return "no test results"
    return "; ".join(tests) or "no test was played"


def _accuracy(accuracy: Any) -> str:
    try:
        value = with_interval(accuracy["value"], accuracy["ci_low"], accuracy["ci_high"])
        return f"accuracy {value} of {accuracy['n']} rollouts"
    except (KeyError, TypeError, ValueError):
        return "no accuracy"


def _models(models: Any) -> str:
    if not isinstance(models, dict):
        return "none"
    return comma_join(f"{agent}: {model}" for agent, model in models.items()) or "none"


def _contacts(takes: PlayRequirements) -> str:
    sent = comma_join(use.description for use in takes.keys)
    given = comma_join(takes.addresses)
    told = [f"sends {sent}" if sent else "sends no key"] + ([f"you say where: {given}"] if given else [])
    return "; ".join(told)


def _costs(takes: PlayRequirements) -> str:
    if takes.calls is None:
        return "unknown"
    calls = f"{takes.calls[0]:,} to {takes.calls[1]:,} calls"
    if takes.cost_usd is not None and not any(takes.cost_usd):
        return calls
    return f"{calls}, cost {dollar_range(takes.cost_usd)}"


def _of_component(got: FetchedRelease) -> list[tuple[str, str]]:
    from runner.registry.components.drafts import spec_entry

    release = got.release
    install = shlex.join(
        ["nip-run", "install", str(release.reference), "--from", fetched_registry(got.folder) or "WHERE"]
    )
    return [
        ("what", f"{release.kind}, {len(release.files)} files"),
        ("licence", release.licence or "none given: all rights are with its publisher"),
        ("where", str(got.folder)),
        ("in a spec", f"{spec_entry(release)}   (after: {install})"),
    ]
