"""Serve checkpoints in OpenAI's chat format: python server.py --port 8137

A model's name is the path of its checkpoint, such as ./models/0/start/verifier.pt, in the folder where the server was
started. The server loads it for the first request, so a new model can be served once its trainer has written it.

The server answers requests in batches if they are for the same model and their prompts have the same length. An answer
depends only on the checkpoint's path, the chat, the settings and the number of equal requests before. So with the same
requests, a restarted server gives the same answers, also at temperature 1.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import socket
import time
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from aiohttp import web
from transformer import TOKENS, Answer, Sampling, Transformer, encode_chat, generate, load

ROWS = 32
"""The number of answers in a batch. Smaller batches are filled up, because logits depend on the size of a batch."""
MAX_PROMPT, MAX_TOKENS, MAX_ANSWERS = 2000, 64, 16


class Refusal(Exception):
    """A request that cannot be answered, with the status and the message of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Job(NamedTuple):
    """One answer that is to be generated."""

    model: str
    prompt: tuple[int, ...]
    settings: Sampling
    answer: asyncio.Future[Answer]


@lru_cache(maxsize=64)
def _load(path: Path, _changed: int) -> Transformer:
    return load(path)


class Server:
    """Answers requests with the checkpoints in one folder."""

    def __init__(self, folder: Path, aliases: Mapping[str, str], log: TextIO | None = None) -> None:
        self._folder, self._aliases, self._log = folder.resolve(), aliases, log
        self._queue = asyncio.Queue[Job]()
        self._requests = Counter[str]()

    def _model(self, name: str) -> Transformer:
        path = self._path(name)
        if path.suffix != ".pt" or not path.is_relative_to(self._folder) or not path.is_file():
            raise Refusal(404, f"There is no model {name!r} in {self._folder}; GET /v1/models lists the models.")
        return _load(path, path.stat().st_mtime_ns)

    def _path(self, name: str) -> Path:
        return (self._folder / self._aliases.get(name, name)).resolve()

    async def run_batches(self, _app: web.Application) -> Any:
        """Generate answers while the server is running."""
        task = asyncio.create_task(self._run_batches())
        yield
        task.cancel()

    async def _run_batches(self) -> None:
        waiting = list[Job]()
        while True:
            waiting += [] if waiting else [await self._queue.get()]
            await asyncio.sleep(0.005)  # for requests that come at the same time
            while not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            first = waiting[0]
            alike = [job for job in waiting if job.model == first.model and len(job.prompt) == len(first.prompt)][:ROWS]
            waiting = [job for job in waiting if job not in alike]
            filled = [*alike, *[first] * (ROWS - len(alike))]
            try:
                answers = await asyncio.to_thread(
                    generate, self._model(first.model), [job.prompt for job in filled], [job.settings for job in filled]
                )
            except Exception as error:  # noqa: BLE001 - the request fails, and the server goes on
                answers = [error] * len(alike)
            for job, answer in zip(alike, answers, strict=False):
                if job.answer.done():  # the client has disconnected
                    continue
                if isinstance(answer, Exception):
                    job.answer.set_exception(answer)
                else:
                    job.answer.set_result(answer)

    async def list_models(self, _request: web.Request) -> web.Response:
        names = sorted(f"./{path.relative_to(self._folder)}" for path in self._folder.rglob("*.pt"))
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def complete(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.read())
            jobs = self._jobs(body)
            for job in jobs:
                self._queue.put_nowait(job)
            answers = await asyncio.gather(*[job.answer for job in jobs])
        except Refusal as refusal:
            return _error(refusal.status, str(refusal))
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, f"The request is not valid: {error!r}")
        response = _response(body, len(jobs[0].prompt), answers)
        if self._log:
            print(json.dumps({"request": body, "response": response}), file=self._log, flush=True)
        return web.json_response(response)

    def _jobs(self, body: dict[str, Any]) -> list[Job]:
        name, chat, count = str(body["model"]), body["messages"], int(body.get("n") or 1)
        self._model(name)
        prompt = tuple(encode_chat(chat))
        max_tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or MAX_TOKENS)
        if int(body.get("top_logprobs") or 0) > len(TOKENS):
            raise Refusal(400, f"top_logprobs is above {len(TOKENS)}, the number of tokens.")
        if not (1 <= max_tokens <= MAX_TOKENS and 1 <= count <= MAX_ANSWERS and len(prompt) <= MAX_PROMPT):
            limits = f"{MAX_TOKENS} tokens of an answer, {MAX_ANSWERS} answers, {MAX_PROMPT} tokens of a prompt"
            raise Refusal(400, f"The request is above a limit: {limits}.")
        temperature = float(1 if body.get("temperature") is None else body["temperature"])
        checkpoint = f"./{self._path(name).relative_to(self._folder)}"  # the same for an alias of the model
        key = _digest([checkpoint, chat, max_tokens, temperature, body.get("seed")])
        self._requests[key] += 1
        loop, seeds = asyncio.get_running_loop(), [_digest([key, self._requests[key], i]) for i in range(count)]
        settings = [Sampling(max_tokens, temperature, int(seed[:15], 16)) for seed in seeds]
        return [Job(name, prompt, setting, loop.create_future()) for setting in settings]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=status)


def _response(body: dict[str, Any], prompt_tokens: int, answers: list[Answer]) -> dict[str, Any]:
    top = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": "".join(TOKENS[token] for token in answer.tokens)},
            "finish_reason": "stop" if answer.is_complete else "length",
            "logprobs": None if top is None else {"content": _log_probabilities(answer, top)},
        }
        for index, answer in enumerate(answers)
    ]
    answer_tokens = sum(len(answer.tokens) + answer.is_complete for answer in answers)
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answer_tokens,
        "total_tokens": prompt_tokens + answer_tokens,
    }
    facts = {"id": "chatcmpl-" + _digest([body, time.time()])[:16], "object": "chat.completion"}
    return {**facts, "created": int(time.time()), "model": body["model"], "choices": choices, "usage": usage}


def _log_probabilities(answer: Answer, top: int) -> list[dict[str, Any]]:
    """Return the log-probability of each token of an answer, and of the `top` most likely tokens in its place."""
    content = []
    for token, row in zip(answer.tokens, answer.log_probabilities, strict=True):
        likely = row.topk(top).indices.tolist()
        content.append({**_entry(token, row), "top_logprobs": [_entry(alternative, row) for alternative in likely]})
    return content


def _entry(token: int, log_probabilities: torch.Tensor) -> dict[str, Any]:
    string = TOKENS[token]
    return {"token": string, "logprob": log_probabilities[token].item(), "bytes": list(string.encode())}


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the checkpoints in this folder.")
    parser.add_argument("--port", type=int, default=8137, help="0: any free port; the server prints its address")
    parser.add_argument("--log", type=argparse.FileType("a"), help="a file for each request and its response, as JSONL")
    parser.add_argument(
        "--alias", action="append", default=[], metavar="NAME=FILE", help="another name of a checkpoint; repeatable"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    aliases = dict(alias.split("=", 1) for alias in args.alias)
    server, app = Server(Path(), aliases, args.log), web.Application()
    app.cleanup_ctx.append(server.run_batches)
    app.add_routes([web.get("/v1/models", server.list_models), web.post("/v1/chat/completions", server.complete)])
    listener = socket.create_server(("127.0.0.1", args.port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
    web.run_app(app, sock=listener, access_log=None, print=lambda *_: None)


if __name__ == "__main__":
    main()
