"""Exported runs in the tools that they are for: Inspect and Inspect Scout, the Hub's client, Every Eval Ever's schema.

    python .ci/tools/exports.py     # installs the tools in a temporary folder

A run with two provers, private channels, repeats and hostile texts is exported in each format, and
read by the tool's own reader. So is one whose datapoints are each played in four ways, with three votes a verdict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from shared import ROOT, SoftAssertions, folder

PACKAGES = ("inspect-ai>=0.3.285", "inspect-scout>=0.6", "huggingface-hub>=2", "jsonschema", "pyyaml")

READ = """
import asyncio, json, sys
from pathlib import Path

import jsonschema
import yaml
from huggingface_hub._eval_results import parse_eval_result_entries
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
from inspect_scout import TranscriptContent, transcripts_from

here, schemas = Path(sys.argv[1]), Path(sys.argv[2])
said = {}

(path,) = (here / "inspect").glob("*.eval")
log = read_eval_log(str(path))
said["inspect"] = {
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
        found = [info async for info in reader.index()]
        said["scout"] = {"transcripts": len(found), "messages": 0, "right": 0}
        for info in found:
            whole = await reader.read(info, TranscriptContent(messages="all"))
            said["scout"]["messages"] += len(whole.messages)
            said["scout"]["right"] += info.agent == "verifier" and info.success

asyncio.run(scout())

(path,) = (here / "blocks-inspect").glob("*.eval")
blocks = read_eval_log(str(path))
turns = [m for s in blocks.samples for m in s.messages if m.role == "assistant"]
plays = {(sample.id, sample.epoch) for sample in blocks.samples}
said["blocks"] = {
    "samples": len(blocks.samples),
    "summaries": len(read_eval_log_sample_summaries(str(path))),
    "plays": len(plays),
    "ways": len({(s.metadata["stance"], s.metadata["swapped"]) for s in blocks.samples}),
    "votes": sorted({len(s.scores["verdict"].metadata["votes"]) for s in blocks.samples if s.scores}),
    "models": sorted({(m.metadata["agent"], m.model) for m in turns}),
}

async def ways():
    async with transcripts_from(str(here / "blocks-scout")).reader() as reader:
        found = [info async for info in reader.index()]
        said["blocks"]["cast"] = sorted({(info.agent, info.model) for info in found if info.model})
        said["blocks"]["told"] = len({(i.metadata["stance"], i.metadata["swapped"]) for i in found})

asyncio.run(ways())

(path,) = (here / "hf" / ".eval_results").iterdir()
(entry,) = parse_eval_result_entries(yaml.safe_load(path.read_text()))
said["hub"] = {"value": entry.value, "dataset": entry.dataset_id, "notes": entry.notes}

(path,) = here.glob("eee/data/*/*/*/*.json")
record = json.loads(path.read_text())
jsonschema.Draft202012Validator(json.loads((schemas / "eval.schema.json").read_text())).validate(record)
rows = jsonschema.Draft202012Validator(json.loads((schemas / "instance_level_eval.schema.json").read_text()))
lines = path.with_name(path.stem + "_samples.jsonl").read_text().splitlines()
for line in lines:
    rows.validate(json.loads(line))
said["every"] = {
    "rows": len(lines),
    "score": next(
        result["score_details"]["score"]
        for result in record["evaluation_results"]
        if result["metric_config"]["metric_id"] == "accuracy"
    ),
}
print(json.dumps(said))
"""

SPEC = f"""\
extends: {ROOT}/specs/mnip.yaml
name: hostile
dataset: {{path: data.jsonl, split: null, group_by: null}}
rollouts: {{per_datapoint: 2}}
"""
BLOCKS = f"""\
extends: {ROOT}/specs/mnip.yaml
name: blocks
dataset: {{limit: 4}}
models: {{dear: {{provider: dummy, model: dear-1}}, cheap: {{provider: dummy, model: cheap-1}}}}
agents: {{prover0: {{model: dear}}, prover1: {{model: cheap}}, verifier: {{model: cheap}}}}
stances: both
seats: swap
votes: 3
"""
HOSTILE = 'x = "</script>\\u0000\\u202e" ${env} {{ y }} \\ud83d\\ude00 \\u001b[31m'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, metavar="PATH", help="of an environment that has the tools")
    python = parser.parse_args().python
    check = SoftAssertions()
    with folder() as here:
        rows = [
            {"id": f"a/b {i} ö?", "label": i % 2, "question": f"{HOSTILE} {i}", "solution": HOSTILE * i}
            for i in range(6)
        ]
        (here / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (here / "spec.yaml").write_text(SPEC)
        (here / "blocks.yaml").write_text(BLOCKS)
        called("blocks.yaml", "-q", here=here)
        for name in ("inspect", "scout"):
            called("export", "last", "--format", name, "--out", str(here / f"blocks-{name}"), here=here)
        called("spec.yaml", "-q", here=here)
        result = json.loads(called("show", "last", "--json", here=here))
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
        for name, words in exports.items():
            called("export", "last", "--format", names.get(name, name), "--out", str(here / name), *words, here=here)
        said = read(here, python or installed(here))
        claim_all(check, said, len(rows) * 2, accuracy)
    return check.exit_code()


def called(*words: str, here: Path) -> str:
    """What `nip-run` says to these words."""
    return subprocess.run(
        [sys.executable, "-m", "runner", *(str(here / w) if w.endswith(".yaml") else w for w in words),
         "--results", str(here / "results")],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def claim_all(check: SoftAssertions, said: dict[str, dict[str, Any]], games: int, accuracy: float) -> None:
    inspect, scout, blocks = said["inspect"], said["scout"], said["blocks"]
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
    plays = 4 * 4
    check(
        blocks["samples"] == blocks["summaries"] == blocks["plays"] == plays and blocks["ways"] == 4,
        f"of datapoints that are played in four ways, Inspect reads {blocks['samples']} of {plays} samples",
    )
    check(blocks["votes"] == [3], "with the three votes of each verdict")
    cast = [[seat, model] for seat in ("prover0", "prover1") for model in ("cheap-1", "dear-1")]
    cast.append(["verifier", "cheap-1"])
    check(
        blocks["models"] == blocks["cast"] == cast and blocks["told"] == 4,
        "in both tools both models stand in both seats, as they played",
    )
    check(
        said["hub"]["value"] == accuracy and f"n = {games}" in said["hub"]["notes"],
        f"the Hub's client parses the entry: {said['hub']['value']:.4f}",
    )
    check(
        said["every"]["rows"] == games and said["every"]["score"] == accuracy,
        f"the record is valid by Every Eval Ever's schema, and so are its {said['every']['rows']} rows",
    )


def installed(here: Path) -> Path:
    """An environment with the tools, which want other versions than ours."""
    place = here / "tools"
    venv.create(place, with_pip=True)
    subprocess.run([str(place / "bin" / "pip"), "install", "-q", *PACKAGES], check=True)
    return place / "bin" / "python"


def read(here: Path, python: Path) -> dict[str, dict[str, Any]]:
    """What the tools say."""
    (here / "read.py").write_text(READ)
    done = subprocess.run(
        [str(python), str(here / "read.py"), str(here), str(ROOT / "tests/fixtures/every_eval_ever")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
