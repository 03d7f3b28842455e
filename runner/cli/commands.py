"""The table of commands: the module and a one-line summary of each.

The module of a command has its arguments, its help (the module's docstring) and `execute`. It is imported when the
command is run or its help is printed, and imports heavy packages only inside the functions that need them. `execute`
gets the parsed arguments, in which `results` is the results folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Command(NamedTuple):
    """The module of a command in `runner.cli`, and its summary in the list of commands."""

    module: str
    summary: str


GROUPS: Mapping[str, Mapping[str, Command]] = {
    "play": {
        "init": Command("experiments.init", "write a first spec, prompts and a small dataset"),
        "check": Command("experiments.check", "find every error in specs; show schedule, calls and cost"),
        "render": Command("experiments.render", "show the exact messages that an agent's model would get"),
        "plan": Command("experiments.plan", "compute how many datapoints detect a difference, or how long a run takes"),
        "run": Command("experiments.run", "play specs; `nip-run SPEC` is short for it"),
        "merge": Command("experiments.merge", "merge the shards of a run into one run"),
        "rejudge": Command("experiments.rejudge", "let another judge decide the debates of a run"),
    },
    "inspect": {
        "runs": Command("results.runs", "list all runs"),
        "show": Command("results.show", "show a run, its rollouts, a transcript or the prompts that were sent"),
        "view": Command("results.view", "open runs in a browser and follow them while they play"),
        "report": Command("results.report", "write runs as one HTML page with results and all games"),
        "notes": Command("results.notes", "list, search, add, export or import readers' notes on a run"),
        "sweep": Command("results.sweep", "show the points of a sweep as one table with rank ranges"),
        "explain-misses": Command("results.explain_misses", "explain why a run's requests were not in the cache"),
    },
    "analyze": {
        "leaderboard": Command("results.leaderboard", "rank the runs of each task, or rebuild the leaderboard file"),
        "compare": Command("results.compare", "tell whether one run is better than another, and by how much"),
        "gauge": Command("experiments.gauge", "measure a judge's noise, and which wordings change its verdicts"),
        "analyze": Command("experiments.analyze", "ask questions about the transcripts of runs, by a model or by code"),
        "label": Command(
            "experiments.label", "answer an analyzer's question yourself, to measure models that answer it"
        ),
        "validate": Command("results.validate", "compare an analyzer's answers with people's, and correct its rates"),
        "sql": Command("results.sql", "query the leaderboard and the records of all runs in SQL"),
        "plot": Command("results.plot", "draw a figure of runs for a paper, or write its data"),
    },
    "make data": {
        "make-dataset": Command(
            "curation.make_dataset", "make a dataset of right and wrong programs, tested in a sandbox"
        ),
        "audit": Command("curation.audit", "find out whether a dataset gives its labels away"),
        "sandbox": Command("curation.sandbox", "check which sandbox of this machine can run untrusted programs"),
    },
    "share": {
        "publish": Command(
            "registry.publish", "publish a run or a component with all the files that determine its results"
        ),
        "get": Command("registry.get", "download a published run or component into a folder and check it"),
        "verify": Command("registry.verify", "check every hash and record of a run or a release; plays nothing"),
        "reproduce": Command("registry.reproduce", "recompute a published run from its transcripts, or play it again"),
        "search": Command("registry.search", "search a registry"),
        "login": Command("registry.login", "store the token for a registry's server"),
        "install": Command("registry.install", "install components, and record their hashes in nip-run.lock"),
        "uninstall": Command("registry.uninstall", "remove installed components"),
        "freeze": Command("registry.freeze", "pin everything that a spec names, or tell what cannot be pinned"),
        "status": Command("registry.status", "tell what can be published, and what prevents the rest"),
        "history": Command("registry.history", "show the runs that trained or tested an agent, in order"),
    },
    "host": {
        "serve": Command("server.serve", "serve a registry over HTTP"),
        "server": Command("server.server", "administer a served registry: accounts, organizations, tokens, backups"),
    },
    "other": {
        "export": Command("results.export", "write fine-tuning files, results and transcripts for other tools"),
        "plugins": Command("plugins", "list installed plugins, and check that each can be imported"),
        "export-env": Command("experiments.export_env", "write a spec's games as a package for verifiers"),
        "schema": Command("experiments.schema", "print the JSON Schema of a spec or a protocol file"),
        "completion": Command("completion", "print a shell's completion script"),
    },
}
"""Commands grouped by what a user wants to do."""

COMMANDS: Mapping[str, Command] = {name: command for group in GROUPS.values() for name, command in group.items()}

RENAMED_COMMANDS: Mapping[str, str] = {"why-miss": "explain-misses"}
"""Old names of commands that still work, each with its new name."""
