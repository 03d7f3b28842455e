"""Write logs with Inspect, judge them with nip-run, write the verdicts back, and open the results in Inspect and Scout.

Needs a network to install the packages, or `--python` of an environment that has them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from shared import ROOT, SoftAssertions, create_environment, temporary_folder

PACKAGES = ("inspect-ai>=0.3.285", "inspect-scout>=0.6", "pandas")
SPEC = """\
name: judge-{name}
dataset: {{path: logs/{log}, transcripts: {{unit: {unit}, label: {label}}}}}
protocol: {{use: solo_verifier}}
verdict: {{confidence: stated}}
prompts: prompts
models: {{judge: {{provider: dummy}}}}
agents: {{verifier: {{model: judge}}}}
"""
PROMPT = "{{ transcript }}\n\n{{ accept }}\n{{ reject }}\n{{ confidence_marker }}\n"
RUNS = {
    "eval": ("chores.eval", "sample", "match"),
    "json": ("chores.json", "sample", "match"),
    "calls": ("chores.eval", "tool_call", "null"),
}
"""The log, the unit and the label of each run."""

READ_SCRIPT = """
import asyncio, json, math, sys
from pathlib import Path

from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
from inspect_scout import TranscriptContent, scan_results_df, transcripts_from

here, facts = Path(sys.argv[1]), {}
for name, log_name in (("eval", "chores.eval"), ("json", "chores.json"), ("calls", "chores.eval")):
    path = here / f"scored-{name}" / log_name
    log, original = read_eval_log(str(path)), read_eval_log(str(here / "logs" / log_name))
    score = f"judged-{name}"
    scored = {f"{s.id}-{s.epoch}": s.scores[score].value for s in log.samples if score in (s.scores or {})}
    others = [
        {n: repr(v.value) for n, v in (s.scores or {}).items() if not n.startswith(score)}
        for source in (log, original)
        for s in source.samples
    ]
    facts[name] = {
        "scored": scored,
        "units": sum(len(s.scores[score].metadata["units"]) for s in log.samples if score in (s.scores or {})),
        "mean": next(s.metrics["mean"].value for s in log.results.scores if s.name == score),
        "summaries": sum(score in (s.scores or {}) for s in read_eval_log_sample_summaries(str(path))),
        "kept": others[: len(log.samples)] == others[len(log.samples) :],
        "suspicions": {
            f"{s.id}-{s.epoch}": s.scores[f"{score}_suspicion"].value
            for s in log.samples
            if f"{score}_suspicion" in (s.scores or {})
        },
        "messages": [len(s.messages) for s in log.samples] == [len(s.messages) for s in original.samples],
    }

(scan,) = (here / "scan").glob("scan_id=*")
scanners = scan_results_df(str(scan)).scanners
results, suspicions = scanners["verdict"], scanners["suspicion"]
ids = set()

async def index():
    async with transcripts_from(str(here / "logs" / "chores.eval")).reader() as reader:
        async for info in reader.index():
            ids.add(info.transcript_id)

asyncio.run(index())
facts["scan"] = {
    "results": len(results),
    "accepted": int(sum(str(value).lower() == "true" for value in results["value"])),
    "suspicions": sorted(float(value) for value in suspicions["value"]),
    "found": set(results["transcript_id"]) | set(suspicions["transcript_id"]) <= ids,
}
print(json.dumps(facts))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, metavar="PATH", help="of an environment that has the tools")
    python = parser.parse_args().python
    check = SoftAssertions()
    with temporary_folder() as here:
        python = python or create_environment(here / "tools", *PACKAGES)
        (here / "logs").mkdir()
        subprocess.run([str(python), str(ROOT / ".ci/tools/inspect_logs.py"), str(here / "logs")], check=True, cwd=here)
        (here / "prompts").mkdir()
        (here / "prompts" / "verifier.jinja").write_text(PROMPT)
        rows = {name: judge_log(here, name) for name in RUNS}
        run_nip_run(here, "export", "judged-calls", "--format", "scout-results", "--out", str(here / "scan"))
        (here / "read.py").write_text(READ_SCRIPT)
        process = subprocess.run(
            [str(python), str(here / "read.py"), str(here)], check=True, capture_output=True, text=True
        )
        check_results(check, json.loads(process.stdout.strip().splitlines()[-1]), rows)
    return check.exit_code()


def judge_log(here: Path, name: str) -> list[dict[str, Any]]:
    """Judge a log, write the scores to a copy, and return the run's games."""
    log, unit, label = RUNS[name]
    (here / f"{name}.yaml").write_text(SPEC.format(name=name, log=log, unit=unit, label=label))
    run_nip_run(here, str(here / f"{name}.yaml"), "-q", "--run-id", f"judged-{name}")
    original = here / "logs" / log
    before = original.read_bytes()
    options = ("--format", "inspect-scores", "--log", str(original), "--out", str(here / f"scored-{name}"))
    run_nip_run(here, "export", f"judged-{name}", *options)
    if original.read_bytes() != before:
        raise AssertionError(f"{original} was changed")
    sql = f"SELECT datapoint_id, decision FROM rollouts WHERE run_id = 'judged-{name}'"
    games: list[dict[str, Any]] = json.loads(run_nip_run(here, "sql", sql, "--json"))
    return games


def run_nip_run(here: Path, *arguments: str) -> str:
    """Run nip-run and return its output."""
    command = [sys.executable, "-m", "runner", *arguments, "--results", str(here / "results")]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def check_results(
    check: SoftAssertions, facts: dict[str, dict[str, Any]], rows: dict[str, list[dict[str, Any]]]
) -> None:
    for name in ("eval", "json"):
        expected = {row["datapoint_id"]: float(row["decision"]) for row in rows[name] if row["decision"] in (0, 1)}
        log_facts = facts[name]
        check(
            log_facts["scored"] == expected,
            f"Inspect reads our {len(expected)} verdicts in the .{name} log: {expected}",
        )
        by_sample: dict[str, list[float]] = {}
        for id_, value in expected.items():
            by_sample.setdefault(id_.rpartition("-")[0], []).append(value)
        mean = fmean(map(fmean, by_sample.values()))
        check(abs(log_facts["mean"] - mean) < 1e-9, f"the mean over samples in its results is {log_facts['mean']:.3f}")
    for name in RUNS:
        check(
            facts[name]["kept"] and facts[name]["messages"], f"{name}: the other scores and all messages are unchanged"
        )
    check(facts["eval"]["summaries"] == len(facts["eval"]["scored"]), "the summaries have the scores, too")
    calls = [row["decision"] for row in rows["calls"] if row["decision"] in (0, 1)]
    check(facts["calls"]["units"] == len(calls) > 0, f"{len(calls)} verdicts on tool calls are in the scores' metadata")
    scan = facts["scan"]
    suspicions = sorted(facts["calls"]["suspicions"].values())
    check(
        scan["suspicions"] == suspicions and all(0 <= value <= 1 for value in suspicions) and bool(suspicions),
        f"Inspect and Scout read the same suspicion of {len(suspicions)} samples: {suspicions}",
    )
    check(
        scan["results"] == len(calls) and scan["accepted"] == sum(calls) and scan["found"],
        f"Scout reads {scan['results']} results, whose transcripts are those that it finds in the log",
    )


if __name__ == "__main__":
    sys.exit(main())
