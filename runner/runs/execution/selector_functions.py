"""Runs the Python functions that select candidates (`best_of` with `function`) or label answers, below the journal.

So a function runs once for each selection or label. Everything that reads a run takes the recorded result.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

from runner.base.errors import CheckerError, RunError
from runner.base.text import in_one_line, shortened
from runner.game.prompts.templates import CHECKER
from runner.game.protocols.checkers import CheckerSettings
from runner.models.client import Connection
from runner.models.interface import Choice, Completion, Request
from runner.rollouts.agents.function_checkers import checker_name
from runner.spec.loader import Spec

UserFunction = Callable[[Any, Any], object]

MODEL = "function"
"""The name of the model in the records of these calls."""
TIME_LIMIT = 120.0
"""The maximum number of seconds of one call of a function."""
MAX_THREADS = 8
"""The maximum number of concurrent calls, which share the time of one CPU."""
MAX_QUOTED = 120
"""Maximum number of characters of an answer in a message."""


class _NamedFunction(NamedTuple):
    """A function of the user."""

    name: str
    """The name for messages."""
    call: Callable[[Mapping[str, Any]], str]
    """Calls the function with the arguments of a request, and returns the answer."""
    error: type[CheckerError | RunError]
    """The error of a call that takes too long."""


def with_functions(connection: Connection, spec: Spec) -> Connection:
    """Return a connection that answers the requests of selectors and checkers with the functions of the prompts."""
    checker, sources = spec.experiment.dataset.checker, spec.prompts.sources
    functions: dict[str, _NamedFunction] = {}
    for source in spec.prompts.functions:
        if checker is not None and source == checker.source_name:
            check = partial(_check, checker, _load(source, sources[source], checker.function_name or ""))
            function = _NamedFunction(f"the checker {checker.function}", check, CheckerError)
            functions |= {checker_name(agent): function for agent in spec.protocol.stating_provers}
        else:
            select = partial(_select, source, _load(source, sources[source], "select"))
            functions[source] = _NamedFunction(f"select in {_file(source)}", select, RunError)
    if not functions:
        return connection
    threads = asyncio.Semaphore(MAX_THREADS)

    async def complete(request: Request) -> Completion:
        name = request.sample.agent
        if name not in functions:
            return await connection.complete(request)
        arguments = json.loads(request.messages[0]["content"])
        async with threads:
            answer = await _call_in_thread(functions[name], arguments)
        return Completion((Choice(answer, "stop"),), MODEL)

    return replace(connection, complete=complete)


def _load(name: str, source: str, function_name: str) -> UserFunction:
    namespace: dict[str, Any] = {"__name__": name}
    try:
        exec(compile(source, _file(name), "exec"), namespace)  # noqa: S102 - the user's own, or allowed by the user
    except (Exception, SystemExit) as error:
        raise RunError(f"{_file(name)} fails when it is loaded: {_describe(name, error)}") from error
    function: UserFunction = namespace[function_name]
    return function


async def _call_in_thread(function: _NamedFunction, arguments: Mapping[str, object]) -> str:
    """Call a function in a thread that does not keep the process alive, because a thread cannot be stopped.

    Raises:
        RunError, CheckerError: the function fails, or exceeds `TIME_LIMIT`.
    """
    future: Future[str] = Future()
    future.set_running_or_notify_cancel()  # otherwise, a cancelled future refuses the late result

    def run() -> None:
        try:
            future.set_result(function.call(arguments))
        except BaseException as error:  # noqa: BLE001 - passed to the caller
            future.set_exception(error)

    Thread(target=run, name=function.name, daemon=True).start()
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), TIME_LIMIT)
    except TimeoutError:
        message = f"{function.name} did not return within {TIME_LIMIT:g} seconds; correct or speed up the function"
        raise function.error(message) from None


def _check(checker: CheckerSettings, function: UserFunction, arguments: Mapping[str, Any]) -> str:
    """Return the label that a function gives an answer or a sub-claim.

    Raises:
        CheckerError: the function fails, or returns something else than True or False.
    """
    text, name = arguments["text"], checker.source_name or ""
    subject = f"the checker {checker.function} failed on {shortened(in_one_line(text), MAX_QUOTED)!r}"
    try:
        is_right = function(text, dict(arguments["columns"]))
    except (Exception, SystemExit) as error:
        raise CheckerError(f"{subject}: {_describe(name, error)}") from error
    if not isinstance(is_right, bool):
        raise CheckerError(f"{subject}: it returned {is_right!r}; return True or False")
    return f"Label: {int(is_right)}"


def _select(name: str, function: UserFunction, arguments: Mapping[str, Any]) -> str:
    """Return the number of the candidate that a function selects.

    Raises:
        RunError: the function fails, or returns no index of a candidate.
    """
    candidates = list(arguments["candidates"])
    try:
        index = function(list(candidates), dict(arguments["game"]))
    except (Exception, SystemExit) as error:
        raise RunError(f"select in {_file(name)} failed: {_describe(name, error)}") from error
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(candidates):
        raise RunError(f"select in {_file(name)} returned {index!r}; return an index from 0 to {len(candidates) - 1}")
    return str(index + 1)


def _file(name: str) -> str:
    return f"{name.removesuffix(CHECKER)}.py"


def _describe(name: str, error: BaseException) -> str:
    """Return an exception with its line in the user's file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _file(name)]
    line = f" (line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{line}"
