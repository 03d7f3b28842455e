"""The graph of models: origins by identity, effort counted once, and detection of hidden origins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.base.errors import ReleaseError
from runner.base.hashing import tagged_hash
from runner.documents.releases.manifest import FileEntry, Release, digest
from runner.documents.releases.reference import Kind
from runner.registry.lineage.descriptions import describe_effort, describe_marks
from runner.registry.lineage.history import build_history
from runner.registry.lineage.lineage import Lineage
from runner.registry.lineage.model_origins import ModelOrigin, Proof
from runner.registry.lineage.nodes import LineageNode, node_from_release
from runner.registry.transports.registry import ReleaseEntry
from tests.registry.planted import EFFORT, benchmark, group, iteration_games, node, step, training

BASE, ONE, TWO, THREE = "base", "ft:one", "ft:two", "ft:three"
FIRST = training("first", ONE, BASE)
SECOND = training("second", TWO, ONE, step("first", ONE, BASE))


def find_origin(subject: LineageNode, *others: LineageNode) -> ModelOrigin | None:
    """Return the origin of the model of a run with one group."""
    origins = Lineage([subject, *others]).ancestry(subject).origins
    return origins[0] if origins else None


def count_rollouts(subject: LineageNode, *others: LineageNode) -> tuple[int, bool]:
    """Return the number of games behind a run's models, and whether there may be more."""
    total = Lineage([subject, *others]).ancestry(subject).total
    return total.effort.rollouts or 0, not total.is_known


def list_marks(subject: LineageNode, *others: LineageNode) -> list[str]:
    lineage = Lineage([subject, *others])
    ancestry = lineage.ancestry(subject)
    return describe_marks(subject, ancestry, lineage.training_overlap(subject, ancestry))


def test_effort_is_summed_along_the_chain_and_a_base_model_has_none() -> None:
    end = benchmark("end", TWO, step("first", ONE, BASE), step("second", TWO, ONE))
    assert count_rollouts(end, FIRST, SECOND) == (20, False)
    total = Lineage([end, FIRST, SECOND]).ancestry(end).total
    assert {name: getattr(total.effort, name) for name in EFFORT} == {name: 2 * n for name, n in EFFORT.items()}
    assert total.effort.cost_usd == pytest.approx(2.0)
    assert count_rollouts(benchmark("plain", BASE), FIRST, SECOND) == (0, False)
    assert count_rollouts(SECOND, FIRST) == (20, False)  # its own training, and that of its first model


def test_history_has_both_children_of_a_fork_and_counts_their_shared_past_once() -> None:
    """The prototype kept one child of each parent: the other disappeared."""
    left = training("left", "ft:l", ONE, step("first", ONE, BASE))
    right = training("right", "ft:r", ONE, step("first", ONE, BASE), group={"group": "p", "agents": ["prover"]})
    lines = (
        [step("first", ONE, BASE), step("left", "ft:l", ONE)],
        [step("first", ONE, BASE), step("right", "ft:r", ONE)],
    )
    both = node("both", group("ft:l", *lines[0]), group("ft:r", *lines[1], group="p", agents=["prover"]))
    assert count_rollouts(both, FIRST, left, right) == (30, False)
    rows = build_history("first", [FIRST, left, right, both])
    assert [(row.node.run_id, row.depth) for row in rows] == [("first", 0), ("left", 1), ("both", 1), ("right", 1)]
    assert [run for run, _ in rows[2].maker_runs] == ["left", "right"]
    assert len({row.node.run_id for row in rows}) == len(rows)  # the prototype printed one name on every row


def test_an_origin_is_declared_by_name_and_proved_by_weights() -> None:
    weights = {"weights_sha256": "11" * 32}
    local = training("local", "output", BASE, made=weights)
    by_name = find_origin(benchmark("end", TWO, step("second", TWO, ONE)), SECOND)
    assert by_name is not None
    assert by_name.proof == Proof.DECLARED
    declared = find_origin(benchmark("end", "output", step("local", "output", BASE), group=weights), local)
    renamed = find_origin(benchmark("end", "mine-from-scratch", group=weights), local)
    assert declared is not None
    assert renamed is not None
    assert (declared.proof, declared.is_undeclared) == (Proof.PROVED, False)
    assert (renamed.proof, renamed.is_undeclared) == (Proof.PROVED, True)  # by its bytes, under any name


