"""Trees in a page: every branch, the expected reward of each answer, and the training pairs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from runner.results.folder import RunFolder
from runner.rollouts.trees import build_tree
from runner.runs.finished.reconstruction import Reconstructor, saved_plan
from tests.support.files import parquet_rows
from tests.support.hostile_payloads import PAYLOADS
from tests.support.report_summaries import SummarySection, build_site, unpack_piece
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file

OLD_RESULTS = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "results"
TRAINING_RUN_ID = "malt-c2d863dc7d"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(OLD_RESULTS, tmp_path_factory.mktemp("old") / "results"))


Trees = tuple[SummarySection, list[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trees(results: Path) -> Trees:
    """The summary of a MALT run's training games, the list of their trees, and the trees with their texts."""
    site, data = build_site(results / "runs" / f"{TRAINING_RUN_ID}-i0")
    (about,) = site.about["runs"]
    pieces = [unpack_piece(data, f"{about['slug']}-trees-{number}") for number in range(len(about["trees"]["pieces"]))]
    complete_trees = [{**tree, "texts": piece["texts"]} for piece in pieces for tree in piece["trees"]]
    return (
        SummarySection(str(site.sections[0].html)),
        unpack_piece(data, f"{about['slug']}-treelist")["trees"],
        complete_trees,
    )


def iterate_nodes(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for node in tree["nodes"]:
        yield node
        yield from iterate_nodes(node)


def test_every_branch_ends_in_its_game_and_verdict(trees: Trees, results: Path) -> None:
    rows = {
        row["rollout_id"]: row for row in parquet_rows(results / "runs" / f"{TRAINING_RUN_ID}-i0" / "rollouts.parquet")
    }
    leaves = [node for tree in trees[2] for node in iterate_nodes(tree) if not node["nodes"]]
    assert {leaf["game"] for leaf in leaves} == set(rows)
    for leaf in leaves:
        decision = 2 if leaf["decision"] is None else leaf["decision"]
        assert (decision, leaf["correct"]) == (rows[leaf["game"]]["decision"], rows[leaf["game"]]["correct"])


def test_pairs_of_the_page_include_all_pairs_of_the_training_datasets(trees: Trees, results: Path) -> None:
    folder = results / "runs" / TRAINING_RUN_ID / "iterations" / "0"
    trained_pairs, texts = set(), set()
    for trace in folder.glob("*.trace.jsonl"):
        for line in map(json.loads, trace.read_text("utf-8").splitlines()):
            rewards = (line["reward"], line["other"]["rejected_reward"])
            trained_pairs.add((line["datapoint_id"], line["agent"], line["round"], *rewards))
        examples = (folder / trace.name.removesuffix(".trace.jsonl")).read_text("utf-8").splitlines()
        texts |= {json.loads(line)["preferred_output"][0]["content"] for line in examples}
    pairs = [(tree, pair) for tree in trees[2] for pair in tree["learnt"]]
    page_pairs = {(tree["datapoint"], pair["agent"], pair["round"], *pair["rewards"]) for tree, pair in pairs}
    assert trained_pairs
    assert trained_pairs <= page_pairs  # a dataset has only one of two equal pairs
    assert texts <= {read_chosen_text(tree, pair["chosen"], pair["agent"]) for tree, pair in pairs}


def read_chosen_text(tree: dict[str, Any], path: list[int], agent: str) -> str:
    node = next(node for node in iterate_nodes(tree) if node["path"] == path)
    (answer,) = [answer for answer in node["said"] if answer["agent"] == agent]
    assert answer["learnt"] == "chosen"
    return answer["text"] if isinstance(answer["text"], str) else str(tree["texts"][answer["text"]])


def test_expected_rewards_of_answers_equal_those_of_the_trainer(trees: Trees, results: Path) -> None:
    folder = RunFolder(results / "runs" / f"{TRAINING_RUN_ID}-i0")
    plan = saved_plan(folder)
    assert plan.tree_shape is not None
    reconstructor = Reconstructor(folder, plan)
    for tree, branches in zip(trees[2], reconstructor.rollouts_by_job(), strict=True):
        root = build_tree(branches, plan.tree_shape)
        assert root is not None
        worth = {node.path: node.expected_reward("verifier") for node in root.nodes()}
        assert {tuple(node["path"]): node["worth"]["verifier"] for node in iterate_nodes(tree)} == worth
    reconstructor.close()


def test_summary_lists_the_trees_with_links(trees: Trees) -> None:
    summary, rows, _ = trees
    table = summary.table("The first trees")
    assert [row["Datapoint"] for row in table] == [row["datapoint"] for row in rows]
    assert {f"#/run/{TRAINING_RUN_ID}-i0/tree/{row['datapoint']}" for row in rows} <= summary.links.keys()
    pairs = sum(int(row["Pairs"]) for row in summary.table("Mean expected reward of answers"))
    assert pairs == sum(row["pairs"] for row in rows) > 0
    assert "means over the branches of trees" in summary.text


@pytest.mark.full
def test_links_lead_to_trees_of_datapoints_with_hostile_names(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, rollouts={"num_responses_per_timestep": 2}, fine_tune=None)
    names = ["a/b?tree=1#c%2F&q", f"{PAYLOADS['image']}\"'../"]
    lines = map(json.loads, (tmp_path / "data.jsonl").read_text("utf-8").splitlines())
    rows = [{**row, "id": name} for row, name in zip(lines, names, strict=True)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    run_spec(path, tmp_path / "results")
    run = only_run(tmp_path / "results")
    site, data = build_site(run)
    (about,) = site.about["runs"]
    assert {row["datapoint"] for row in unpack_piece(data, f"{about['slug']}-treelist")["trees"]} == set(names)
    summary = SummarySection(str(site.sections[0].html))
    assert {row["Datapoint"] for row in summary.table("The first trees")} == set(names)
    links = [link.removeprefix(f"#/run/{run.name}/tree/") for link in summary.links if "/tree/" in link]
    assert all(set("/?#&<>\"' ").isdisjoint(link) for link in links)  # each is one URL path segment
    assert {unquote(link) for link in links} == set(names)
    assert "img" not in summary.tags
