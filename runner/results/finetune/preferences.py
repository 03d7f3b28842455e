"""Trees of responses into pairs of answers to one prompt (MALT, Motwani et al. 2024)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from runner.base.hashing import derived_seed
from runner.results.finetune.examples import ExampleSource, Preference
from runner.results.finetune.rollout_examples import asked_with, trainable
from runner.rollouts.agents.agent import Agent
from runner.rollouts.trees import Contrast, TreeNode, contrasts


def preferences(
    root: TreeNode, agents: Mapping[str, Agent], seed: int, run_id: str
) -> Iterator[tuple[str, Preference, ExampleSource]]:
    """One pair for each step that an agent answered both well and badly, with the agent's name.

    Which of several good and of several bad answers is drawn by the seed, the node and the agent. An answer that could
    not be parsed, or that was cut at the token limit, is never the preferred one.
    """
    protocol = next(iter(agents.values())).protocol_handler
    for contrast in contrasts(root, protocol):
        agent = agents.get(contrast.agent)
        drawn = None if agent is None else _drawn(contrast, agent, seed)
        if agent is not None and drawn is not None:
            yield contrast.agent, *_pair(contrast, *drawn, agent, run_id)


def _drawn(contrast: Contrast, agent: Agent, seed: int) -> tuple[TreeNode, TreeNode] | None:
    """A good and a bad answer, of different texts where there are such."""
    name = contrast.agent
    good = [node for node in contrast.positive if trainable(agent, node.leaves[0], len(node.path) - 1)]
    pairs = [(yes, no) for yes in good for no in contrast.negative]
    if not pairs:
        return None
    different = [(yes, no) for yes, no in pairs if yes.rounds[-1].raw[name] != no.rounds[-1].raw[name]]
    job = contrast.node.leaves[0].job
    chance = derived_seed("preference", seed, job.datapoint.id, job.repeat, len(contrast.node.path), name)
    return random.Random(chance).choice(different or pairs)


def _pair(
    contrast: Contrast, yes: TreeNode, no: TreeNode, agent: Agent, run_id: str
) -> tuple[Preference, ExampleSource]:
    name, node = contrast.agent, contrast.node
    branch = node.leaves[0]
    source = ExampleSource(
        run_id,
        yes.leaves[0].job.rollout_id,
        name,
        len(node.path),
        yes.expected_reward(name),
        branch.job.datapoint.id,
        {"rejected_rollout_id": no.leaves[0].job.rollout_id, "rejected_reward": no.expected_reward(name)},
        branch.job.datapoint.group,
    )
    asked = branch.job.observation(len(node.path), node.rounds)
    prompt = asked_with(agent, asked)
    return Preference(prompt, yes.rounds[-1].raw[name], no.rounds[-1].raw[name]), source
