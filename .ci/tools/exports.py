"""Read exported runs with Inspect, Inspect Scout, the Hub's client and the schema of Every Eval Ever.

    python .ci/tools/exports.py     # installs the tools in a temporary folder

The script exports a run with two provers, private channels, repeats and hostile texts in each format, and reads the
files with each tool's own reader. A second run has four games per datapoint and three votes per verdict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from shared import ROOT, SoftAssertions, create_environment, temporary_folder

PACKAGES = ("inspect-ai>=0.3.285", "inspect-scout>=0.6", "huggingface-hub>=2", "jsonschema", "pyyaml")

READ_SCRIPT = """
import asyncio, json, sys
from pathlib import Path

import jsonschema
import yaml
from huggingface_hub._eval_results import parse_eval_result_entries
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
from inspect_scout import TranscriptContent, transcripts_from

here, schemas = Path(sys.argv[1]), Path(sys.argv[2])
facts = {}

(path,) = (here / "inspect").glob("*.eval")
log = read_eval_log(str(path))
facts["inspect"] = {
    "status": log.status,
    "samples": len(log.samples),
    "summaries": len(read_eval_log_sample_summaries(str(path))),
    "right": sum(s.scores["verdict"].value for s in log.samples if s.scores),
    "accuracy": log.results.scores[0].metrics["accuracy"].value,
    "roles": sorted(log.eval.model_roles),
    "errors": sum(s.error is not None for s in log.samples),
    "header": read_eval_log(str(path), header_only=True).eval.task,
}

async def scout():
    async with transcripts_from(str(here / "scout")).reader() as reader:
        infos = [info async for info in reader.index()]
        facts["scout"] = {"transcripts": len(infos), "messages": 0, "right": 0}
        for info in infos:
            transcript = await reader.read(info, TranscriptContent(messages="all"))
            facts["scout"]["messages"] += len(transcript.messages)
            facts["scout"]["right"] += info.agent == "verifier" and info.success

asyncio.run(scout())

(path,) = (here / "blocks-inspect").glob("*.eval")
blocks = read_eval_log(str(path))
turns = [m for s in blocks.samples for m in s.messages if m.role == "assistant"]
plays = {(sample.id, sample.epoch) for sample in blocks.samples}
facts["blocks"] = {
    "samples": len(blocks.samples),
    "summaries": len(read_eval_log_sample_summaries(str(path))),
    "plays": len(plays),
    "ways": len({(s.metadata["stance"], s.metadata["swapped"]) for s in blocks.samples}),
    "votes": sorted({len(s.scores["verdict"].metadata["votes"]) for s in blocks.samples if s.scores}),
    "models": sorted({(m.metadata["agent"], m.model) for m in turns}),
}

async def ways():
    async with transcripts_from(str(here / "blocks-scout")).reader() as reader:
        infos = [info async for info in reader.index()]
        facts["blocks"]["cast"] = sorted({(info.agent, info.model) for info in infos if info.model})
        facts["blocks"]["designs"] = len({(i.metadata["stance"], i.metadata["swapped"]) for i in infos})

asyncio.run(ways())

(path,) = (here / "hf" / ".eval_results").iterdir()
(entry,) = parse_eval_result_entries(yaml.safe_load(path.read_text()))
facts["hub"] = {"value": entry.value, "dataset": entry.dataset_id, "notes": entry.notes}

(path,) = here.glob("eee/data/*/*/*/*.json")
record = json.loads(path.read_text())
jsonschema.Draft202012Validator(json.loads((schemas / "eval.schema.json").read_text())).validate(record)
rows = jsonschema.Draft202012Validator(json.loads((schemas / "instance_level_eval.schema.json").read_text()))
lines = path.with_name(path.stem + "_samples.jsonl").read_text().splitlines()
for line in lines:
    rows.validate(json.loads(line))
