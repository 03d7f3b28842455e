"""Runs the Python functions that select candidates (`best_of` with `function`), below the journal.

So a function runs once for each selection. Everything that reads a run takes the recorded result, and runs no code.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from threading import Thread
from typing import Any

from runner.base.errors import RunError
from runner.game.prompts.templates import PromptSet
from runner.models.client import Connection
from runner.models.interface import Choice, Completion, Request

SelectFunction = Callable[[list[str], dict[str, Any]], object]

MODEL = "function"
"""The name of the model in the records of these calls."""
TIME_LIMIT = 120.0
"""The maximum number of seconds of one selection."""
MAX_THREADS = 8
"""The maximum number of concurrent selections, which share the time of one CPU."""


def with_functions(connection: Connection, prompts: PromptSet) -> Connection:
    """Return a connection that answers the requests of selectors with the functions of the prompts."""
    functions = {name: _load(name, prompts.sources[name]) for name in prompts.functions}
    if not functions:
        return connection
    threads = asyncio.Semaphore(MAX_THREADS)

    async def complete(request: Request) -> Completion:
        name = request.sample.agent
        if name not in functions:
            return await connection.complete(request)
        arguments = json.loads(request.messages[0]["content"])
        async with threads:
            index = await _call_in_thread(name, functions[name], arguments)
        return Completion((Choice(str(index + 1), "stop"),), MODEL)

    return replace(connection, complete=complete)


def _load(name: str, source: str) -> SelectFunction:
    namespace: dict[str, Any] = {"__name__": name}
    try:
        exec(compile(source, _file(name), "exec"), namespace)  # noqa: S102 - the user's own, or allowed by the user
    except Exception as error:
        raise RunError(f"{_file(name)} fails when it is loaded: {_describe(name, error)}") from error
    function: SelectFunction = namespace["select"]
    return function


async def _call_in_thread(name: str, function: SelectFunction, arguments: Mapping[str, Any]) -> int:
    """Call `_call` in a thread that does not keep the process alive, because a thread cannot be stopped.

    Raises:
        RunError: the function fails, or exceeds `TIME_LIMIT`.
    """
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()  # otherwise, a cancelled future refuses the late result

    def run() -> None:
        try:
            future.set_result(_call(name, function, arguments))
        except BaseException as error:  # noqa: BLE001 - passed to the caller
            future.set_exception(error)

    Thread(target=run, name=f"select in {_file(name)}", daemon=True).start()
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), TIME_LIMIT)
    except TimeoutError:
        message = (
            f"select in {_file(name)} did not return within {TIME_LIMIT:g} seconds; correct or speed up the function"
        )
        raise RunError(message) from None


def _call(name: str, function: SelectFunction, arguments: Mapping[str, Any]) -> int:
    """Return the index that a function selects.

    Raises:
        RunError: the function fails, or returns no index of a candidate.
    """
    candidates = list(arguments["candidates"])
    try:
        index = function(list(candidates), dict(arguments["game"]))
    except Exception as error:
        raise RunError(f"select in {_file(name)} failed: {_describe(name, error)}") from error
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(candidates):
        raise RunError(f"select in {_file(name)} returned {index!r}; return an index from 0 to {len(candidates) - 1}")
    return index


def _file(name: str) -> str:
    return f"{name}.py"


def _describe(name: str, error: Exception) -> str:
    """Return an exception with its line in the user's file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _file(name)]
    line = f" (line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{line}"
