"""Protocols, agents and games from the flat inputs of a reference case."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from runner.base.errors import TransientError
from runner.documents.dataclass_schema import from_plain
from runner.game.prompts.templates import LAST_ROUND, PromptSet, template_names
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import FinishedGame, PendingTurn, play
from runner.game.protocols.schema import Parameters
from runner.game.protocols.tree_shape import TreeShape
from runner.models.interface import Choice, Completion, Request
from runner.rollouts.agents.whole_agent import AgentRuntime, Observation, OpenAiWholeAgent
from runner.rollouts.engine import Engine
from runner.rollouts.job import Job
from runner.rollouts.rollout import Rollout
from runner.spec.datasets.loader import Datapoint
from runner.spec.experiment import Experiment

HERE = Path(__file__).resolve().parent
SYSTEM = (
    "SYSTEM agent={{ agent }} question={{ question }} solution={{ solution }} "
    "max_response_words={{ max_response_words }} stance={{ stance }}"
)


FILES = (
    "ei_selection", "fine_tune_dpo", "fine_tune_sft", "malt_stats", "parse", "prompts", "protocol_tables",
    "prover_stance", "rewards", "rollouts", "stats", "timesteps_sft",
)  # fmt: skip
"""Files of cases that have tests."""

KINDS = {"ei_selection": ("select_rollouts", "guess_replacement_proportion", "fine_tune_stage")}
"""Kinds of cases, for files with several kinds."""

DEFECTS = frozenset({
    "mnip-ignores-its-own-round-limits", "max-verifier-questions-is-not-the-number-of-verifier-turns",
    "mnip-provers-rewarded-as-opponents", "forced-guess-scored-against-unforced-decision",
    "history-truncated-at-silent-round", "prover-text-scanned-for-decision", "offsets-from-lowercased-text",
    "empty-fill-writes-to-every-channel", "last-round-message-missing-from-processed-transcript",
    "malt-inner-reward-counted-once-per-node", "malt-crashes-with-merlin-arthur", "round-argument-is-ignored",
    "transport-retries-are-ours",
})  # fmt: skip
"""Defects of the original: their cases are skipped, and replaced by other tests."""


def cases_folder() -> Path:
    """Return the folder in NIP_REFERENCE_CASES, the shared folder next to the checkout, or the copy in this folder."""
    configured = os.environ.get("NIP_REFERENCE_CASES")
    shared = HERE.parents[2] / "shared" / "reference"
    return Path(configured) if configured else shared if shared.is_dir() else HERE / "cases"


@cache
def _load(name: str) -> list[dict[str, Any]]:
    path = cases_folder() / f"{name}.json"
    return json.loads(path.read_text("utf-8"))["cases"] if path.is_file() else []


def cases(name: str, *, faulty: bool = False) -> list[dict[str, Any]]:
    """Return the cases of a file without defects, or those with defects if `faulty` is true."""
    return [case for case in _load(name) if bool(case.get("defects")) == faulty]


def find_unused_cases(folder: Path) -> list[str]:
    """Return the files, kinds of cases and defects in a folder that no test knows."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and path.name != "README.md")
    known_names = [name for name in names if name.removesuffix(".json") in FILES and name.endswith(".json")]
    problems = [f"{name}: no test knows it" for name in names if name not in known_names]
    for name in known_names:
        rows = json.loads((folder / name).read_text("utf-8"))["cases"]
        kinds = KINDS.get(name.removesuffix(".json"), (None,))
        problems.extend(f"{name}: kind {row.get('kind')!r}" for row in rows if row.get("kind") not in kinds)
        problems.extend(
            f"{name}: defect {label!r}" for row in rows for label in {*(row.get("defects") or ())} - DEFECTS
        )
        problems.extend([] if rows else [f"{name}: no case"])
    return problems if known_names else [*problems, f"{folder}: no file of cases"]


@cache
def _protocol(name: str, parameters: tuple[tuple[str, Any], ...]) -> Protocol:
    fixed = load_protocol(name).file.fixed
    return load_protocol(name, {key: value for key, value in parameters if key not in fixed})


def load_case_protocol(config: Mapping[str, Any]) -> Protocol:
    parameter_names = {field.name for field in fields(Parameters)}
    return _protocol(config["protocol"], tuple((k, v) for k, v in config.items() if k in parameter_names))


