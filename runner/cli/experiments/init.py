"""Write a first spec, prompts and a small dataset, or a spec and prompts for your own data.

Examples:
  nip-run init
  nip-run init mine
  nip-run init --protocol debate mine
  nip-run init --data claims.csv --protocol debate
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import RunError, UsageError, errors_as
from runner.base.exit_codes import ExitCode
from runner.base.package_data import PROTOCOLS, STARTER, exists, root
from runner.base.storage.safe_files import create_only, make_folder, make_folders, read_bounded
from runner.base.text import comma_join, counted, path_argument
from runner.cli.arguments import folder_path
from runner.cli.terminal.output import print_json, say, say_lines

if TYPE_CHECKING:
    from runner.spec.datasets.column_roles import ColumnRoles

SPEC = "spec.yaml"
"""Name of the spec that is written."""

MAX_FILE = 1 << 20
COMMENT_COLUMN = 32
"""Column of the `# CHANGE` comments in the written spec. The inserted names would move the comments."""
PROTOCOLS_WITH_ROUND_LIMIT = ("debate", "mnip", "nip")
"""Protocols whose spec gets a `max_message_rounds` that lets the verifier speak last."""

ANSWER_PROTOCOLS = ("answer_debate", "consultancy", "open_consultancy")
"""Protocols whose verifier chooses from listed answers. The first is the default for data with lists of answers."""

DATASET_COMMENTS = {
    "labels": "1 if the verifier should accept, 0 if it should reject; rows with a word for skip are not used",
    "group_by": "rows with the same value are not independent of each other",
    "filter": "rows without a text to judge are not used",
    "unique_by": "of rows that are equal in these columns, the first is used, or none if their labels differ",
    "answers": "the column with the list of answers; the column label names the right one",
    "ids": "they are the numbers of the rows, so do not reorder the file",
}
"""Comments in the spec about keys of `dataset`, if it has them."""

_EXPERTS_FIRST = "# verifier_first: false, so that the verifier cannot decide before a prover has spoken\n"

_COMMENT = re.compile(r"^(\S.*?) +# CHANGE", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=folder_path,
        nargs="?",
        default=Path(),
        metavar="DIR",
        help="the folder of the spec, created if missing; default: the current folder",
    )
    parser.add_argument(
        "--protocol",
        choices=(*ANSWER_PROTOCOLS, "adp", "debate", "merlin_arthur", "mnip", "nip", "solo_verifier"),
        help="copy this built-in protocol and its prompts for editing, or use it with --data; default: short prompts "
        "for nip",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="write a spec and prompts for the columns of this CSV, JSONL or Parquet file; names rows that need "
        "attention",
    )


_STARTER_DATA = STARTER / "data"


def execute(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    roles = None if args.data is None else _roles_of(args.data, args.protocol)
    name = args.protocol or (ANSWER_PROTOCOLS[0] if roles is not None and "answers" in roles.keys else "nip")
    if roles is not None:
        files = _data_files(roles, args.data, folder, name)
    else:
        files = _starter_files() if args.protocol is None else _protocol_files(args.protocol)
    if existing := [str(folder / name) for name in files if exists(folder / name) or (folder / name).is_symlink()]:
        raise UsageError(f"nothing was written, because these files exist: {comma_join(existing)}; choose another DIR")
    _write_files(folder, files)
    # Stay in the current folder if it probably contains the data, since errors then quote the data.
    spec = SPEC if args.data is None else path_argument(folder / SPEC)
    change_folder = [] if folder == Path() or args.data is not None else [f"cd {shlex.quote(path_argument(folder))}"]
    steps = _next_steps(None if args.data is None else name, shlex.quote(spec))
    if args.json:
        column_facts = {}
        if roles is not None:
            column_facts = {"columns": roles.columns, "rows": roles.counts, "notices": roles.notices}
        print_json({"files": [str(folder / name) for name in files], "next": [*change_folder, *steps], **column_facts})
        return ExitCode.DONE
    if args.quiet:
        return ExitCode.DONE
    if roles is not None:
        _show_roles(roles, args.data)
    say("Written:")
    say_lines(f"  {folder / name}" for name in files)
    say("Next:")
    first, *others = steps
    commands = [" && ".join([*change_folder, first]), *others]
    width = max(map(len, commands))
    for command, comment in zip(commands, steps.values(), strict=True):
        say(f"  {command:<{width}}  # {comment}")
    data = "" if roles is not None and "CHANGE" not in roles.labels.values() else "your data and "
    say(f"In {folder / SPEC}, CHANGE marks the lines to change for {data}a real model.")
    return ExitCode.DONE


def _next_steps(protocol: str | None, spec: str) -> dict[str, str]:
    """Return commands to try next, each with a comment. `protocol` is None if the spec is not for the user's data."""
    check = {f"nip-run check {spec}": "find errors"}
    if protocol in (None, "solo_verifier", *ANSWER_PROTOCOLS):
        return {**check, f"nip-run {spec}": "play, without a model", "nip-run show last --wrong": "what went wrong"}
    stances, both = (" stances=both", ", with both stances") if protocol == "debate" else ("", "")
    return {
        **check,
        f"nip-run check {spec} --live": "test the servers, once the spec names a model",
        f"nip-run {spec} 'protocol={{use: solo_verifier}}' --run-id alone": "the verifier decides alone",
        f"nip-run {spec}{stances} --run-id {protocol}": f"play {protocol}{both}",
        f"nip-run compare {protocol} --baseline alone": "does it help the verifier?",
        f"nip-run report alone {protocol} -o report.html": "write a page with both results and all games",
    }


