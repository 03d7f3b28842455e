"""The commands: what each does, what it takes, and the module that does it.

A command's module is imported when the command runs: help must not wait for what it imports.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence

from runner.cli import arguments_experiments as play
from runner.cli import arguments_pages as pages
from runner.cli import arguments_registry as registry
from runner.cli import arguments_results as look
from runner.cli import arguments_server as server


class Command:
    """One command: `arguments` declares what it takes, and `execute` in `module` does it.

    `examples` stand in its help, without the name of the program. No dataclass: importing `dataclasses` takes as long
    as all the rest of help.
    """

    def __init__(
        self, summary: str, arguments: Callable[[argparse.ArgumentParser], None], module: str, *examples: str
    ) -> None:
        self.summary = summary
        self.arguments = arguments
        self.module = module
        self.examples = examples

    def execute(self, args: argparse.Namespace) -> int:
        """Run it; returns the exit code."""
        code: int = importlib.import_module(self.module).execute(args)
        return code


COMMANDS: Mapping[str, Command] = {
    "init": Command(
        "write a first spec, prompts and a tiny dataset to start from", play.init, "runner.cli.experiments.init",
        "init", "init mine", "init --protocol debate mine",
    ),
    "check": Command(
        "find every error of a spec, and show its schedule, calls and cost", play.check, "runner.cli.experiments.check",
        "check spec.yaml", "check spec.yaml --shard 3/8", "check specs/*.yaml rollouts.per_datapoint=3",
    ),
    "render": Command(
        "show the exact messages that an agent's model would get", play.render, "runner.cli.experiments.render",
        "render spec.yaml verifier", "render spec.yaml prover --round 1 --datapoint ID",
    ),
    "plan": Command(
        "say how many datapoints show a difference, or how long a run takes", play.plan, "runner.cli.experiments.plan",
        "plan spec.yaml --detect 0.05", "plan spec.yaml --detect 0.05 --from RUN",
        "plan spec.yaml --detect 0.1 --against RUN --json", "plan spec.yaml --workers 4 --like pilot",
    ),
    "run": Command(
        "play a spec; `nip-run SPEC` is short for it", play.run, "runner.cli.experiments.run",
        "spec.yaml", "spec.yaml dataset.limit=10 budget.usd=1", "spec.yaml --replay RUN", "spec.yaml --shard 3/8",
    ),
    "merge": Command(
        "make one run of its shards, as if one process had played it", play.merge, "runner.cli.experiments.merge",
        "merge RUN", "merge RUN copied/3-of-8", "merge copied/1-of-2 copied/2-of-2",
    ),
    "rejudge": Command(
        "have the debates of a run judged by another judge; no other agent is asked", play.rejudge,
        "runner.cli.experiments.rejudge",
        "rejudge RUN '+models.judge={model: gpt-6-sol}' agents.verifier.model=judge",
        "rejudge last votes=5 --verdict each",
        "rejudge RUN 'sweep={prompts: [terse, careful], votes: [1, 5]}'",
    ),
    "runs": Command(
        "list all runs", look.runs, "runner.cli.results.runs", "runs", "runs --status interrupted", "runs --json"
    ),
    "show": Command(
        "show a run and its rollouts, one transcript, or the chats that were sent", look.show,
        "runner.cli.results.show",
        "show last --wrong", "show RUN ROLLOUT", "show RUN ROLLOUT RUN ROLLOUT", "show RUN ROLLOUT --prompt verifier",
    ),
    "report": Command(
        "write runs as one page: what they came to, all games, each as a conversation", pages.report,
        "runner.cli.results.report",
        "report last -o report.html", "report RUN RUN -o report.html", "report last --dir site",
        "report --board -o board.html",
    ),
    "view": Command(
        "open runs as pages in a browser, which follow them while they play", pages.view, "runner.cli.results.view",
        "view", "view RUN RUN", "view last --port 8080 --no-open", "view --board",
    ),
    "notes": Command(
        "list, search, add, export or take in the notes that readers keep of a run", pages.notes,
        "runner.cli.results.notes",
        "notes RUN", "notes RUN ROLLOUT --add 'gives up too early' --tag verifier", "notes last --search early",
        "notes last --export notes.csv", "notes RUN --import notes.jsonl",
    ),
    "plot": Command(
        "draw a figure of runs for a paper, or write its rows", pages.plot, "runner.cli.results.plot",
        "plot learning_curve RUN RUN RUN -o curve.svg", "plot accuracy_by_protocol RUN RUN -o accuracy.svg",
        "plot reliability last -o reliability.csv",
    ),
    "sweep": Command(
        "show the points of a sweep as one table, seeds pooled, with rank ranges", look.sweep,
        "runner.cli.results.sweep",
        "sweep spec.yaml", "sweep spec.yaml --metric recall", "sweep spec.yaml --json",
    ),
    "explain-misses": Command(
        "say why a run's requests were not in the cache", look.explain_misses, "runner.cli.results.explain_misses",
        "explain-misses RUN", "explain-misses RUN --max 20",
    ),
    "leaderboard": Command(
        "rank the runs of each task, or make the leaderboard file again", look.leaderboard,
        "runner.cli.results.leaderboard",
        "leaderboard", "leaderboard BENCHMARK --json", "leaderboard --rebuild", "leaderboard --from DIR",
    ),
    "compare": Command(
        "say whether one run is better than another, and by how much", look.compare, "runner.cli.results.compare",
        "compare RUN RUN", "compare A1,A2,A3 B1,B2,B3 --metric balanced_accuracy",
        "compare RUN --baseline solo_verifier", "compare OLD NEW --assert 'accuracy >= base - 0.02'",
    ),
    "sql": Command(
        "query the leaderboard and all runs' records in SQL", look.sql, "runner.cli.results.sql",
        "sql", 'sql "SELECT run_id, accuracy, ci_low, ci_high FROM leaderboard"', "sql @",
        "sql @flips run_a=RUN run_b=RUN",
        'sql "PIVOT rollouts ON outcome USING count(*) GROUP BY run_id"', "sql --file question.sql -o answer.parquet",
    ),
    "export": Command(
        "write fine-tune files, results and transcripts for other tools, or send runs to MLflow", look.export,
        "runner.cli.results.export",
        "export RUN --format openai", "export RUN --format trl --method dpo --out DIR",
        "export RUN --format inspect", "export RUN --format scout --out DIR",
        "export RUN --format mlflow --follow",
    ),
    "publish": Command(
        "publish a run, or a component, with all that determines it", registry.publish, "runner.cli.registry.publish",
        "publish RUN --to DIR --as acme --licence CC-BY-4.0 --dry-run",
        "publish prompts/mine --kind prompts --as acme/terse@1.0 --to git:git@example.org:acme/board.git",
        "publish acme/terse@1.0 --kind prompts --yank 'leaks the label'",
    ),
    "get": Command(
        "get a published run or component into a folder, checked", registry.get, "runner.cli.registry.get",
        "get acme/nip-0123456789 --from DIR", "get run/acme/nip-0123456789@1 mine --from hf:acme/board",
    ),
    "verify": Command(
        "check every hash and record of a run or a release; plays nothing", registry.verify,
        "runner.cli.registry.verify",
        "verify last", "verify run/acme/nip-0123456789 --from DIR", "verify mine",
    ),
    "reproduce": Command(
        "recompute a published run from its transcripts, or play it anew", registry.reproduce,
        "runner.cli.registry.reproduce",
        "reproduce acme/nip-0123456789 --from DIR", "reproduce mine --fresh",
        "reproduce mine --fresh --set models.small.base_url=http://127.0.0.1:8000/v1",
    ),
    "search": Command(
        "search what is published", registry.search, "runner.cli.registry.search",
        "search debate --from DIR", "search --kind protocol --all",
    ),
    "login": Command(
        "keep the token of a registry's server, which it asks for", registry.login, "runner.cli.registry.login",
        "login https://registry.example.org", "login https://registry.example.org < token.txt",
        "login https://registry.example.org --logout",
    ),
    "install": Command(
        "install components that specs name by reference, and pin them", registry.install,
        "runner.cli.registry.install",
        "install protocol/acme/council@1.2.0 --from DIR", "install",
    ),
    "uninstall": Command(
        "remove installed components", registry.uninstall, "runner.cli.registry.uninstall",
        "uninstall protocol/acme/council@1.2.0", "uninstall acme/council",
    ),
    "freeze": Command(
        "pin everything that a spec names, or say what cannot be", registry.freeze, "runner.cli.registry.freeze",
        "freeze spec.yaml", "freeze spec.yaml -o frozen.yaml",
    ),
    "status": Command(
        "say what can be published, and what hinders the rest", registry.status, "runner.cli.registry.status",
        "status", "status RUN", "status spec.yaml",
    ),
    "history": Command(
        "show the training and benchmark sessions of an agent, in order", registry.history,
        "runner.cli.registry.history",
        "history verifier", "history qwen3-4b-nip-1 --from DIR",
    ),
    "serve": Command(
        "run a registry for others over HTTP", server.serve, "runner.cli.server.serve",
        "serve registry", "serve registry --port 0",
        "serve registry --address https://registry.example.org",
    ),
    "server": Command(
        "keep a registry that is served: accounts, organisations, tokens, backups", server.server,
        "runner.cli.server.server",
        "server add-account registry alice", "server add-organisation registry acme alice bob",
        "server add-token registry alice --scope publish --days 90 --label laptop",
        "server backup registry monday.backup", "server restore new monday.backup",
    ),
    "schema": Command(
        "print the JSON Schema of a spec or a protocol file", play.schema, "runner.cli.experiments.schema",
        "schema > experiment.schema.json", "schema protocol",
    ),
    "completion": Command(
        "print the completion script for your shell", look.completion, "runner.cli.completion",
        "completion bash >> ~/.bashrc", "completion zsh >> ~/.zshrc",
        "completion fish > ~/.config/fish/completions/nip-run.fish",
    ),
}  # fmt: skip

GROUPS: Mapping[str, Sequence[str]] = {
    "play": ("init", "check", "render", "plan", "run", "merge", "rejudge"),
    "look": ("runs", "show", "view", "report", "notes", "sweep", "explain-misses"),
    "ask": ("leaderboard", "compare", "sql", "plot"),
    "share": (
        "publish",
        "get",
        "verify",
        "reproduce",
        "search",
        "login",
        "install",
        "uninstall",
        "freeze",
        "status",
        "history",
    ),
    "host": ("serve", "server"),
    "files": ("export", "schema", "completion"),
}
"""The commands by what one wants."""

RENAMED_COMMANDS: Mapping[str, str] = {"why-miss": "explain-misses"}
"""Old names that still work in this version, each with the new one."""
