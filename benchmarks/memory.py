"""Measure peak memory and time of dummy rollouts at two sizes: memory must not grow with their number."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from common import measure_child, print_footer, print_table, temporary_folder

DATAPOINTS = 100


def play_child(rollouts: int) -> None:
    from runner import run
    from runner.spec.loader import load_spec

    with temporary_folder() as folder:
        rows = (
            {"id": f"p{i}", "label": i % 2, "question": f"Return x + {i}.", "solution": f"def f(x): return x + {i}"}
            for i in range(DATAPOINTS)
        )
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = {
            "name": "memory", "dataset": {"path": "data.jsonl"}, "protocol": {"use": "nip", "max_message_rounds": 6},
            "prompts": "prompts/code_validation/nip", "models": {"m": {"provider": "dummy"}},
            "agents": {"prover": {"model": "m"}, "verifier": {"model": "m"}}, "fine_tune": {},
            "rollouts": {"per_datapoint": max(rollouts // DATAPOINTS, 1), "concurrency": 64},
        }  # fmt: skip
        (folder / "spec.yaml").write_text(json.dumps(spec))
        start = time.perf_counter()
        result = run(load_spec(folder / "spec.yaml"), folder / "results")
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        print(json.dumps({"rollouts": result.manifest.rollouts, "wall": seconds, "disk_mb": size / 2**20}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--child", type=int, metavar="ROLLOUTS")
    args = parser.parse_args()
    if args.child is not None:
        play_child(args.child)
        return
    measurements = [measure_child(__file__, size) for size in args.sizes]
    first = measurements[0]
    rows = [
        (
            row["rollouts"], row["peak_mb"], row["peak_mb"] / first["peak_mb"], row["wall"],
            row["wall"] / row["rollouts"] * 1000, row["disk_mb"],
        )
        for row in measurements
    ]  # fmt: skip
    columns = ("rollouts", "peak MB", "over the first", "wall s", "ms/rollout", "disk MB")
    print_table(f"dummy rollouts on {DATAPOINTS} datapoints, everything on", columns, rows)
    print_footer(__file__)


if __name__ == "__main__":
    main()