def _starter_files() -> dict[str, bytes]:
    """Return the files of a starter spec with its own data, by name."""
    from runner.spec.schemas import editor_schema

    starter = STARTER / "claims"
    return {
        SPEC: _read_file(starter / SPEC),
        "data.csv": _read_file(starter / "data.csv"),
        **_read_prompts(starter / "prompts"),
        **_schema_file("experiment.schema.json", editor_schema()),
    }


def _protocol_files(name: str) -> dict[str, bytes]:
    """Return the files of a spec with a copy of a built-in protocol, by name."""
    from runner.game.protocols.loader import protocol_editor_schema
    from runner.spec.schemas import editor_schema

    is_listed = name in ANSWER_PROTOCOLS
    starter = STARTER / ("answers" if is_listed else "protocol")
    prompts = _read_prompts(_prompt_folder(name))
    data_file = "data.jsonl" if is_listed else "data.csv"
    agents = [Path(path).stem for path in prompts if Path(path).name.count(".") == 1]
    replacements = {
        "PROTOCOL": name,
        "NAME": name.replace("_", "-"),
        "LIMIT": ", max_message_rounds: 7" if name in PROTOCOLS_WITH_ROUND_LIMIT else "",
        "AGENTS": "\n".join(f"  {agent}: {{model: model, max_response_words: 150}}" for agent in agents),
    }
    spec = _replace_words(_read_file(starter / SPEC).decode(), replacements)
    spec = _COMMENT.sub(lambda match: f"{match[1]:<{COMMENT_COLUMN - 2}}  # CHANGE", spec)
    schema_line = b"# yaml-language-server: $schema=protocol.schema.json\n"
    return {
        SPEC: spec.encode(),
        data_file: _read_file(starter / data_file),
        f"{name}.yaml": schema_line + _read_file(PROTOCOLS / f"{name}.yaml"),
        **prompts,
        **_schema_file("experiment.schema.json", editor_schema()),
        **_schema_file("protocol.schema.json", protocol_editor_schema()),
    }


def _prompt_folder(protocol: str) -> Path:
    """Return the folder of the prompts of a built-in protocol."""
    return root() / "prompts" / ("question_answering" if protocol in ANSWER_PROTOCOLS else "code_validation") / protocol


def _roles_of(path: Path, protocol: str | None) -> ColumnRoles:
    """Return the roles of a data file's columns. Lists of answers have a role if the protocol needs them, or is None.

    Raises:
        SpecError, UsageError: the file cannot be read, or has no column with labels or with text to judge.
    """
    from runner.spec.datasets.column_roles import find_answer_roles, find_roles
    from runner.spec.datasets.limits import TooLarge
    from runner.spec.datasets.reader import Unreadable, check_not_ragged, read_table
    from runner.spec.datasets.settings import DatasetLimits

    check_not_ragged(path)
    with errors_as(UsageError, f"cannot read {path}", Unreadable, TooLarge):
        table = read_table(path, DatasetLimits())
    if not table.rows:
        raise UsageError(f"{path} has no rows; give a file with a row for each datapoint")
    if protocol in (None, *ANSWER_PROTOCOLS):
        answer_roles = find_answer_roles(table)
        if answer_roles is not None:
            return answer_roles
    if protocol in ANSWER_PROTOCOLS:
        raise UsageError(
            f"{path} needs a column of questions, a column `label` that names the right answer, and a column with a "
            f"list of answers in each row; it has {counted(len(table.rows), 'row')} with the columns "
            f"{comma_join(table.columns)}. If each answer has a column of its own, write the spec with dataset.answers"
        )
    roles = find_roles(table, path)
    if roles is None:
        raise UsageError(
            f"{path} needs a column with labels, such as true and false, and a column with texts to judge, such as "
            f"claims; it has {counted(len(table.rows), 'row')} with the columns {comma_join(table.columns)}. Rename "
            "the columns to `label` and `claim`, or, for questions with listed answers, to `question`, `label` (the "
            "right answer) and `answers` (a list), and repeat the command"
        )
    return roles