@pytest.mark.parametrize(
    ("last", "weights", "reason"),
    [
        (step("second", "ft:other", ONE), None, "but that run made ft:two"),
        (step("second", TWO, ONE, dataset_sha256="edited"), None, "ft:two on another dataset"),
        (step("second", TWO, ONE, iteration=4), None, "but that iteration made none"),
        (step("local", "output", BASE), "22" * 32, "with other weights"),
        (step("second", "output", BASE), "11" * 32, "but its weights were made by run/acme/local@1"),
    ],
)
def test_lineage_that_contradicts_its_ancestor_is_broken(
    last: dict[str, object], weights: str | None, reason: str
) -> None:
    local = training("local", "output", BASE, made={"weights_sha256": "11" * 32})
    end = benchmark("end", str(last["model"]), last, group={"weights_sha256": weights})
    origin = find_origin(end, FIRST, SECOND, local)
    assert origin is not None
    assert origin.proof == Proof.BROKEN
    assert reason in str(origin.reason)
    assert count_rollouts(end, FIRST, SECOND, local)[1]  # its effort is a lower bound
    assert any(reason in mark for mark in list_marks(end, FIRST, SECOND, local))


def test_lineage_that_ends_with_another_model_than_the_played_one_is_broken() -> None:
    origin = find_origin(benchmark("end", "ft:better", step("second", TWO, ONE)), SECOND)
    assert origin is not None
    assert (origin.proof, origin.reason) == (
        Proof.BROKEN,
        f"the run used ft:better, but the lineage of its model ends with {TWO}",
    )


def test_model_trained_one_more_step_without_its_past_has_the_past_as_a_claim() -> None:
    """Lineage finds the past of a model that another user trains for one step and publishes without its past."""
    truncated = training("mine", THREE, TWO, owner="thief", group={"base_model": TWO})  # its lineage begins with itself
    end = benchmark("end", THREE, step("mine", THREE, TWO), owner="thief")
    bare = benchmark("bare", THREE, owner="thief")  # no lineage at all
    for subject in (end, bare):
        assert count_rollouts(subject, FIRST, SECOND, truncated) == (10, True)
        assert "claimed by run/acme/second@1 (iteration 0), not confirmed" in list_marks(
            subject, FIRST, SECOND, truncated
        )
    complete = training("mine", THREE, TWO, group={"base_model": TWO})
    own_run = benchmark("end", THREE)  # a local run has its complete past
    assert count_rollouts(own_run, FIRST, SECOND, complete) == (30, False)
    assert any(
        mark.startswith("ancestor run/acme/second@1 (it") for mark in list_marks(own_run, FIRST, SECOND, complete)
    )
    assert count_rollouts(end, truncated) == (10, True)  # the name of the model shows that a run is missing
    assert f"{TWO} is a fine-tuned model, and its training is not here" in list_marks(end, truncated)


def test_weights_taken_from_a_run_are_recognized_under_any_name_and_owner() -> None:
    weights, more = {"weights_sha256": "11" * 32}, {"weights_sha256": "33" * 32}
    original = training("theirs", "output", BASE, made=weights)
    continued = training("mine", "output", "llama", made=more, owner="thief", group=weights)
    end = benchmark("end", "fresh", owner="thief", group=more)
    assert count_rollouts(end, original, continued) == (10, False)  # a hash alone is a claim, which is marked
    assert "claimed by run/acme/theirs@1 (iteration 0), not confirmed" in list_marks(end, original, continued)
    assert find_origin(continued, original).proof == Proof.CLAIMED  # type: ignore[union-attr]
    published = model_release("theirs", original, b"of theirs")
    copied = benchmark("end", "fresh", owner="thief", group={"weights_sha256": published.published_weights})
    assert published.published_weights is not None
    assert find_origin(copied, published).proof == Proof.PROVED  # type: ignore[union-attr]
    assert count_rollouts(copied, published) == (10, False)


