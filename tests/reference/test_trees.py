"""MALT's response trees, compared with those of the original implementation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from runner.game.protocols.tree_shape import TreeShape
from runner.results.metric_computation import Metrics
from runner.rollouts.trees import TreeNode, TreeStatistics, build_tree, contrasts, is_positive
from tests.reference.adapter import cases, format_path, load_case_protocol, scripted_tree
from tests.reference.test_reference import each, nan_equal


@each("fine_tune_dpo")
def test_trees_are_built_as_in_the_original(case: dict[str, Any]) -> None:
    protocol, expected = load_case_protocol(case["config"]), case["expected"]
    branches, script, shape = scripted_tree(case)
    assert sorted(script.calls) == sorted(expected["call_order"])
    assert len(branches) == expected["num_rollouts"]
    assert {agent: protocol.reward_mid_point(agent) for agent in protocol.agent_names} == expected["reward_thresholds"]
    root = build_tree(branches, shape)
    assert root is not None
    nodes = {format_path(node.path): node for node in root.nodes()}
    expected_nodes = {row["path"]: row for row in expected["nodes"] if not row["padding"]}
    assert nodes.keys() == expected_nodes.keys()
    for path, row in expected_nodes.items():
        node, last = nodes[path], nodes[path].rounds[-1]
        assert len(node.leaves) == row["num_branches"]
        assert (not node.children) == row["ended"]
        assert {a: last.raw.get(a) for a in protocol.agent_names} == row["raw_message"]
        for agent in protocol.agent_names:
            assert last.rewards[agent] == pytest.approx(row["reward"][agent], abs=1e-5)
            assert node.expected_reward(agent) == pytest.approx(row["expected_reward"][agent], abs=1e-5)
            assert is_positive(node, agent, protocol) == row["is_positive_example"][agent]


@each("fine_tune_dpo")
def test_contrasts_equal_those_of_the_original_plus_the_first_round(case: dict[str, Any]) -> None:
    protocol = load_case_protocol(case["config"])
    branches, _, shape = scripted_tree(case)
    root = build_tree(branches, shape)
    assert root is not None
    tree_contrasts = list(contrasts(root, protocol))
    # The original leaves out the root, so it never trains the first round.
    assert sorted(_list_records(tree_contrasts, root)) == sorted(
        (row["agent"], row["node"], sorted(row["admissible_preferred"]), sorted(row["admissible_non_preferred"]))
        for rows in case["expected"]["dpo_records_by_group"].values()
        for row in rows
    )
    at_root = [contrast for contrast in tree_contrasts if contrast.node is root]
    assert all(len(child.path) == 1 for contrast in at_root for child in (*contrast.positive, *contrast.negative))


def _list_records(tree_contrasts: list[Any], root: TreeNode) -> Iterator[tuple[str, str, list[str], list[str]]]:
    for contrast in tree_contrasts:
        if contrast.node is not root:
            good, bad = (
                sorted(child.rounds[-1].raw[contrast.agent] for child in children)
                for children in (contrast.positive, contrast.negative)
            )
            yield contrast.agent, format_path(contrast.node.path), good, bad


@each("fine_tune_dpo")
def test_statistics_of_a_tree_equal_those_of_the_original(case: dict[str, Any]) -> None:
    _check_statistics(case, [case])


@pytest.mark.sample(5)
@each("malt_stats")
def test_statistics_of_several_trees_equal_those_of_the_original(case: dict[str, Any]) -> None:
    _check_statistics(case, [{**case, **tree} for tree in case["trees"]])


def _check_statistics(case: dict[str, Any], scripts: list[dict[str, Any]]) -> None:
    protocol, expected = load_case_protocol(case["config"]), case["expected"]["log_stats"]
    metrics = Metrics(protocol)
    trees = TreeStatistics(protocol, TreeShape(case["num_responses_per_timestep"], protocol.max_message_rounds))
    for script in scripts:
        branches, _, shape = scripted_tree(script)
        for branch in branches:
            metrics.add(branch)
        root = build_tree(branches, shape)
        assert root is not None
        trees.add(root)
    statistics: dict[str, Any] = {**metrics.original_statistics(), **trees.original_statistics()}
    assert statistics.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            assert statistics[name].keys() == value.keys()
            for agent, rounds in value.items():
                assert statistics[name][agent] == pytest.approx(rounds, abs=1e-5), (name, agent)
        else:
            assert nan_equal(statistics[name], value), (name, statistics[name], value)


@pytest.mark.parametrize("case", cases("fine_tune_dpo", faulty=True), ids=lambda case: f"fine_tune_dpo-{case['case']}")
def test_node_reward_is_the_mean_of_its_branches_unlike_in_the_original(case: dict[str, Any]) -> None:
    protocol = load_case_protocol(case["config"])
    branches, _, shape = scripted_tree(case)
    root = build_tree(branches, shape)
    assert root is not None
    for node in root.nodes():
        below = [b for b in branches if shape.path(b.job.repeat)[: len(node.path)] == node.path]
        below = [b for b in below if len(b.rounds) >= len(node.path)]
        assert node.leaves == below
        for agent in protocol.agent_names:
            rewards = [sum(r.rewards[agent] for r in b.rounds[len(node.path) - 1 :]) for b in below]
            assert node.expected_reward(agent) == pytest.approx(sum(rewards) / len(rewards))
    for contrast in contrasts(root, protocol):
        assert contrast.agent in contrast.positive[0].rounds[-1].raw