def _show_roles(roles: ColumnRoles, data: Path) -> None:
    """Print which columns of a data file the spec uses, and the number of rows of each kind."""
    say(f"Columns of {data}: {comma_join(f'{name} is the {role}' for role, name in roles.columns.items())}")
    if roles.counts:
        rows = comma_join(f"{count} {kind}" for kind, count in roles.counts.items())
        say(f"{counted(sum(roles.counts.values()), 'row')}: {rows}")
    say_lines(f"  {notice}" for notice in roles.notices)


def _data_files(roles: ColumnRoles, data: Path, folder: Path, protocol: str) -> dict[str, bytes]:
    """Return the files of a spec for a data file, by name."""
    from runner.documents.yaml_writer import dump_inline
    from runner.spec.schemas import editor_schema

    prompts = _read_prompts(_prompt_folder(protocol))
    if not roles.is_code and protocol not in ANSWER_PROTOCOLS:
        prompts = {name: _adapt_prompt(name, roles, protocol) for name in prompts}
    renamed_columns = {role: name for role, name in roles.columns.items() if role not in ("group", name)}
    group = roles.columns.get("group")
    dataset = {
        "path": os.path.relpath(data, folder),
        "columns": renamed_columns,
        "labels": roles.labels,
        "group_by": next((role for role, name in renamed_columns.items() if name == group), group),
        **roles.keys,
    }
    replacements = {
        "COMMENTS": "".join(f"# {key}: {text}\n" for key, text in DATASET_COMMENTS.items() if dataset.get(key)),
        "FILE": data.name,
        "NAME": re.sub(r"[^a-z0-9]+", "-", data.stem.lower()).strip("-") or "data",
        "DATASET": "\n".join(f"  {key}: {dump_inline(value)}" for key, value in dataset.items() if value),
        "PROTOCOL": protocol,
        "EXPERTS_FIRST": _EXPERTS_FIRST if protocol in PROTOCOLS_WITH_ROUND_LIMIT else "",
        "LIMIT": ", verifier_first: false, max_message_rounds: 4" if protocol in PROTOCOLS_WITH_ROUND_LIMIT else "",
    }
    spec = _replace_words(_read_file(_STARTER_DATA / SPEC).decode(), replacements)
    return {SPEC: spec.encode(), **prompts, **_schema_file("experiment.schema.json", editor_schema())}


def _adapt_prompt(name: str, roles: ColumnRoles, protocol: str) -> bytes:
    """Return a prompt for claims or answers that are not code, with the columns that have a role."""
    from runner.spec.datasets.column_roles import PROMPT_ROLES

    prompt_roles = [role for role in PROMPT_ROLES if role in roles.columns]
    is_answer = "solution" in prompt_roles and "claim" not in prompt_roles
    replacements = {
        "MATERIAL": "\n\n".join(f"<{role}>\n{{{{ {role} }}}}\n</{role}>" for role in prompt_roles),
        "SUBJECT": "the solution" if is_answer else "the claim",
        "TRUE": "right" if is_answer else "true",
        "FALSE": "wrong" if is_answer else "false",
        **json.loads(_read_file(_STARTER_DATA / "players.json"))[protocol],
    }
    text = _read_file(_STARTER_DATA / re.sub(r"prover\d", "prover", name)).decode()
    for _ in range(2):  # since the replacement of EXPERTS contains other placeholders
        text = _replace_words(text, replacements)
    return text.encode()


def _replace_words(text: str, replacements: Mapping[str, str]) -> str:
    return re.sub("|".join(replacements), lambda match: replacements[match[0]], text)


def _read_prompts(folder: Path) -> dict[str, bytes]:
    """Return the prompt templates in a folder, by their names in the folder that is written."""
    return {f"prompts/{path.name}": _read_file(path) for path in sorted(folder.glob("*.jinja"))}


def _schema_file(name: str, schema: Mapping[str, object]) -> dict[str, bytes]:
    return {name: json.dumps(schema, indent=2).encode() + b"\n"}


def _read_file(path: Path) -> bytes:
    return read_bounded(path, MAX_FILE)


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
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
        place = f"{error.filename}: " if error.filename else ""  # a full disk has no file name
        raise RunError(f"cannot write to {folder}: {place}{error.strerror}") from error