def model_release(run: str, made_by: LineageNode, content: bytes, **changes: Any) -> LineageNode:
    """Return a model release with a file of weights that a run claims to have made."""
    file = FileEntry(
        path="weights/model.bin", size=len(content), sha256=digest(content), media_type="application/octet-stream"
    )
    weights = tagged_hash("weights", [[file.path.removeprefix("weights/"), file.size, file.sha256]])
    entry = step(run, "output", BASE, weights_sha256=changes.pop("weights", weights))
    release = Release(
        kind=Kind.MODEL, owner=made_by.owner or "", name=run, version="1", files=(file,),
        identity={"weights": entry["weights_sha256"]}, facts={"run_id": run, "trained": [group(BASE, made=[entry])]},
    )  # fmt: skip
    return node_from_release(ReleaseEntry(release.reference, "0" * 64), release)


def test_stranger_who_claims_existing_weights_adds_only_a_claim() -> None:
    """Otherwise any run could get a proved origin with training games on the measured datapoints."""
    weights = {"weights_sha256": "ab" * 32}
    points = {"datapoints_sha256": ["d1", "d2"]}
    false_run = training("evil", "output", BASE, owner="mallory", made=weights)
    games = iteration_games(false_run, "d1", "d2", owner="mallory")
    false_release = model_release("evil", false_run, b"other", weights="ab" * 32)  # its files are not those weights
    plain = benchmark("honest", "my-llama", owner="honest", group=weights, facts=points)
    assert list_marks(plain, false_run, games, false_release) == [CLAIM]
    assert count_rollouts(plain, false_run, games, false_release) == (0, False)

    learned = training("learn", "output", BASE, owner="honest", made=weights)
    copied = training("learn", "output", "other", owner="mallory", made=weights, identity={"run": "cd" * 32})
    end = benchmark("end", "output", step("learn", "output", BASE), owner="honest", group=weights, facts=points)
    others = (learned, iteration_games(learned, "x", owner="honest"), false_run, games, false_release, copied)
    assert count_rollouts(end, *others) == (10, False)
    assert [mark for mark in list_marks(end, *others) if "claimed by" not in mark] == []

    by_name = benchmark("named", "mine", step("run", "mine", BASE), owner="honest", group=weights)
    namesake = training("run", "else", BASE, owner="mallory")  # a run of the same id, which made another model
    assert find_origin(by_name, namesake).proof == Proof.MISSING  # type: ignore[union-attr]


CLAIM = "claimed by run/mallory/evil@1 (iteration 0) and model/mallory/evil@1 (iteration 0), not confirmed"


def test_trained_model_without_a_weights_hash_is_marked() -> None:
    local = training("local", "output", BASE)
    assert list_marks(benchmark("end", "output", step("local", "output", BASE)), local) == ["weights not known"]


def test_stranger_cannot_claim_a_base_model_by_its_name() -> None:
    """Otherwise every run of a base model would appear to continue one hostile release."""
    claim = training("claim", "gpt-4o-mini-2024-07-18", "nothing", owner="mallory")
    games = iteration_games(claim, "d1", "d2", owner="mallory")
    honest = benchmark("honest", "gpt-4o-mini-2024-07-18", facts={"datapoints_sha256": ["d1", "d2"]})
    assert find_origin(honest, claim, games) is None
    assert list_marks(honest, claim, games) == []
    claims = [training("one", "ft:x", BASE, owner="a"), training("two", "ft:x", BASE, owner="b")]
    assert list_marks(benchmark("end", "ft:x"), *claims) == [
        "claimed by run/a/one@1 (iteration 0) and run/b/two@1 (iteration 0), not confirmed"
    ]


