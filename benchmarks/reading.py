"""Compare the cost of reading a finished run with another checkout: `python benchmarks/reading.py OTHER`.

The other checkout, which must not be newer, plays a run with the provider `dummy`. Each command then reads this run in
its own process, alternately with the other checkout and with this one. CPU is user and system time, the minimum of
`--repeat`. Use at least 2, because the first process also compiles the modules. A file (or template) counts as executed
if one of its functions is called outside an import, in a run of 100 games.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from common import ROOT, measure_process, print_footer, print_table, temporary_folder

COMMANDS = {
    "report": ["report", "last", "-o", "OUT.html"],
    "show -v": ["show", "last", "-v"],
    "show ROLLOUT": ["show", "last", "p7"],
    "export inspect": ["export", "last", "--format", "inspect", "--out", "OUT"],
    "export scout": ["export", "last", "--format", "scout", "--out", "OUT"],
    "export every-eval-ever": [
        "export", "last", "--format", "every-eval-ever", "--subject", "verifier", "--organization", "a",
        "--relationship", "other", "--out", "OUT",
    ],
    "export openai": ["export", "last", "--format", "openai", "--out", "OUT"],
    "export trl": ["export", "last", "--format", "trl", "--out", "OUT"],
}  # fmt: skip

_RUN_SCRIPT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from runner.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

_TRACE_SCRIPT = """
import sys, threading
sys.path.insert(0, sys.argv.pop(1))
import runner
from runner.cli.main import main
root, files = runner.__path__[0] + "/", set()

def record(frame, event, _):
    code = frame.f_code
    if event != "call" or code.co_filename in files or not code.co_filename.startswith(root):
        return
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(root):
            return  # an import
        frame = frame.f_back
    files.add(code.co_filename)

threading.setprofile(record)
sys.setprofile(record)
main(sys.argv[1:])
sys.setprofile(None)
loaded = sum(name.split(".")[0] == "runner" for name in sys.modules)
print(f"\\n{len(files)} {loaded} {any(name.endswith('rollouts/engine.py') for name in files)}")
"""


def play(folder: Path, games: int, checkout: str) -> None:
    """Play games on up to 1,000 datapoints with the provider `dummy`."""
    points = min(games, 1000)
    rows = (
        {"id": f"p{i}", "label": i % 2, "question": f"Return x + {i}.", "solution": f"def f(x): return x + {i}"}
        for i in range(points)
    )
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "reading", "dataset": {"path": "data.jsonl"}, "protocol": {"use": "nip", "max_message_rounds": 6},
        "prompts": "prompts/code_validation/nip", "models": {"m": {"provider": "dummy"}}, "fine_tune": {},
        "agents": {"prover": {"model": "m"}, "verifier": {"model": "m"}},
        "rollouts": {"per_datapoint": games // points, "concurrency": 64},
    }  # fmt: skip
    (folder / "spec.yaml").write_text(json.dumps(spec))
    measure_process([sys.executable, "-c", _RUN_SCRIPT, checkout, "spec.yaml", "-q"], folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, metavar="OTHER", help="another checkout, with the same dependencies")
    parser.add_argument("--games", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    checkouts = [str(args.other.resolve()), str(ROOT)]
    rows: list[list[object]] = []
    with temporary_folder() as folder, temporary_folder() as small_folder, temporary_folder() as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(bytecode)
        play(folder, args.games, checkouts[0])
        play(small_folder, 100, checkouts[0])
        for name, options in COMMANDS.items():
            command = [option.replace("OUT", str(folder / "out")) for option in options]
            cpu: list[list[float]] = [[], []]
            for _ in range(args.repeat):
                for times, checkout in zip(cpu, checkouts, strict=True):
                    times.append(measure_process([sys.executable, "-c", _RUN_SCRIPT, checkout, *command], folder).cpu)
            before, after = map(min, cpu)
            traces = [
                measure_process([sys.executable, "-c", _TRACE_SCRIPT, path, *command], small_folder)
                for path in checkouts
            ]
            files, loaded, engine = zip(*(trace.out.split()[-3:] for trace in traces), strict=True)
            assert engine[1] == "False", "the engine was executed"
            rows.append([name, before, after, after / before, *files, *loaded])
    columns = ("command", "CPU s before", "CPU s", "ratio", "executed before", "executed", "loaded before", "loaded")
    print_table(f"reading a finished run of {args.games:,} games", columns, rows)
    print_footer(__file__)


if __name__ == "__main__":
    main()
