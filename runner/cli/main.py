"""The command line: arguments into a command's call, errors into exit codes.

Only the standard library is imported until a command runs, so that help and usage errors are instant.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import sys
import traceback
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import NoReturn

from runner.base.exit_codes import ExitCode
from runner.base.text import did_you_mean, escape_controls
from runner.cli.arguments import folder
from runner.cli.commands import COMMANDS, GROUPS, RENAMED_COMMANDS
from runner.cli.startup import collect_seldom
from runner.cli.terminal.output import note, prepare, print_json, say
from runner.cli.terminal.streams import without_secrets
from runner.results.default_folder import RESULTS, default_results
from runner.version import __version__

EXIT_CODES = "exit codes:\n" + "\n".join(f"  {code.value:>3}  {code.meaning}" for code in ExitCode)


def _common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of every command")
    group.add_argument(
        "--results",
        type=folder,
        default=default_results(),
        metavar="DIR",
        help=f"the results folder; default: ${RESULTS}, else results",
    )
    group.add_argument("--json", action="store_true", help="print the result as JSON")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress and no notes")
    group.add_argument("-v", "--verbose", action="count", default=0, help="say more; -v -v: tracebacks too")


_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)\Z")
"""argparse's message about a word that is not a choice of an argument."""


class _Parser(argparse.ArgumentParser):
    words: Sequence[str] = ()
    """The command line."""

    def error(self, message: str) -> NoReturn:
        """What is wrong has words of the command line in it."""
        if message.startswith("the following arguments are required"):
            message = self._unknown() or message
        hint = _hint(message, self._option_string_actions)
        if "--json" in self.words:
            from runner.cli.terminal.problems import error_object

            error = error_object(message, hint or f"`{self.prog} --help` lists the options")
            print_json({"ok": False, "exit_code": ExitCode.USAGE, "errors": [error]})
        super().error(escape_controls(message + (f"; {hint}" if hint else "")))

    def _unknown(self) -> str | None:
        """The complaint about unknown options, which argparse makes only where no argument is missing."""
        before = list(self.words)[: self.words.index("--")] if "--" in self.words else self.words
        names = [word for word in before if word.startswith("--")]
        unknown = [word for word in names if word.partition("=")[0] not in self._option_string_actions]
        return f"unrecognized arguments: {' '.join(unknown)}" if unknown else None


def _hint(message: str, options: Collection[str]) -> str | None:
    """Return what to write instead of an unknown word, such as `--seed=3` for the override `seed=3`."""
    if (choice := _CHOICE.search(message)) is not None:
        return did_you_mean(choice[1], (known.strip("' ") for known in choice[2].split(","))).removeprefix("; ") or None
    words = message.split()
    index = next((index for index, word in enumerate(words) if word.startswith("-")), None)
    if index is None or not message.startswith("unrecognized"):
        return None
    name, _, value = words[index].partition("=")
    # Without dashes, which make all of them alike: `--seed` is no `--shard`.
    near = did_you_mean(name.lstrip("-"), (one.lstrip("-") for one in options))
    if near:
        return near.removeprefix("; ").replace("'", "'--", 1)
    following = words[index + 1] if len(words) > index + 1 else "VALUE"
    return f"an override has no dashes: {name.lstrip('-')}={value or following}"


def _overview() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(
        f"{group}:\n" + "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in commands.items())
        for group, commands in GROUPS.items()
    )
    return (
        "usage: nip-run SPEC... [KEY=VALUE...]\n       nip-run COMMAND ...\n\n"
        "Plays games between language models from a YAML spec.\n\n"
        f"{rows}\n\n"
        "`nip-run COMMAND --help` tells more. Start with: nip-run init\n\n" + EXIT_CODES
    )


def load_command(name: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"runner.cli.{COMMANDS[name].module}")


def build_parser(name: str) -> _Parser:
    """Build the parser of a command; its help is the docstring of the command's module."""
    command = load_command(name)
    description, _, examples = (command.__doc__ or "").partition("\n\nExamples:\n")
    parser = _Parser(
        prog=f"nip-run {name}",
        description=description,
        epilog=f"examples:\n{examples}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    _common(parser)
    return parser


def _parsed(arguments: Sequence[str]) -> tuple[str, argparse.Namespace]:
    common = _Parser(add_help=False, allow_abbrev=False)
    common.words = arguments
    _common(common)
    _, words = common.parse_known_args(arguments)
    first = next((word for word in words if not word.startswith("-")), "")
    renamed = RENAMED_COMMANDS.get(first, first)
    name, rest = "run", list(arguments)
    if renamed in COMMANDS:
        name = renamed
        rest.remove(first)
    parser = build_parser(name)
    parser.words = arguments
    parser.set_defaults(renamed=[(first, renamed)] if first != renamed else [])
    parsed = parser.parse_intermixed_args(rest)
    for old, new in () if parsed.quiet else parsed.renamed:
        note(f"note: {old!r} is now {new!r}")
    return name, parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it ended."""
    prepare()
    collect_seldom()
    with without_secrets():
        try:
            code = _run(sys.argv[1:] if arguments is None else arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read our output has gone, as in `| head`; nothing more can be told.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.DONE
        return code


def _run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        say(_overview())
        return ExitCode.DONE if arguments else ExitCode.USAGE
    if arguments[0] == "--version":
        say(f"nip-run {__version__}")
        return ExitCode.DONE
    try:
        name, parsed = _parsed(arguments)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else ExitCode.USAGE
    try:
        return _executed(name, parsed)
    except KeyboardInterrupt:
        return _reported(_interrupted(name, arguments), parsed)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user unasked
        return _reported(error, parsed)


def _executed(name: str, parsed: argparse.Namespace) -> int:
    from runner.base.storage.duckdb_connections import interruptible_queries

    with interruptible_queries():
        code: int = load_command(name).execute(parsed)
        return code


def _interrupted(name: str, arguments: Sequence[str]) -> Exception:
    """What a Ctrl-C comes to that no run has taken for its own: before its games, or after them."""
    from runner.base.errors import Interrupted

    if name != "run":
        return Interrupted("interrupted")
    error = Interrupted("interrupted; everything paid for is saved")
    error.add_note(f"Resume with: {shlex.join(['nip-run', *arguments])}")
    return error


def _reported(error: Exception, parsed: argparse.Namespace) -> int:
    from runner.base.errors import NipRunError, SpecError
    from runner.cli.terminal.problems import error_lines, error_object, error_objects

    if parsed.verbose > 1:
        note("".join(traceback.format_exception(error)))
    if isinstance(error, NipRunError):
        code, lines, objects = error.exit_code, error_lines(error), error_objects(error)
    else:
        code = ExitCode.FAILED
        lines = [f"{type(error).__name__}: {error}", "This is a bug in nip-run; -v -v shows where."]
        objects = [error_object(*lines)]
    if parsed.json:
        print_json({"ok": False, "exit_code": code, "errors": objects})
    seen = error.seen_lines if isinstance(error, NipRunError) else ()
    for line in lines:
        if line not in seen:
            note(line)
    if isinstance(error, SpecError) and len(error.problems) > 1:
        note(f"{len(error.problems)} problems; no model was called and nothing was written")
    return code


if __name__ == "__main__":
    sys.exit(main())
