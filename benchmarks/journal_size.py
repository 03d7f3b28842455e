"""Check that a journal is at most 1.2 times as large as the response bodies in it, for answers of a hundred words.

A record adds at most 200 bytes to its body: the keys of the request and the game, the latency, and the cost of the
call. So the ratio is above 1.2 for answers of a few words.

python benchmarks/journal_size.py [--games 200] [--most 1.2]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import orjson
from common import measure_process, temporary_folder

from tests.support.processes import command
from tests.support.response_bodies import make_logprobs, openai_body, vllm_body
from tests.support.runs import journal_records, only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

ARGUMENT = "The loop ends before the last element is read, so that the largest input is lost. " * 6
SHORT_ANSWER = ARGUMENT + "\n\nDecision: accept"
"""A short answer of a game: about a hundred words."""
VERDICT = "Decision: accept"
"""The shortest answer."""
REPEATS = 8
MAX_OVERHEAD = 200
"""The most bytes that a record adds to its body."""


def create_plain_body(*texts: str) -> dict[str, Any]:
    """Return a response body of vLLM without reasoning and log-probabilities."""
    body = vllm_body(texts)
    for choice in body["choices"]:
        choice["message"].update(reasoning=None, reasoning_content=None, tool_calls=[])
        choice.update(logprobs=None, token_ids=None)
    return body


def create_bodies() -> dict[str, dict[str, Any]]:
    body_with_logprobs = openai_body(SHORT_ANSWER)
    body_with_logprobs["choices"][0]["logprobs"] = {"content": make_logprobs(SHORT_ANSWER, 4)}
    return {
        "OpenAI, short": openai_body(SHORT_ANSWER),
        "OpenAI, short, with log-probabilities": body_with_logprobs,
        "vLLM, short": create_plain_body(SHORT_ANSWER),
        "vLLM, with reasoning and log-probabilities": vllm_body([SHORT_ANSWER]),
        "OpenAI, 60 KB": openai_body(SHORT_ANSWER * 120),
    }


def create_minimal_body(text: str) -> dict[str, Any]:
    """Return a response body without optional fields."""
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
    for name, body in create_bodies().items():
        with temporary_folder() as here:
            run, calls = _play_run(here, body, args.games)
            _check_ratio(check, name, _measure_sizes(run, body, calls), args.most)
    for name, body in {
        "OpenAI, a verdict alone": openai_body(VERDICT),
        "the leanest": create_minimal_body(VERDICT),
    }.items():
        with temporary_folder() as here:
            run, calls = _play_run(here, body, args.games)
            _check_overhead(check, name, _measure_sizes(run, body, calls), calls, args.most)
    body = create_plain_body(*(f"{number}. {SHORT_ANSWER}" for number in range(REPEATS)))
    models, rollouts = {"m": {"share_prompts": True}}, {"per_datapoint": REPEATS}
    with temporary_folder() as here:
        run, calls = _play_run(here, body, args.games // REPEATS, models=models, rollouts=rollouts)
        _check_ratio(check, f"vLLM, {REPEATS} answers in one call", _measure_sizes(run, body, calls), args.most)
    return check.exit_code()


def _play_run(here: Path, reply: dict[str, Any], games: int, **changes: Any) -> tuple[Path, int]:
    """Play a run whose answers are all this reply. Return its folder and the number of answers."""
    with run_chat_server(reply=reply) as server:
        spec_file(
            here, server.base_url, size=games, protocol={"use": "solo_verifier", "max_message_rounds": None},
            agents={"prover": None}, prompts="prompts/code_validation/solo_verifier", fine_tune=None, **changes,
        )  # fmt: skip
        process = measure_process(command("spec.yaml", "-q"), here)
        assert process.code == 0, process.err
        return only_run(here / "results"), server.requests


def _measure_sizes(run: Path, body: dict[str, Any], calls: int) -> tuple[int, int, bool]:
    """Return the bytes of a run's journal and of the bodies, and whether the journal has each body."""
    stored_bodies = [record["answer"] for record in journal_records(run) if "answer" in record]
    return (run / "journal.jsonl").stat().st_size, calls * len(orjson.dumps(body)), stored_bodies == [body] * calls


def _check_ratio(check: SoftAssertions, name: str, sizes: tuple[int, int, bool], max_ratio: float) -> None:
    journal_bytes, body_bytes, has_all_bodies = sizes
    check(
        journal_bytes <= max_ratio * body_bytes and has_all_bodies,
        f"{name}: {journal_bytes} bytes of journal, {body_bytes} of bodies: {journal_bytes / body_bytes:.3f}",
    )


def _check_overhead(
    check: SoftAssertions, name: str, sizes: tuple[int, int, bool], calls: int, max_ratio: float
) -> None:
    """Check the bytes around each body, and print the smallest body that keeps the ratio within its limit."""
    journal_bytes, body_bytes, has_all_bodies = sizes
    overhead = (journal_bytes - body_bytes) / calls
    check(
        overhead <= MAX_OVERHEAD and has_all_bodies,
        f"{name}: {body_bytes / calls:.0f} bytes a body, {overhead:.0f} around it: {journal_bytes / body_bytes:.3f}; "
        f"at most {max_ratio} from {overhead / (max_ratio - 1):.0f} bytes on",
    )


if __name__ == "__main__":
    sys.exit(main())
