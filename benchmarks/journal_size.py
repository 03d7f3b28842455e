"""The size of a journal over the size of the response bodies in it: at most 1.2 for answers of a hundred words.

A record has at most 200 bytes besides its body: the keys of the request and the game, the latency, and what the call
was charged. So the ratio is above 1.2 for answers of a few words.

python benchmarks/journal_size.py [--games 200] [--most 1.2]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import orjson
from common import measured, temporary_folder

from tests.support.processes import command
from tests.support.response_bodies import make_logprobs, openai_body, vllm_body
from tests.support.runs import journal_records, only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

ARGUMENT = "The loop ends before the last element is read, so that the largest input is lost. " * 6
SAID = ARGUMENT + "\n\nDecision: accept"
"""A short answer of a game: about a hundred words."""
VERDICT = "Decision: accept"
"""The shortest."""
REPEATS = 8
MOST_AROUND = 200
"""Bytes of a record around a body."""


def plain(*texts: str) -> dict[str, Any]:
    """An answer of vLLM without reasoning and log-probabilities."""
    body = vllm_body(texts)
    for choice in body["choices"]:
        choice["message"].update(reasoning=None, reasoning_content=None, tool_calls=[])
        choice.update(logprobs=None, token_ids=None)
    return body


def bodies() -> dict[str, dict[str, Any]]:
    probable = openai_body(SAID)
    probable["choices"][0]["logprobs"] = {"content": make_logprobs(SAID, 4)}
    return {
        "OpenAI, short": openai_body(SAID),
        "OpenAI, short, with log-probabilities": probable,
        "vLLM, short": plain(SAID),
        "vLLM, with reasoning and log-probabilities": vllm_body([SAID]),
        "OpenAI, 60 KB": openai_body(SAID * 120),
    }


def lean(text: str) -> dict[str, Any]:
    """An answer with nothing beside it that a server may leave out."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-3f1c", "object": "chat.completion", "created": 1_790_000_000, "model": "tiny",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 80, "completion_tokens": 4, "total_tokens": 84},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--most", type=float, default=1.2)
    args = parser.parse_args()
    check = SoftAssertions()
    for name, body in bodies().items():
        with temporary_folder() as here:
            run, calls = _play(here, body, args.games)
            _claim(check, name, _sizes(run, body, calls), args.most)
    for name, body in {"OpenAI, a verdict alone": openai_body(VERDICT), "the leanest": lean(VERDICT)}.items():
        with temporary_folder() as here:
            run, calls = _play(here, body, args.games)
            _tell_around(check, name, _sizes(run, body, calls), calls, args.most)
    body = plain(*(f"{number}. {SAID}" for number in range(REPEATS)))
    models, rollouts = {"m": {"share_prompts": True}}, {"per_datapoint": REPEATS}
    with temporary_folder() as here:
        run, calls = _play(here, body, args.games // REPEATS, models=models, rollouts=rollouts)
        _claim(check, f"vLLM, {REPEATS} answers in one call", _sizes(run, body, calls), args.most)
    return check.exit_code()


def _play(here: Path, reply: dict[str, Any], games: int, **changes: Any) -> tuple[Path, int]:
    """The folder of a run in which every answer is this one, and how many answers there were."""
    with run_chat_server(reply=reply) as server:
        spec_file(
            here, server.base_url, size=games, protocol={"use": "solo_verifier", "max_message_rounds": None},
            agents={"prover": None}, prompts="prompts/code_validation/solo_verifier", fine_tune=None, **changes,
        )  # fmt: skip
        done = measured(command("spec.yaml", "-q"), here)
        assert done.code == 0, done.err
        return only_run(here / "results"), server.requests


def _sizes(run: Path, body: dict[str, Any], calls: int) -> tuple[int, int, bool]:
    """The bytes of a run's journal, those of the bodies that it was sent, and whether it holds each."""
    kept = [record["answer"] for record in journal_records(run) if "answer" in record]
    return (run / "journal.jsonl").stat().st_size, calls * len(orjson.dumps(body)), kept == [body] * calls


def _claim(check: SoftAssertions, name: str, sizes: tuple[int, int, bool], most: float) -> None:
    journal, sent, holds = sizes
    check(
        journal <= most * sent and holds, f"{name}: {journal} bytes of journal, {sent} of bodies: {journal / sent:.3f}"
    )


def _tell_around(check: SoftAssertions, name: str, sizes: tuple[int, int, bool], calls: int, most: float) -> None:
    """What there is around each body, and from which size of body on that is little enough."""
    journal, sent, holds = sizes
    around = (journal - sent) / calls
    check(
        around <= MOST_AROUND and holds,
        f"{name}: {sent / calls:.0f} bytes a body, {around:.0f} around it: {journal / sent:.3f}; at most {most} from "
        f"{around / (most - 1):.0f} bytes on",
    )


if __name__ == "__main__":
    sys.exit(main())
