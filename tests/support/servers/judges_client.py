"""Run the server of planted judges, and write specs that use it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support.hang_guard import HANG_SECONDS
from tests.support.servers.client import LoopbackServer, run_loopback_server
from tests.support.specs import merge_changes

CLAIM = "Claim {{ claim }} of {{ topic }}.\n"
VERIFIER = (
    CLAIM + "<there>{{ there }}</there>\nWrite {{ accept }} or {{ reject }}; where it is asked for, say how sure you "
    "are (Confidence: 0.8).{% for h in headers %} {{ h }}{% endfor %}\n"
)
PROVER = CLAIM + "You argue for: {{ stance }}\n"

PROVERS = {"adp": ["prover"], "debate": ["prover0", "prover1"], "mnip": ["prover0", "prover1"], "solo_verifier": []}
"""The provers of each supported protocol."""


def run_judge_server(**options: Any) -> AbstractContextManager[LoopbackServer]:
    """Run a server with these options (see `tests.support.servers.judges.Options`)."""
    return run_loopback_server(LoopbackServer, "judges", **options)


def judged_spec(
    folder: Path, base_url: str, protocol: str, judge: str, provers: Sequence[str] = (), *, labels: Sequence[int],
    pairs: bool = False, **changes: Any,
) -> Path:  # fmt: skip
    """Write a spec of a planted judge who hears planted provers, one per agent, on a claim for each label.

    With `pairs`, every two claims form a group. The provers speak once, then the judge decides.
    """
    prompts = folder / "prompts"
    prompts.mkdir(parents=True, exist_ok=True)
    (prompts / "verifier.jinja").write_text(VERIFIER)
    agents = PROVERS[protocol]
    for agent in agents:
        (prompts / f"{agent}.jinja").write_text(PROVER)
    if protocol in ("debate", "mnip"):
        (prompts / "verifier.last_round.jinja").write_text("Decide now.\n")
    rows = (
        {"id": f"c{number}", "label": label, "claim": number, "topic": number // 2 if pairs else number,
         "there": ("wrong", "right")[label]}
        for number, label in enumerate(labels)
    )  # fmt: skip
    (folder / "claims.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = dict.fromkeys((judge, *provers))
    spec: Mapping[str, Any] = {
        "name": "judged",
        "dataset": {"path": "claims.jsonl", **({"group_by": "topic"} if pairs else {})},
        "protocol": {
            "use": protocol,
            **({"max_message_rounds": 2, "verifier_first": False} if len(agents) > 1 else {}),
        },
        "prompts": "prompts",
        "models": {name: {"model": name, "base_url": base_url, "timeout": 2 * HANG_SECONDS} for name in names},
        "agents": {
            "verifier": {"model": judge},
            **dict(zip(agents, ({"model": model} for model in provers), strict=True)),
        },
        "rollouts": {"concurrency": 32},
    }
    path = folder / "spec.yaml"
    path.write_text(json.dumps(merge_changes(spec, changes)), "utf-8")
    return path