facts["every"] = {
    "rows": len(lines),
    "score": next(
        result["score_details"]["score"]
        for result in record["evaluation_results"]
        if result["metric_config"]["metric_id"] == "accuracy"
    ),
}
print(json.dumps(facts))
"""

SPEC = f"""\
extends: {ROOT}/specs/mnip.yaml
name: hostile
dataset: {{path: data.jsonl, split: null, group_by: null}}
rollouts: {{per_datapoint: 2}}
"""
BLOCKS_SPEC = f"""\
extends: {ROOT}/specs/mnip.yaml
name: blocks
dataset: {{limit: 4}}
models: {{dear: {{provider: dummy, model: dear-1}}, cheap: {{provider: dummy, model: cheap-1}}}}
agents: {{prover0: {{model: dear}}, prover1: {{model: cheap}}, verifier: {{model: cheap}}}}
stances: both
seats: swap
votes: 3
"""
HOSTILE_TEXT = 'x = "</script>\\u0000\\u202e" ${env} {{ y }} \\ud83d\\ude00 \\u001b[31m'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, metavar="PATH", help="of an environment that has the tools")
    python = parser.parse_args().python
    check = SoftAssertions()
    with temporary_folder() as here:
        rows = [
            {"id": f"a/b {i} ö?", "label": i % 2, "question": f"{HOSTILE_TEXT} {i}", "solution": HOSTILE_TEXT * i}
            for i in range(6)
        ]
        (here / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (here / "spec.yaml").write_text(SPEC)
        (here / "blocks.yaml").write_text(BLOCKS_SPEC)
        run_nip_run("blocks.yaml", "-q", here=here)
        for name in ("inspect", "scout"):
            run_nip_run("export", "last", "--format", name, "--out", str(here / f"blocks-{name}"), here=here)
        run_nip_run("spec.yaml", "-q", here=here)
        result = json.loads(run_nip_run("show", "last", "--json", here=here))
        accuracy = next(
            r["value"] for r in result["metrics"]["metrics"] if r["metric"] == "accuracy" and r["agent"] is None
        )
        exports: dict[str, list[str]] = {
            "inspect": [],
            "scout": [],
            "hf": ["--subject", "verifier", "--hf-dataset", "acme/claims", "--task-id", "claims"],
            "eee": ["--subject", "verifier", "--organization", "Acme", "--relationship", "other"],
        }
        names = {"hf": "hf-eval-results", "eee": "every-eval-ever"}
        for name, options in exports.items():
            run_nip_run(
                "export", "last", "--format", names.get(name, name), "--out", str(here / name), *options, here=here
            )
        facts = read_exports(here, python or create_environment(here / "tools", *PACKAGES))
        check_exports(check, facts, len(rows) * 2, accuracy)
    return check.exit_code()


def run_nip_run(*arguments: str, here: Path) -> str:
    """Run `nip-run` and return its output."""
    return subprocess.run(
        [sys.executable, "-m", "runner", *(str(here / w) if w.endswith(".yaml") else w for w in arguments),
         "--results", str(here / "results")],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def check_exports(check: SoftAssertions, facts: dict[str, dict[str, Any]], games: int, accuracy: float) -> None:
    inspect, scout, blocks = facts["inspect"], facts["scout"], facts["blocks"]
    check(
        inspect["samples"] == inspect["summaries"] == games and inspect["status"] == "success",
        f"Inspect reads the log: {inspect['samples']} of {games} samples, roles {', '.join(inspect['roles'])}",
    )
    check(
        inspect["accuracy"] == accuracy == inspect["right"] / games,
        f"its accuracy is ours: {inspect['accuracy']:.4f}, by its samples {inspect['right'] / games:.4f}",
    )
    check(
        scout["transcripts"] >= 2 * games and scout["right"] == inspect["right"],
        f"Inspect Scout reads {scout['transcripts']} transcripts of {scout['messages']} messages",
    )
    game_count = 4 * 4
    check(
        blocks["samples"] == blocks["summaries"] == blocks["plays"] == game_count and blocks["ways"] == 4,
        f"of datapoints that are played in four ways, Inspect reads {blocks['samples']} of {game_count} samples",
    )
    check(blocks["votes"] == [3], "with the three votes of each verdict")
    cast = [[seat, model] for seat in ("prover0", "prover1") for model in ("cheap-1", "dear-1")]
    cast.append(["verifier", "cheap-1"])
    check(
        blocks["models"] == blocks["cast"] == cast and blocks["designs"] == 4,
        "both tools show both models in both seats, as they played",
    )
    check(
        facts["hub"]["value"] == accuracy and f"n = {games}" in facts["hub"]["notes"],
        f"the Hub's client parses the entry: {facts['hub']['value']:.4f}",
    )
    check(
        facts["every"]["rows"] == games and facts["every"]["score"] == accuracy,
        f"the record is valid by Every Eval Ever's schema, and so are its {facts['every']['rows']} rows",
    )


def read_exports(here: Path, python: Path) -> dict[str, dict[str, Any]]:
    """Read the exported files with the tools."""
    (here / "read.py").write_text(READ_SCRIPT)
    process = subprocess.run(
        [str(python), str(here / "read.py"), str(here), str(ROOT / "tests/fixtures/every_eval_ever")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return dict(json.loads(process.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
