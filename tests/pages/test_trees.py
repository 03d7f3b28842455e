"""Trees in a page: every branch, what each answer was worth, and the very pairs that were learnt."""

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

OLD = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "results"
TRAINED = "malt-c2d863dc7d"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(OLD, tmp_path_factory.mktemp("old") / "results"))


Trees = tuple[SummarySection, list[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trees(results: Path) -> Trees:
    """The summary of the games that a MALT run was trained on, the list of their trees, and each with its texts."""
    site, data = build_site(results / "runs" / f"{TRAINED}-i0")
    (about,) = site.about["runs"]
    pieces = [unpack_piece(data, f"{about['slug']}-trees-{number}") for number in range(len(about["trees"]["pieces"]))]
    whole = [{**tree, "texts": one["texts"]} for one in pieces for tree in one["trees"]]
    return SummarySection(str(site.sections[0].html)), unpack_piece(data, f"{about['slug']}-treelist")["trees"], whole


def nodes_of(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for node in tree["nodes"]:
        yield node
        yield from nodes_of(node)


def test_every_branch_ends_in_its_game_with_its_verdict(trees: Trees, results: Path) -> None:
    rows = {row["rollout_id"]: row for row in parquet_rows(results / "runs" / f"{TRAINED}-i0" / "rollouts.parquet")}
    leaves = [node for tree in trees[2] for node in nodes_of(tree) if not node["nodes"]]
    assert {leaf["game"] for leaf in leaves} == set(rows)
    for leaf in leaves:
        decision = 2 if leaf["decision"] is None else leaf["decision"]
        assert (decision, leaf["correct"]) == (rows[leaf["game"]]["decision"], rows[leaf["game"]]["correct"])


def test_the_pairs_are_those_that_the_datasets_of_the_training_have(trees: Trees, results: Path) -> None:
    folder = results / "runs" / TRAINED / "iterations" / "0"
    learnt, texts = set(), set()
    for trace in folder.glob("*.trace.jsonl"):
        for line in map(json.loads, trace.read_text("utf-8").splitlines()):
            rewards = (line["reward"], line["other"]["rejected_reward"])
            learnt.add((line["datapoint_id"], line["agent"], line["round"], *rewards))
        examples = (folder / trace.name.removesuffix(".trace.jsonl")).read_text("utf-8").splitlines()
        texts |= {json.loads(line)["preferred_output"][0]["content"] for line in examples}
    pairs = [(tree, pair) for tree in trees[2] for pair in tree["learnt"]]
    shown = {(tree["datapoint"], pair["agent"], pair["round"], *pair["rewards"]) for tree, pair in pairs}
    assert learnt
    assert learnt <= shown  # of two pairs that say the same, a dataset has one
    assert texts <= {read_text_of(tree, pair["chosen"], pair["agent"]) for tree, pair in pairs}


def read_text_of(tree: dict[str, Any], path: list[int], agent: str) -> str:
    node = next(node for node in nodes_of(tree) if node["path"] == path)
    (one,) = [one for one in node["said"] if one["agent"] == agent]
    assert one["learnt"] == "chosen"
    return one["text"] if isinstance(one["text"], str) else str(tree["texts"][one["text"]])


def test_answers_are_worth_what_the_trainer_says(trees: Trees, results: Path) -> None:
    folder = RunFolder(results / "runs" / f"{TRAINED}-i0")
    plan = saved_plan(folder)
    assert plan.tree_shape is not None
    reconstructor = Reconstructor(folder, plan)
    for tree, branches in zip(trees[2], reconstructor.rollouts_by_job(), strict=True):
        root = build_tree(branches, plan.tree_shape)
        assert root is not None
        worth = {node.path: node.expected_reward("verifier") for node in root.nodes()}
        assert {tuple(node["path"]): node["worth"]["verifier"] for node in nodes_of(tree)} == worth
    reconstructor.close()


def test_the_summary_lists_the_trees_with_ways_to_them(trees: Trees) -> None:
    summary, rows, _ = trees
    shown = summary.table("The first trees")
    assert [row["Datapoint"] for row in shown] == [row["datapoint"] for row in rows]
    assert {f"#/run/{TRAINED}-i0/tree/{row['datapoint']}" for row in rows} <= summary.links.keys()
    pairs = sum(int(row["Pairs"]) for row in summary.table("Mean expected reward of answers"))
    assert pairs == sum(row["pairs"] for row in rows) > 0
    assert "means over the branches of trees" in summary.text


@pytest.mark.full
def test_datapoints_with_hostile_names_have_trees_that_their_links_lead_to(tmp_path: Path) -> None:
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
    assert all(set("/?#&<>\"' ").isdisjoint(link) for link in links)  # each is one part of an address
    assert {unquote(link) for link in links} == set(names)
    assert "img" not in summary.tags
