"""The game of `benchmarks/engine.py` with LangGraph, Inspect and verifiers: `python games.py TOOL SITUATION`.

SITUATION is a JSON file with the address of the server, the number of games at the same time, and `games`: for each
turn of each game, the messages that its prompt starts with. Prints the CPU seconds from the first call to the last byte
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

Work = Callable[[], Any]


class State(TypedDict):
    """The state of LangGraph's graph."""

    starts: list[Any]
    said: Annotated[list[str], operator.add]


def chat(starts: list[list[dict[str, str]]], said: list[str]) -> list[dict[str, str]]:
    """Return the messages of the next turn: its own texts are the assistant's, the others the user's."""
    start, turn = starts[len(said)], len(said)
    roles = ("assistant" if (turn - index) % 2 == 0 else "user" for index in range(turn))
    return [*start[:1], *({"role": role, "content": text} for role, text in zip(roles, said, strict=True)), *start[1:]]


def langgraph(base_url: str, concurrency: int, games: list[Any]) -> Work:
    """A graph with a node for each player, and LangChain's model of OpenAI."""
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, StateGraph

    model = ChatOpenAI(model="tiny", base_url=base_url, api_key="none", max_retries=0)

    async def speak(state: State) -> dict[str, list[str]]:
        answer = await model.ainvoke(chat(state["starts"], state["said"]))
        return {"said": [answer.content]}

    graph = StateGraph(State)
    graph.add_node("verifier", speak)
    graph.add_node("prover", speak)
    graph.add_edge(START, "verifier")
    graph.add_edge("prover", "verifier")
    graph.add_conditional_edges(
        "verifier", lambda state: END if len(state["said"]) == len(state["starts"]) else "prover"
    )
    app = graph.compile()
    inputs = [{"starts": starts, "said": []} for starts in games]
    return lambda: asyncio.run(app.abatch(inputs, config={"max_concurrency": concurrency}))


def inspect(base_url: str, concurrency: int, games: list[Any]) -> Work:
    """A task with a solver of its own, which writes Inspect's log."""
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import solver

    kinds = {"user": ChatMessageUser, "assistant": ChatMessageAssistant}

    @solver
    def play() -> Any:
        async def solve(state: Any, _: Any) -> Any:
            said: list[str] = []
            for _ in state.metadata["starts"]:
                messages = chat(state.metadata["starts"], said)
                state.messages = [kinds[message["role"]](content=message["content"]) for message in messages]
                state.output = await get_model().generate(state.messages)
                said.append(state.output.completion)
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


def verifiers(base_url: str, concurrency: int, games: list[Any]) -> Work:
    """An environment with two seats, and a harness in the same process."""
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


def cpu() -> float:
    """CPU seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    tool, situation = sys.argv[1], json.loads(Path(sys.argv[2]).read_bytes())
    sys.stdout = sys.stderr
    work = {"langgraph": langgraph, "inspect": inspect, "verifiers": verifiers}[tool](**situation)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        before = cpu()
        work()
        print(json.dumps({"cpu": cpu() - before}), file=sys.__stdout__)
        os.chdir("/")


if __name__ == "__main__":
    main()
