"""The entry point: print the list of commands, or import the command line and run it.

To print the list of commands quickly, this module imports neither `argparse` nor the redaction of secrets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from runner.base.exit_codes import EXIT_CODES, ExitCode
from runner.cli.commands import COMMANDS, GROUPS
from runner.cli.startup import reduce_garbage_collection
from runner.cli.terminal.output import configure_streams, note, say
from runner.version import __version__


def _format_overview() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(
        f"{group}:\n" + "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in commands.items())
        for group, commands in GROUPS.items()
    )
    return (
        "usage: nip-run SPEC... [KEY=VALUE...]\n       nip-run COMMAND ...\n\n"
        "Plays games between language models from a YAML spec.\n\n"
        f"{rows}\n\n"
        "`nip-run COMMAND --help` explains a command. Start with: nip-run init\n\n" + EXIT_CODES
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    configure_streams()
    reduce_garbage_collection()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # A program such as `head` has closed the pipe that reads the output.
        _discard_output()
        return ExitCode.DONE
    except OSError as error:
        _discard_output()
        with suppress(OSError):  # the stream that cannot be written may be stderr
            note(f"cannot write the output: {error.strerror}")
        return ExitCode.FAILED
    return code


def _discard_output() -> None:
    """Send the rest of stdout nowhere, so that Python does not fail again when it flushes the buffer on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        say(_format_overview())
        return ExitCode.DONE if arguments else ExitCode.USAGE
    if arguments[0] == "--version":
        say(f"nip-run {__version__}")
        return ExitCode.DONE
    from runner.cli.command_line import run_command_line
    from runner.cli.terminal.streams import redact_output

    with redact_output():
        return run_command_line(arguments)


if __name__ == "__main__":
    sys.exit(main())
