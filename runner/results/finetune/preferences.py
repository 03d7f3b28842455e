"""Preference pairs from trees of responses: two answers to the same prompt (MALT, Motwani et al. 2024)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from runner.base.hashing import derived_seed
from runner.results.finetune.examples import ExampleSource, Preference
from runner.results.finetune.rollout_examples import is_trainable, prompt_messages
from runner.rollouts.agents.agent import Agent
from runner.rollouts.trees import Contrast, TreeNode, contrasts


def preferences(
    root: TreeNode, agents: Mapping[str, Agent], seed: int, run_id: str
) -> Iterator[tuple[str, Preference, ExampleSource]]:
    """Yield the agent, the preference pair and its source for each node where an agent gave good and bad answers.

    If there are several good or bad answers, a pair is chosen at random, with a seed from the run's seed, the node and
    the agent. An answer that could not be parsed, or that was cut at the token limit, is never preferred.
    """
    protocol = next(iter(agents.values())).protocol_handler
    for contrast in contrasts(root, protocol):
        agent = agents.get(contrast.agent)
        chosen = None if agent is None else _choose_pair(contrast, agent, seed)
        if agent is not None and chosen is not None:
            yield contrast.agent, *_build_preference(contrast, *chosen, agent, run_id)


def _choose_pair(contrast: Contrast, agent: Agent, seed: int) -> tuple[TreeNode, TreeNode] | None:
    """Choose a good and a bad answer, with different texts if possible."""
    name = contrast.agent
    good = [node for node in contrast.positive if is_trainable(agent, node.leaves[0], len(node.path) - 1)]
    pairs = [(preferred, rejected) for preferred in good for rejected in contrast.negative]
    if not pairs:
        return None
    different = [pair for pair in pairs if pair[0].rounds[-1].raw[name] != pair[1].rounds[-1].raw[name]]
    job = contrast.node.leaves[0].job
    pair_seed = derived_seed("preference", seed, job.datapoint.id, job.repeat, len(contrast.node.path), name)
    return random.Random(pair_seed).choice(different or pairs)


def _build_preference(
    contrast: Contrast, preferred: TreeNode, rejected: TreeNode, agent: Agent, run_id: str
) -> tuple[Preference, ExampleSource]:
    name, node = contrast.agent, contrast.node
    branch = node.leaves[0]
    source = ExampleSource(
        run_id,
        preferred.leaves[0].job.rollout_id,
        name,
        len(node.path),
        preferred.expected_reward(name),
        branch.job.datapoint.id,
        {"rejected_rollout_id": rejected.leaves[0].job.rollout_id, "rejected_reward": rejected.expected_reward(name)},
        branch.job.datapoint.group,
    )
    observation = branch.job.observation(len(node.path), node.rounds)
    prompt = prompt_messages(agent, observation)
    answers = (agent.learned_text(node.rounds[-1].raw[name]) for node in (preferred, rejected))
    return Preference(prompt, *answers), source
