"""The game of `benchmarks/engine.py` with LangGraph, Inspect and verifiers: `python games.py TOOL SITUATION`.

SITUATION is a JSON file with the address of the server, the number of games at the same time, and `games`: the first
messages of the prompt of each turn of each game. Prints the CPU seconds from the first call to the last byte
on disk. This file runs in an environment without nip-run.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

PlayGames = Callable[[], Any]


class State(TypedDict):
    """The state of LangGraph's graph."""

    starts: list[Any]
    texts: Annotated[list[str], operator.add]


def next_messages(starts: list[list[dict[str, str]]], texts: list[str]) -> list[dict[str, str]]:
    """Return the messages of the next turn: its own texts are the assistant's, the others the user's."""
    start, turn = starts[len(texts)], len(texts)
    roles = ("assistant" if (turn - index) % 2 == 0 else "user" for index in range(turn))
    return [*start[:1], *({"role": role, "content": text} for role, text in zip(roles, texts, strict=True)), *start[1:]]


def prepare_langgraph(base_url: str, concurrency: int, games: list[Any]) -> PlayGames:
    """Prepare a graph with a node for each player, and LangChain's OpenAI model."""
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, StateGraph

    model = ChatOpenAI(model="tiny", base_url=base_url, api_key="none", max_retries=0)

    async def speak(state: State) -> dict[str, list[str]]:
        answer = await model.ainvoke(next_messages(state["starts"], state["texts"]))
        return {"texts": [answer.content]}

    graph = StateGraph(State)
    graph.add_node("verifier", speak)
    graph.add_node("prover", speak)
    graph.add_edge(START, "verifier")
    graph.add_edge("prover", "verifier")
    graph.add_conditional_edges(
        "verifier", lambda state: END if len(state["texts"]) == len(state["starts"]) else "prover"
    )
    app = graph.compile()
    inputs = [{"starts": starts, "texts": []} for starts in games]
    return lambda: asyncio.run(app.abatch(inputs, config={"max_concurrency": concurrency}))


def prepare_inspect(base_url: str, concurrency: int, games: list[Any]) -> PlayGames:
    """Prepare a task with its own solver, which writes Inspect's log."""
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import solver

    kinds = {"user": ChatMessageUser, "assistant": ChatMessageAssistant}

    @solver
    def play() -> Any:
        async def solve(state: Any, _: Any) -> Any:
            texts: list[str] = []
            for _ in state.metadata["starts"]:
                messages = next_messages(state.metadata["starts"], texts)
                state.messages = [kinds[message["role"]](content=message["content"]) for message in messages]
                state.output = await get_model().generate(state.messages)
                texts.append(state.output.completion)
            return state

        return solve

    samples = [Sample(input="", target="accept", id=i, metadata={"starts": starts}) for i, starts in enumerate(games)]
    task = inspect_ai.Task(dataset=MemoryDataset(samples), solver=play(), scorer=match())
    model = get_model("openai/tiny", base_url=base_url, api_key="none", responses_api=False)

    def work() -> None:
        (log,) = inspect_ai.eval(
            task, model=model, log_dir="log", display="none", max_samples=concurrency, max_connections=concurrency
        )
        assert log.status == "success", log.error

    return work


def prepare_verifiers(base_url: str, concurrency: int, games: list[Any]) -> PlayGames:
    """Prepare an environment with two agents, and a harness in the same process."""
    import verifiers_game
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    os.environ["NO_KEY"] = "none"
    verifiers_game.GAMES.extend(games)
    config = EvalConfig(
        env={"taskset": {"id": "verifiers_game"}}, model="tiny", push=False, rich=None, max_concurrent=concurrency,
        client={"type": "eval", "base_url": base_url, "api_key_var": "NO_KEY"},
    )  # fmt: skip

    def work() -> None:
        episodes = asyncio.run(run_eval(config))
        assert all(episode.ok for episode in episodes), episodes[0].errors

    return work


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    usages = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    tool, situation = sys.argv[1], json.loads(Path(sys.argv[2]).read_bytes())
    sys.stdout = sys.stderr
    work = {"langgraph": prepare_langgraph, "inspect": prepare_inspect, "verifiers": prepare_verifiers}[tool](
        **situation
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        before = cpu_seconds()
        work()
        print(json.dumps({"cpu": cpu_seconds() - before}), file=sys.__stdout__)
        os.chdir("/")


if __name__ == "__main__":
    main()