def test_missing_ancestor_is_marked_and_its_own_ancestors_are_still_found() -> None:
    """The prototype's page raised KeyError for a run whose root was never published."""
    missing = step("second", TWO, ONE, release="run/acme/second@1", release_sha256="ab" * 32)
    end = benchmark("end", TWO, step("first", ONE, BASE), missing)
    assert str(find_origin(end, FIRST).reason).endswith(f"which is not here (sha256:{'ab' * 32})")  # type: ignore[union-attr]
    unknown_effort = "is not here: the effort of its training is not known"
    assert list_marks(end, FIRST) == [f"ancestor run/acme/second@1 {unknown_effort}"]
    lines = step("gone", ONE, BASE), step("gone", TWO, ONE, iteration=1, release="run/acme/gone@1")
    facts = {"datapoints_sha256": ["a", "b"]}
    end_of_unknown = benchmark(
        "end", TWO, *lines, facts=facts
    )  # one mark, however many of its models are in the lineage
    assert list_marks(end_of_unknown) == [f"ancestor run/acme/gone@1 {unknown_effort}"]
    assert (
        describe_effort(Lineage([end_of_unknown]).ancestry(end_of_unknown).total, "rollouts", "cost_usd") == "not known"
    )
    assert count_rollouts(end, FIRST) == (10, True)
    assert count_rollouts(end) == (0, True)


def test_private_ancestor_is_shown_only_by_its_digest() -> None:
    hidden = training("second", TWO, ONE, step("first", ONE, BASE), visibility="private")
    end = benchmark("end", TWO, step("first", ONE, BASE), step("second", TWO, ONE))
    assert list_marks(end, hidden, FIRST) == [f"made by a private release, sha256:{hidden.sha256}"]
    assert count_rollouts(end, hidden, FIRST) == (10, True)
    contradicting = benchmark("wrong", "ft:else", step("second", "ft:else", ONE))
    assert "second@1" not in " ".join(list_marks(contradicting, hidden))
    assert TWO not in " ".join(list_marks(contradicting, hidden))


def test_yanked_ancestor_counts_and_is_marked() -> None:
    yanked = training("second", TWO, ONE, step("first", ONE, BASE), yanked="a leak")
    end = benchmark("end", TWO, step("first", ONE, BASE), step("second", TWO, ONE))
    assert count_rollouts(end, yanked, FIRST) == (20, False)
    assert "run/acme/second@1, an ancestor, was yanked: a leak" in list_marks(end, yanked, FIRST)


def test_ancestor_release_with_another_digest_is_marked() -> None:
    last = step("first", ONE, BASE, release="run/acme/first@1", release_sha256="cd" * 32)
    assert "the lineage names another run/acme/first@1" in list_marks(benchmark("end", ONE, last), FIRST)[0]


def test_runs_that_claim_each_others_models_are_counted_once() -> None:
    chicken = training("chicken", "ft:c", "ft:e", step("egg", "ft:e", "ft:c"))
    egg = training("egg", "ft:e", "ft:c", step("chicken", "ft:c", "ft:e"))
    after = benchmark("after", "ft:c", step("chicken", "ft:c", "ft:e"))
    self_trained = training("itself", "ft:i", "ft:i0", step("itself", "ft:i0", "ft:i", dataset_sha256=None))
    lineage = Lineage([chicken, egg, after, FIRST, SECOND])
    assert lineage.ancestry(after).total.effort.rollouts == 20
    assert {row.node.run_id for row in build_history("egg", [chicken, egg, after])} == {"chicken", "egg", "after"}
    assert Lineage([self_trained]).ancestry(self_trained).total.effort.rollouts == 10


def test_training_effort_is_at_least_that_of_its_own_published_games() -> None:
    parent = training("first", ONE, BASE)
    end = benchmark("end", ONE, step("first", ONE, BASE))
    for owner, rollouts in (("acme", 500), ("mallory", 10)):
        facts = {"parent_run_id": "first", "kind": "training", "rollouts": 500}
        games = node("first-i0", group("any"), facts=facts, owner=owner)
        assert count_rollouts(end, parent, games) == (rollouts, False)


@pytest.mark.full
def test_long_lineage_does_not_reach_the_recursion_limit() -> None:
    names = [f"m{n:04d}" for n in range(600)]
    chain = [
        training(f"r{n:04d}", names[n + 1], names[n], *([step(f"r{n - 1:04d}", names[n], names[n - 1])] if n else []))
        for n in range(len(names) - 1)
    ]
    end = benchmark("zz", names[-1], step("r0598", names[-1], names[-2]))
    assert count_rollouts(end, *chain) == (10 * len(chain), False)
    assert len(build_history("m0100", chain[:200])) == 200


