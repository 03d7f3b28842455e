"""Parse the command line, run the command, and turn errors into exit codes.

Only the standard library is imported until a command runs, so that help and usage errors are fast.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Collection, Sequence
from itertools import takewhile
from types import ModuleType
from typing import NoReturn

from runner.base.errors import ANSWERS_ARE_SAVED, Interrupted, NipRunError, SpecError
from runner.base.exit_codes import EXIT_CODES, ExitCode
from runner.base.text import did_you_mean, escape_controls, in_one_line
from runner.cli.arguments import folder_path
from runner.cli.commands import COMMANDS, RENAMED_COMMANDS
from runner.cli.terminal.output import OutputError, note, print_json
from runner.results.default_folder import RESULTS_VARIABLE, default_results


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of every command")
    group.add_argument(
        "--results",
        type=folder_path,
        metavar="DIR",
        help=f"the results folder; default: ${RESULTS_VARIABLE}, else results",
    )
    group.add_argument("--json", action="store_true", help="print the result as JSON")
    group.add_argument("-q", "--quiet", action="store_true", help="print no progress and no notices")
    group.add_argument("-v", "--verbose", action="count", default=0, help="print more details; -v -v: tracebacks too")


_INVALID_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)\Z")
"""Matches argparse's message about a value that is not among an argument's choices."""


class _Parser(argparse.ArgumentParser):
    arguments: Sequence[str] = ()
    """The complete command line."""

    def error(self, message: str) -> NoReturn:
        """Print the usage error, with a hint, and exit. The message may contain raw words of the command line."""
        if message.startswith("the following arguments are required"):
            message = self._unknown_options_message() or message
        hint = _suggest_fix(message, self._option_string_actions, takes_overrides="KEY=VALUE" in self.format_usage())
        if "--json" in self.arguments:
            from runner.cli.terminal.errors import error_object

            error = error_object(message, hint or f"`{self.prog} --help` lists the options")
            print_json({"ok": False, "exit_code": ExitCode.USAGE, "errors": [error]})
        super().error(escape_controls(message + (f"; {hint}" if hint else "")))

    def _unknown_options_message(self) -> str | None:
        """Return a message about unknown options, which argparse leaves out if a required argument is missing."""
        arguments_before_dashes = takewhile(lambda argument: argument != "--", self.arguments)
        options = [argument for argument in arguments_before_dashes if argument.startswith("--")]
        unknown = [option for option in options if option.partition("=")[0] not in self._option_string_actions]
        return f"unrecognized arguments: {' '.join(unknown)}" if unknown else None


def _suggest_fix(message: str, options: Collection[str], *, takes_overrides: bool) -> str | None:
    """Return a suggestion for an unknown option or choice, or None. For `--seed=3`, it is the override `seed=3`."""
    if (invalid_choice := _INVALID_CHOICE.search(message)) is not None:
        value, choices = invalid_choice.groups()
        return did_you_mean(value, (choice.strip("' ") for choice in choices.split(","))).removeprefix("; ") or None
    arguments = message.split()
    index = next((index for index, argument in enumerate(arguments) if argument.startswith("-")), None)
    if index is None or not message.startswith("unrecognized"):
        return None
    name, _, value = arguments[index].partition("=")
    # Compare names without dashes, which would make `--seed` similar to `--shard`.
    suggestion = did_you_mean(name.lstrip("-"), (option.lstrip("-") for option in options))
    if suggestion:
        return suggestion.removeprefix("; ").replace("'", "'--", 1)
    following = arguments[index + 1] if len(arguments) > index + 1 else "VALUE"
    return f"an override has no dashes: {name.lstrip('-')}={value or following}" if takes_overrides else None


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
    _add_common_options(parser)
    return parser


def _is_misspelled_command(word: str) -> bool:
    """Return whether a word is similar to a command, and is neither a file nor looks like the name of one."""
    is_name = re.fullmatch(r"[\w-]+", word) is not None
    return is_name and bool(did_you_mean(word, COMMANDS)) and not any(map(os.path.exists, (word, f"{word}.yaml")))


def _parse_arguments(arguments: Sequence[str]) -> tuple[str, argparse.Namespace]:
    """Return the name of the command, and its parsed arguments. Without a command, the arguments are those of `run`."""
    common = _Parser(
        "nip-run", "nip-run SPEC... [KEY=VALUE...]\n       nip-run COMMAND ...", add_help=False, allow_abbrev=False
    )
    common.arguments = arguments
    _add_common_options(common)
    _, other_arguments = common.parse_known_args(arguments)
    first = next((argument for argument in other_arguments if not argument.startswith("-")), "")
    command = RENAMED_COMMANDS.get(first, first)
    command_arguments = list(arguments)
    if command in COMMANDS:
        command_arguments.remove(first)
    else:
        if _is_misspelled_command(first):
            common.error(f"no command or file {first!r}{did_you_mean(first, COMMANDS)}")
        command = "run"
    parser = build_parser(command)
    parser.arguments = arguments
    parser.set_defaults(renamed=[(first, command)] if first in RENAMED_COMMANDS else [])
    parsed = parser.parse_intermixed_args(command_arguments)
    parsed.has_results_option = parsed.results is not None
    if parsed.results is None:
        try:
            parsed.results = folder_path(default_results())
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument --results: {error}")
    for old, new in () if parsed.quiet else parsed.renamed:
        note(f"note: {old!r} is now called {new!r}")
    return command, parsed


def run_command_line(arguments: Sequence[str]) -> int:
    """Run the command in `arguments`, and return its exit code."""
    try:
        name, parsed = _parse_arguments(arguments)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else ExitCode.USAGE
    try:
        return _run_command(name, parsed)
    except KeyboardInterrupt:
        return _report_error(_interrupt_error(name, arguments), parsed)
    except (BrokenPipeError, OutputError):
        raise  # `main` handles these errors
    except Exception as error:  # noqa: BLE001 - also report bugs in one line; -v -v adds the traceback
        return _report_error(error, parsed)


def _run_command(name: str, parsed: argparse.Namespace) -> int:
    from runner.base.storage.duckdb_connections import interruptible_queries
    from runner.results.leaderboard.results_folder import Results

    parsed.results = Results(parsed.results)
    with interruptible_queries():
        code: int = load_command(name).execute(parsed)
        return code


def _interrupt_error(name: str, arguments: Sequence[str]) -> Exception:
    """Return the error that reports a Ctrl-C. While games are played, the run itself handles Ctrl-C."""
    import shlex

    if name != "run":
        return Interrupted("interrupted")
    error = Interrupted(f"interrupted. {ANSWERS_ARE_SAVED}")
    error.add_note(f"Resume with: {shlex.join(['nip-run', *arguments])}")
    return error


def _report_error(error: Exception, parsed: argparse.Namespace) -> int:
    from runner.cli.terminal.errors import error_lines, error_object, error_objects

    if parsed.verbose > 1:
        import traceback

        note("".join(traceback.format_exception(error)))
    if isinstance(error, NipRunError):
        code, lines, objects = error.exit_code, error_lines(error), error_objects(error)
    elif isinstance(error, OSError) and isinstance(error.filename, str | bytes | os.PathLike):
        code = ExitCode.FAILED
        lines = [f"cannot read or write {in_one_line(os.fsdecode(error.filename))}: {error.strerror}"]
        objects = [error_object(lines[0], None)]
    else:
        code = ExitCode.FAILED
        lines = [f"{type(error).__name__}: {error}", "This is a bug in nip-run; add -v -v to see where."]
        objects = [error_object(*lines)]
    if parsed.json:
        print_json({"ok": False, "exit_code": code, "errors": objects})
    for line in lines:
        if not (isinstance(error, NipRunError) and line in error.printed_lines):
            note(line)
    if isinstance(error, SpecError) and len(error.problems) > 1:
        note(f"{len(error.problems)} problems; no model was called and nothing was written")
    return code