def create_agents(config: Mapping[str, Any]) -> dict[str, OpenAiWholeAgent]:
    protocol = load_case_protocol(config)
    attempts = config["num_invalid_generation_retries"]
    experiment = from_plain(
        Experiment,
        {
            "name": "reference",
            "dataset": {"path": "none"},
            "protocol": {"use": config["protocol"]},
            "prompts": "none",
            "models": {"scripted": {"provider": "dummy"}},
            "agents": {
                name: {"model": "scripted", "max_response_words": config["max_response_words"]}
                for name in protocol.agent_names
            },
            "retry": {"invalid_response": {"attempts": attempts}, "refused": {"attempts": attempts}},
        },
    )
    sources = {name: "LAST ROUND" if name.endswith(LAST_ROUND) else SYSTEM for name in template_names(protocol)}
    runtime = AgentRuntime(PromptSet(sources))
    return {name: OpenAiWholeAgent(experiment, runtime, name, protocol) for name in protocol.agent_names}


class Script:
    """A model that returns the completions of a case, and repeats the last one."""

    def __init__(self, completions: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> None:
        self._completions = completions
        self._position: dict[tuple[str, int], int] = {}
        self.calls: list[list[Any]] = []

    async def complete(self, request: Request) -> Completion:
        """Return the next scripted answer. Retry a scripted transport failure, as the layer below an agent does."""
        agent, round_ = request.sample.agent, request.sample.round
        attempts = self._completions[agent][str(round_)]
        while True:
            index = self._position.get((agent, round_), 0)
            self._position[agent, round_] = index + 1
            self.calls.append([agent, round_])
            attempt = attempts[min(index, len(attempts) - 1)]
            if "api_error" in attempt:
                if index >= len(attempts) - 1:
                    raise TransientError(attempt["api_error"])
                continue
            return Completion((Choice(attempt["text"], attempt["finish_reason"]),), "scripted")


def play_scripted_game(
    case: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[FinishedGame, Script, list[dict[str, Any]]]:
    """Play a case's game with the real agents; also return the script and each round's prompts."""
    import asyncio

    agents, protocol, point = create_agents(config), load_case_protocol(config), case["datapoint"]
    script = Script(case["completions"])
    prompts: list[dict[str, Any]] = []
    game = play(protocol, seed=case["seed"], label=point["y"], prover_stance=point["prover_stance"])

    async def reply(turn: PendingTurn) -> dict[str, Any]:
        replies, chats = {}, {}
        for name in protocol.agent_names:
            if name not in turn.speakers:
                continue
            observation = Observation(
                turn.round,
                turn.rounds,
                {"question": point["question"], "solution": point["solution"]},
                case["seed"],
                point["prover_stance"],
            )
            chats[name] = agents[name].prompt(observation)
            replies[name] = await agents[name].respond(observation, script.complete)
        prompts.append(chats)
        return replies

    try:
        turn = next(game)
        while True:
            turn = game.send(asyncio.run(reply(turn)))
    except StopIteration as end:
        return end.value, script, prompts


def list_class_names(error: BaseException) -> Iterator[str]:
    """Return the names of an exception's class and its base classes."""
    return (cls.__name__ for cls in type(error).__mro__)


class TreeScript:
    """A model that returns the completions of a case at each node of a response tree."""

    def __init__(self, completions: Mapping[str, Mapping[str, list[dict[str, Any]]]], shape: TreeShape) -> None:
        self._completions = completions
        self._shape = shape
        self.calls: list[list[str]] = []

    async def complete(self, request: Request) -> Completion:
        sample = request.sample
        path = format_path(self._shape.path(sample.repeat)[: sample.round + 1])
        self.calls.append([sample.agent, path])
        attempt = self._completions[sample.agent][path][sample.attempt]
        return Completion((Choice(attempt["text"], attempt["finish_reason"]),), "scripted")


def format_path(path: tuple[int, ...]) -> str:
    """Return a path in the notation of the cases."""
    return ".".join(map(str, path))


def scripted_tree(case: Mapping[str, Any]) -> tuple[list[Rollout], TreeScript, TreeShape]:
    """Play a case's tree with the real agents and the real engine."""
    import asyncio

    protocol, point = load_case_protocol(case["config"]), case["datapoint"]
    shape = TreeShape(case["num_responses_per_timestep"], protocol.max_message_rounds)
    script = TreeScript(case["completions"], shape)

    class Point(Datapoint):
        prover_stance = point["prover_stance"]

    datapoint = Point(str(point["id"]), point["y"], {"question": point["question"], "solution": point["solution"]})
    engine = Engine(
        protocol,
        create_agents(case["config"]),
        script.complete,
        tree_shape=shape,
        job_of_branch=lambda job, repeat: replace(job, repeat=repeat),
    )
    return asyncio.run(engine.play(Job(0, "tree", datapoint, 0, case["seed"]))), script, shape
