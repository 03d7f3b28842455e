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

from runner.base.errors import ReleaseError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, dollar_range, in_one_line, path_argument, with_interval
from runner.cli.arguments import REFERENCE_HELP, add_registry_option, folder_path
from runner.cli.terminal.output import print_heading, print_json, say, say_lines, warn
from runner.documents.fetched_files import fetched_registry
from runner.version import __version__

if TYPE_CHECKING:
    from runner.registry.bundles.requirements import PlayRequirements
    from runner.registry.fetched_release import FetchedRelease


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("reference", metavar="REF", help=f"{REFERENCE_HELP}; without a kind, a run")
    add("folder", metavar="DIR", nargs="?", type=folder_path, help="a new folder; default: the name of the release")
    add_registry_option(parser)
    add("--signer-key", type=Path, metavar="FILE", help="check the signature with this public key (PEM)")


def execute(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from runner.documents.releases.reference import Kind, parse_reference
    from runner.registry.board.wording import describe_tier
    from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
    from runner.registry.bundles.requirements import find_requirements
    from runner.registry.fetched_release import WITHOUT_ROWS, fetch_release
    from runner.registry.transports.locations import connect_to_read

    reference = parse_reference(args.reference, default_kind=Kind.RUN)
    with connect_to_read(args.registry) as registry:
        fetched = fetch_release(registry, reference, args.folder, args.signer_key)
        trust_tier = describe_tier(registry.find(fetched.release.reference), registry.address)
    needs = find_requirements(fetched.folder) if fetched.release.kind == Kind.RUN else None
    if lacks_rows(fetched):
        notes = [line for line in fetched.notes if line != WITHOUT_ROWS]
        fetched = replace(fetched, notes=(*notes, describe_missing_rows(fetched)))
    for line in () if args.json else fetched.notes:
        warn(f"warning: {line}" if "yanked" in line else f"note: {line}")
    if args.json:
        print_json({**_as_json(fetched, needs), "vouched": trust_tier})
        return ExitCode.DONE
    print_heading(f"{fetched.release.reference}  sha256:{fetched.sha256[:12]}")
    if fetched.release.description:
        say(in_one_line(fetched.release.description))
    rows = _run_rows(fetched, needs, trust_tier, quiet=args.quiet) if needs else _component_rows(fetched)
    say_lines(f"{label:<12} {text}" for label, text in rows)
    return ExitCode.DONE


def _as_json(fetched: FetchedRelease, needs: PlayRequirements | None) -> dict[str, object]:
    from runner.registry.bundles.requirements import reproduce_command
    from runner.registry.components.drafts import format_spec_entry

    release = fetched.release
    return {
        "release": str(release.reference),
        "sha256": fetched.sha256,
        "folder": str(fetched.folder),
        "facts": dict(release.facts),
        "licence": release.licence,
        "version": release.facts.get("version"),
        "nip_run": __version__,
        "notes": list(fetched.notes),
        "environment": _environment_command(fetched) if needs else None,
        "play": None if needs is None else needs.to_json(),
        "reproduce": None if needs is None else reproduce_command(fetched),
        "named": None if needs else format_spec_entry(release),
    }


def _environment_command(fetched: FetchedRelease) -> str:
    """Return the command that installs the packages with which the run was played, or "not recorded"."""
    from runner.registry.fetched_release import LOCK

    if fetched.release.file(LOCK) is None:
        return "not recorded"
    paths = (fetched.folder / name for name in (".venv", ".venv/bin/pip", LOCK))
    venv, pip, lock = (shlex.quote(path_argument(path)) for path in paths)
    return f"python -m venv {venv} && {pip} install -r {lock}"


def _run_rows(
    fetched: FetchedRelease, needs: PlayRequirements, trust_tier: str | None, *, quiet: bool
) -> list[tuple[str, str]]:
    """Return labels and texts about a run, and unless `quiet` about how to play it again."""
    from runner.registry.board.board import DEFAULT_TIER as SELF_REPORTED
    from runner.registry.bundles.requirements import reproduce_command
    from runner.registry.fetched_release import PARAMETERS

    facts = fetched.release.facts
    rows = [
        ("what", " ".join(str(facts[name]) for name in ("kind", "protocol", "benchmark") if facts.get(name))),
        ("result", f"{_describe_result(fetched)}; {trust_tier or SELF_REPORTED}: {reproduce_command(fetched)}"),
        ("models", _format_models(facts.get("models"))),
        *((("related", in_one_line("; ".join(relations))),) if (relations := _describe_relations(fetched)) else ()),
        ("license", fetched.release.licence or "none: the publisher reserves all rights"),
        *((("not pinned", "its files are not in a public commit"),) if facts.get("pinned") is False else ()),
        ("where", str(fetched.folder)),
    ]
    if facts.get("version") != __version__:
        rows.append(("version", f"played with nip-run {facts.get('version')}, and this is {__version__}"))
    if quiet:
        return rows
    return [
        *rows,
        ("environment", _environment_command(fetched)),
        ("play it", _describe_play(fetched, needs)),
        ("contacts", _describe_contacts(needs)),
        ("costs", _describe_cost(needs)),
        *(("price", in_one_line(line)) for line in needs.prices),
        *(("trainer", line) for use in needs.keys for line in use.files or ()),
        ("change it", f"{fetched.folder / PARAMETERS}: values edited there take precedence"),
        *(
            _training_rows(fetched, needs)
            if fetched.is_training_run
            else [("play again", needs.add_fresh_options(reproduce_command(fetched)))]
        ),
        ("check it", f"nip-run verify {shlex.quote(path_argument(fetched.folder))}"),
    ]


def _training_rows(fetched: FetchedRelease, needs: PlayRequirements) -> list[tuple[str, str]]:
    """Return rows with the command that continues the training, and with the files that the release lacks for it."""
    from runner.registry.bundles.missing_rows import lacks_rows

    rows = [("not in it", in_one_line(line)) for line in needs.missing]
    with suppress(TypeError, KeyError, IndexError):  # the publisher may have written invalid facts
        latest_models = {str(row["group"]): row["made"][-1] for row in fetched.release.facts["trained"] if row["made"]}
        for group, model in latest_models.items():
            if sha256 := model["weights_sha256"]:
                hint = "the model's own release has them if its publisher included them"
                line = f"trainer {group}: the weights of its model, sha256:{sha256[:12]}; {hint}"
                rows.append(("not in it", in_one_line(line)))
        if latest_models and needs.problem is None and not lacks_rows(fetched):
            rows.insert(0, ("continue it", f"{needs.command} {shlex.quote(f'training.from={fetched.folder}')}"))
    return rows


def _describe_relations(fetched: FetchedRelease) -> list[str]:
    """Return the relations of the run to others, such as `child of`; nothing if the release's facts are invalid."""
    from runner.registry.lineage.nodes import node_from_release
    from runner.registry.lineage.relations import describe_relations
    from runner.registry.transports.registry import ReleaseEntry

    with suppress(ReleaseError):
        entry = ReleaseEntry(fetched.release.reference, fetched.sha256)
        return describe_relations(node_from_release(entry, fetched.release))
    return []


def _describe_play(fetched: FetchedRelease, needs: PlayRequirements) -> str:
    from runner.registry.bundles.missing_rows import lacks_rows

    if lacks_rows(fetched):
        return f"first set its rows with `nip-run reproduce`, then: {needs.command}"
    return needs.command if needs.problem is None else f"cannot be played as it is: {needs.problem}"


def _describe_result(fetched: FetchedRelease) -> str:
    """Return the published accuracy with its interval; for a training run, the accuracy of each test."""
    from runner.base.storage.strict_json import parse_strict_json
    from runner.registry.fetched_release import read_small
    from runner.spec.origin import DATA
    from runner.training.summary import test_name

    if not fetched.is_training_run:
        return _format_accuracy(fetched.release.facts.get("accuracy"))
    try:
        metrics = parse_strict_json(read_small(fetched.folder / DATA / "metrics.json"))
        done = len(metrics["iterations"])
        tests = [
            f"{test_name(test, done, over=True)}: {_format_accuracy(test['accuracy'])}" for test in metrics["tests"]
        ]
    except (ReleaseError, ValueError, KeyError, TypeError):
        return "no test results"
    return "; ".join(tests) or "no test was played"


def _format_accuracy(accuracy: Any) -> str:
    try:
        value = with_interval(accuracy["value"], accuracy["ci_low"], accuracy["ci_high"])
        return f"accuracy {value} of {accuracy['n']} rollouts"
    except (KeyError, TypeError, ValueError):
        return "no accuracy"


def _format_models(models: Any) -> str:
    if not isinstance(models, dict):
        return "none"
    return comma_join(f"{agent}: {model}" for agent, model in models.items()) or "none"


def _describe_contacts(needs: PlayRequirements) -> str:
    keys = comma_join(use.description for use in needs.keys) or "no key"
    addresses = f"; you set {comma_join(needs.addresses)}" if needs.addresses else ""
    return f"sends {keys}{addresses}"


def _describe_cost(needs: PlayRequirements) -> str:
    if needs.calls is None:
        return "unknown"
    calls = f"{needs.calls[0]:,} to {needs.calls[1]:,} calls"
    if needs.cost_usd is not None and not any(needs.cost_usd):
        return calls
    return f"{calls}, cost {dollar_range(needs.cost_usd)}"


def _component_rows(fetched: FetchedRelease) -> list[tuple[str, str]]:
    from runner.registry.components.drafts import format_spec_entry

    release = fetched.release
    address = fetched_registry(fetched.folder) or "WHERE"
    install = shlex.join(["nip-run", "install", str(release.reference), "--from", address])
    return [
        ("what", f"{release.kind}, {len(release.files)} files"),
        ("license", release.licence or "none: the publisher reserves all rights"),
        ("where", str(fetched.folder)),
        ("in a spec", f"{format_spec_entry(release)}   (after: {install})"),
    ]
