"""The bytes of a journal over those of the bodies that it keeps: at most 1.15, with answers as servers really give them.

python benchmarks/proofs/journal_size.py [--games 200] [--most 1.15]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import orjson
from shared import Claims, folder, measured

from tests.support.bodies import openai_body, tokens_of, vllm_body
from tests.support.processes import command
from tests.support.runs import journal_records, only_run
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file

ARGUMENT = "The loop ends before the last element is read, so that the largest input is lost. " * 6
SAID = ARGUMENT + "\n\nDecision: accept"
"""A short answer of a game: about a hundred words."""
REPEATS = 8


def bodies() -> dict[str, dict[str, Any]]:
    plain = vllm_body([SAID])
    for name in ("reasoning", "reasoning_content"):
        plain["choices"][0]["message"][name] = None
    plain["choices"][0]["logprobs"] = None
    probable = openai_body(SAID)
    probable["choices"][0]["logprobs"] = {"content": tokens_of(SAID, 4)}
    return {
        "OpenAI, short": openai_body(SAID),
        "OpenAI, short, with log-probabilities": probable,
        "vLLM, short": plain,
        "vLLM, with reasoning and log-probabilities": vllm_body([SAID]),
        "OpenAI, 60 KB": openai_body(SAID * 120),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--most", type=float, default=1.15)
    args = parser.parse_args()
    claims = Claims()
    for name, body in bodies().items():
        _one_each(claims, name, body, args.games, args.most)
    _shared(claims, args.games, args.most)
    return claims.end()


def _play(here: Path, reply: dict[str, Any], games: int, **changes: Any) -> tuple[Path, int]:
    """The folder of a run in which every answer is this one, and how many answers there were."""
    with serving(reply=reply) as server:
        spec_file(
            here, server.base_url, size=games, protocol={"use": "solo_verifier", "max_message_rounds": None},
            agents={"prover": None}, prompts="prompts/code_validation/solo_verifier", fine_tune=None, **changes,
        )  # fmt: skip
        done = measured(command("spec.yaml", "-q"), here)
        assert done.code == 0, done.err
        return only_run(here / "results"), server.requests


def _claim(claims: Claims, name: str, run: Path, body: dict[str, Any], calls: int, most: float) -> None:
    kept = [record["answer"] for record in journal_records(run) if "answer" in record]
    size, sent = (run / "journal.jsonl").stat().st_size, calls * len(orjson.dumps(body))
    told = f"{name}: {size} bytes of journal, {calls} bodies of {sent // calls} bytes: {size / sent:.3f}"
    claims(size <= most * sent and kept == [body] * calls, told)


def _one_each(claims: Claims, name: str, body: dict[str, Any], games: int, most: float) -> None:
    with folder() as here:
        run, calls = _play(here, body, games)
        _claim(claims, name, run, body, calls, most)


def _shared(claims: Claims, games: int, most: float) -> None:
    """One call for the answers of several repeats."""
    body = vllm_body([f"{number}. {SAID}" for number in range(REPEATS)])
    models, rollouts = {"m": {"share_prompts": True}}, {"per_datapoint": REPEATS}
    with folder() as here:
        run, calls = _play(here, body, games // REPEATS, models=models, rollouts=rollouts)
        _claim(claims, f"vLLM, {REPEATS} answers in one call", run, body, calls, most)


if __name__ == "__main__":
    sys.exit(main())
