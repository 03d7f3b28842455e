"""List installed plugins, and check that each can be imported.

Examples:
  nip-run plugins
  nip-run plugins --json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.base.plugins import Plugin, PluginKind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # the command has no arguments of its own


def execute(args: argparse.Namespace) -> int:
    rows = [row for kind in _kinds() for row in _describe_all(kind.list_all())]
    problems = [row["problem"] for row in rows if row["problem"]]
    if args.json:
        print_json({"plugins": rows})
    elif not rows:
        say("No plugins are installed.")
    else:
        columns = ("name", "group", "distribution", "version", "sha256", "status")
        print_table(columns, [_cells(row) for row in rows])
        note(*problems)
    return ExitCode.FAILED if problems else ExitCode.DONE


def _kinds() -> Iterator[PluginKind]:
    from runner.analysis.analyzer import ANALYZER_PLUGINS
    from runner.exports.export_file import EXPORT_PLUGINS
    from runner.models.provider_traits import PROVIDER_PLUGINS
    from runner.results.metric_plugins import PLUGINS
    from runner.spec.backend_traits import BACKEND_PLUGINS

    yield from (PROVIDER_PLUGINS, PLUGINS, EXPORT_PLUGINS, BACKEND_PLUGINS, ANALYZER_PLUGINS)


def _describe_all(plugins: Sequence[Plugin]) -> Iterator[dict[str, str | None]]:
    return (_describe(plugin, plugin.kind.name_problem(plugin, plugins)) for plugin in plugins)


def _describe(plugin: Plugin, problem: str | None) -> dict[str, str | None]:
    sha256 = None
    try:
        sha256 = plugin.sha256
        if problem is None:
            plugin.load()
    except UsageError as error:
        problem = problem or str(error)
    return {
        "name": plugin.name, "group": plugin.kind.group, "distribution": plugin.distribution,
        "version": plugin.version, "sha256": sha256, "problem": problem,
    }  # fmt: skip


def _cells(row: dict[str, str | None]) -> tuple[str, ...]:
    names = (row[name] or "" for name in ("name", "group", "distribution", "version"))
    return (*names, (row["sha256"] or "")[:12], "error" if row["problem"] else "ok")
