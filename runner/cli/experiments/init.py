"""Write a first spec, prompts and a small dataset.

Examples:
  nip-run init
  nip-run init mine
  nip-run init --protocol debate mine
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.package_data import PROTOCOLS, STARTER, exists, root
from runner.base.storage.safe_files import create_only, make_folder, make_folders, read_bounded
from runner.base.text import comma_join
from runner.cli.arguments import folder
from runner.cli.terminal.output import print_json, say

SPEC = "spec.yaml"
MAX_FILE = 1 << 20
COMMENT_COLUMN = 32
"""Column of the `# CHANGE` comments in the starter spec, which are aligned again after names were inserted."""
ODD_ROUNDS = ("debate", "mnip", "nip")
"""Protocols in which the verifier speaks in rounds 0, 2, 4 and so on, so that an even last round would be wasted."""

_COMMENT = re.compile(r"^(\S.*?) +# CHANGE", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=folder,
        nargs="?",
        default=Path(),
        metavar="DIR",
        help="created if missing; default: the current folder",
    )
    parser.add_argument(
        "--protocol",
        choices=("adp", "debate", "merlin_arthur", "mnip", "nip", "solo_verifier"),
        help="copy this built-in protocol and its prompts for editing; default: short prompts for nip",
    )


def execute(args: argparse.Namespace) -> int:
    files = _starter_files() if args.protocol is None else _protocol_files(args.protocol)
    folder: Path = args.folder
    if existing := [str(folder / name) for name in files if exists(folder / name) or (folder / name).is_symlink()]:
        raise UsageError(f"nothing was written, because these files exist: {comma_join(existing)}; choose another DIR")
    _write(folder, files)
    enter = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    commands = [f"nip-run check {SPEC}", f"nip-run {SPEC}", "nip-run show last --wrong"]
    if args.json:
        print_json({"files": [str(folder / name) for name in files], "next": [*enter, *commands]})
        return ExitCode.DONE
    if args.quiet:
        return ExitCode.DONE
    say("Written:")
    for name in files:
        say(f"  {folder / name}")
    say("Next:")
    lines = [" && ".join([*enter, commands[0]]), *commands[1:]]
    width = max(map(len, lines))
    for line, comment in zip(lines, ("find errors", "play, without a model", "what went wrong"), strict=True):
        say(f"  {line:<{width}}  # {comment}")
    say(f"In {folder / SPEC}, CHANGE marks the lines to change for your data and a real model.")
    return ExitCode.DONE


def _starter_files() -> dict[str, bytes]:
    """Return the files of a starter spec with its own data, by name."""
    from runner.spec.schemas import editor_schema

    starter = STARTER / "claims"
    return {
        SPEC: _read(starter / SPEC),
        "data.csv": _read(starter / "data.csv"),
        **_prompts(starter / "prompts"),
        **_schema("experiment.schema.json", editor_schema()),
    }


def _protocol_files(name: str) -> dict[str, bytes]:
    """Return the files of a spec with a copy of a built-in protocol, by name."""
    from runner.game.protocols.loader import protocol_editor_schema
    from runner.spec.schemas import editor_schema

    starter = STARTER / "protocol"
    prompts = _prompts(root() / "prompts" / "code_validation" / name)
    agents = [Path(path).stem for path in prompts if Path(path).name.count(".") == 1]
    lines = "\n".join(f"  {agent}: {{model: model, max_response_words: 150}}" for agent in agents)
    spec = _read(starter / SPEC).decode().replace("LIMIT", ", max_message_rounds: 7" if name in ODD_ROUNDS else "")
    spec = spec.replace("PROTOCOL", name).replace("NAME", name.replace("_", "-"))
    spec = _COMMENT.sub(lambda match: f"{match[1]:<{COMMENT_COLUMN - 2}}  # CHANGE", spec)
    schema_line = b"# yaml-language-server: $schema=protocol.schema.json\n"
    return {
        SPEC: spec.replace("AGENTS", lines).encode(),
        "data.csv": _read(starter / "data.csv"),
        f"{name}.yaml": schema_line + _read(PROTOCOLS / f"{name}.yaml"),
        **prompts,
        **_schema("experiment.schema.json", editor_schema()),
        **_schema("protocol.schema.json", protocol_editor_schema()),
    }


def _prompts(folder: Path) -> dict[str, bytes]:
    return {f"prompts/{path.name}": _read(path) for path in sorted(folder.glob("*.jinja"))}


def _schema(name: str, schema: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: json.dumps(schema, indent=2).encode() + b"\n"}


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_FILE)
    except OSError as error:
        raise RunError(f"cannot read {path}, a file of nip-run itself: {error.strerror}; reinstall nip-run") from error


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write new files. An existing file is an error."""
    try:
        make_folders(folder)
        for name, content in files.items():
            path = folder / name
            if path.parent != folder:
                make_folder(path.parent)
            with os.fdopen(create_only(path, os.O_WRONLY), "wb") as file:
                file.write(content)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.filename or ''}: {error.strerror}") from error
