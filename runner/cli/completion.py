"""Print a shell's completion script.

Examples:
  source <(nip-run completion bash)
  eval "$(nip-run completion zsh)"
  nip-run completion bash >> ~/.bashrc
  nip-run completion fish > ~/.config/fish/completions/nip-run.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from runner.base.exit_codes import ExitCode
from runner.cli.commands import COMMANDS
from runner.cli.terminal.output import say

RUN_IDS = "sh -c '(printenv NIP_RUN_RESULTS || echo results) | xargs -I% ls %/runs 2>/dev/null; echo last'"
"""Shell command that lists the runs in the results folder.

Python takes too long to start for this. The command has no `$`, which fish would expand.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")


def execute(args: argparse.Namespace) -> int:
    import shtab

    from runner.analysis.analyzer import builtin_analyzers
    from runner.cli.command_line import build_parser
    from runner.results.comparison.analysis_metrics import ANALYSIS_PREFIX
    from runner.results.metric_definitions import option_names

    analyses = [ANALYSIS_PREFIX + name for name in builtin_analyzers()]
    specs = shtab.glob("*.yaml", "*.yml")
    by_metavar: Mapping[object, Any] = {
        "FILE": shtab.FILE,
        "DIR": shtab.DIRECTORY,
        "SPEC": specs,
        "SPEC|KEY=VALUE": specs,
        "SPEC|RUN|KEY=VALUE": specs,
        "SPEC AGENT [KEY=VALUE...]": specs,
        "RUN": shtab.cmd(RUN_IDS),
    }
    root = argparse.ArgumentParser(prog="nip-run")
    commands = root.add_subparsers()
    for name, command in COMMANDS.items():
        parser = commands.add_parser(name, help=command.summary, parents=[build_parser(name)], add_help=False)
        for action in parser._actions:  # noqa: SLF001 - argparse has no public list of a parser's actions
            if action.metavar in by_metavar and action.choices is None:
                action.complete = by_metavar[action.metavar]  # type: ignore[attr-defined]
            if action.dest == "metric":
                action.choices = analyses if name == "leaderboard" else [*option_names(()), *analyses]
    say(shtab.complete(root, args.shell).rstrip("\n"))
    return ExitCode.DONE