def test_copies_of_a_run_count_once_and_a_contradicting_copy_is_a_claim() -> None:
    without_effort = training("first", ONE, BASE, owner="thief", group={"games": []})
    end = benchmark("end", ONE, step("first", ONE, BASE), owner="thief")
    assert (
        count_rollouts(end, FIRST, without_effort) == count_rollouts(end, without_effort) == (0, True)
    )  # only a claim: a lower bound
    assert "claimed by run/acme/first@1 (iteration 0), not confirmed" in list_marks(end, FIRST, without_effort)
    honest = benchmark("end", ONE, step("first", ONE, BASE))
    expensive = training("first", ONE, BASE, owner="mallory", group={"games": [{"iteration": 0, "rollouts": 10**9}]})
    assert count_rollouts(honest, FIRST, expensive) == (10, False)  # a stranger's copy cannot raise the effort of a run
    assert count_rollouts(honest, FIRST, training("first", ONE, BASE, owner="colleague")) == (10, False)
    assert list_marks(honest, FIRST, training("first", ONE, BASE, owner="colleague")) == []


def test_a_benchmark_whose_lineage_trained_on_its_datapoints_is_marked() -> None:
    end = benchmark("end", ONE, step("first", ONE, BASE), facts={"datapoints_sha256": ["a", "b", "c", "d"]})
    assert list_marks(end, FIRST, iteration_games(FIRST, "b", "d", "x")) == ["trained on 2 of its 4 datapoints"]
    assert list_marks(end, FIRST, iteration_games(FIRST, "x")) == []
    assert list_marks(end, FIRST) == ["trained on an unknown number of its 4 datapoints"]  # its games are not known
    foreign = iteration_games(FIRST, "a", "b", "c", "d", owner="mallory")
    assert (
        list_marks(end, FIRST, iteration_games(FIRST, "x"), foreign) == []
    )  # only the run's owner publishes its games


def test_effort_counts_only_iterations_that_the_model_learned_from() -> None:
    first, second = step("run", "ft:0", BASE), step("run", "ft:1", BASE, iteration=1)
    separate = node("run", group(BASE, made=[{**first, "trained_on": [0]}, {**second, "trained_on": [1]}]))
    chained = node("run", group(BASE, made=[first, {**second, "from_iteration": 0}]))
    together = node("run", group(BASE, made=[first, {**second, "trained_on": [0, 1]}]))
    end = benchmark("end", "ft:1", second)
    assert [count_rollouts(end, run)[0] for run in (separate, chained, together)] == [10, 20, 20]


@pytest.mark.parametrize(
    "facts",
    [
        {"trained": 3},
        {"trained": [[]]},
        {"trained": [{"made": [{"model": "x"}]}]},
        {"trained": [group(BASE, made=[step("r", "m", BASE, from_iteration=0)])]},
        {"trained": [group(BASE, games=[])] * 2 + ["x"]},
        {"trained": [{**group(BASE), "games": [{"iteration": 0, "rollouts": -1}]}]},
        {"datapoints_sha256": "abc"},
        {"accuracy": 0.5},
        {"started_at": {"a": 1}},
        {"accuracy": {"value": "x", "ci_low": {}}},
        {"accuracy": {"value": 1e308}},
        {"models": {"a": {"b": 1}}},
        {"cost_usd": "x"},
        {"cost_usd": 1e308},
        {"rollouts": [1]},
        {"iteration": "x"},
        {"stopped": {"a": 1}},
        {"kind": "other"},
    ],
)
def test_invalid_run_facts_are_refused_with_the_release_name(facts: dict[str, object]) -> None:
    with pytest.raises(ReleaseError, match="run/acme/odd@1: invalid facts of a run"):
        node("odd", facts=facts)


def test_model_of_another_group_adds_no_claim() -> None:
    """The lineage of a run with two groups names no owner, as that of a reproduced run does."""
    steps = step("duo", "m:v", BASE), step("duo", "m:p", BASE)
    duo = node("duo", group(BASE, made=[steps[0]]), group(BASE, made=[steps[1]], group="p"))
    models = [node("duo", fact) for fact in (group(BASE, made=[steps[0]]), group(BASE, made=[steps[1]], group="p"))]
    end = replace(benchmark("end", "m:v", steps[0]), owner=None)
    assert list_marks(end, duo, *models) == ["weights not known"]
