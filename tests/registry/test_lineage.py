"""The graph of models: origins by identity, effort counted once, and nobody passes a continued model off as new."""

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
from tests.registry.planted import EFFORT, games_of, group, measured, node, step, training

BASE, ONE, TWO, THREE = "base", "ft:one", "ft:two", "ft:three"
FIRST = training("first", ONE, BASE)
SECOND = training("second", TWO, ONE, step("first", ONE, BASE))


def origin_of(subject: LineageNode, *others: LineageNode) -> ModelOrigin | None:
    """Where the model of a run with one group came from."""
    found = Lineage([subject, *others]).ancestry(subject).origins
    return found[0] if found else None


def rollouts_behind(subject: LineageNode, *others: LineageNode) -> tuple[int, bool]:
    """How many games are behind a run's models, and whether there may be more."""
    total = Lineage([subject, *others]).ancestry(subject).total
    return total.effort.rollouts or 0, not total.is_known


def marks(subject: LineageNode, *others: LineageNode) -> list[str]:
    lineage = Lineage([subject, *others])
    ancestry = lineage.ancestry(subject)
    return describe_marks(subject, ancestry, lineage.training_overlap(subject, ancestry))


def test_effort_is_summed_along_the_chain_and_a_base_model_has_none() -> None:
    end = measured("end", TWO, step("first", ONE, BASE), step("second", TWO, ONE))
    assert rollouts_behind(end, FIRST, SECOND) == (20, False)
    total = Lineage([end, FIRST, SECOND]).ancestry(end).total
    assert {name: getattr(total.effort, name) for name in EFFORT} == {name: 2 * n for name, n in EFFORT.items()}
    assert total.effort.cost_usd == pytest.approx(2.0)
    assert rollouts_behind(measured("plain", BASE), FIRST, SECOND) == (0, False)
    assert rollouts_behind(SECOND, FIRST) == (20, False)  # its own training, and what it began with


def test_both_children_of_a_fork_are_kept_and_what_they_share_is_counted_once_in_a_merge() -> None:
    """The prototype kept one child of each parent: the other disappeared."""
    left = training("left", "ft:l", ONE, step("first", ONE, BASE))
    right = training("right", "ft:r", ONE, step("first", ONE, BASE), group={"group": "p", "agents": ["prover"]})
    lines = (
        [step("first", ONE, BASE), step("left", "ft:l", ONE)],
        [step("first", ONE, BASE), step("right", "ft:r", ONE)],
    )
    both = node("both", group("ft:l", *lines[0]), group("ft:r", *lines[1], group="p", agents=["prover"]))
    assert rollouts_behind(both, FIRST, left, right) == (30, False)
    rows = build_history("first", [FIRST, left, right, both])
    assert [(row.node.run_id, row.depth) for row in rows] == [("first", 0), ("left", 1), ("both", 1), ("right", 1)]
    assert [run for run, _ in rows[2].maker_runs] == ["left", "right"]
    assert len({row.node.run_id for row in rows}) == len(rows)  # the prototype printed one name on every row


def test_an_origin_is_declared_by_name_and_proved_by_weights() -> None:
    weights = {"weights_sha256": "11" * 32}
    made = training("local", "output", BASE, made=weights)
    by_name = origin_of(measured("end", TWO, step("second", TWO, ONE)), SECOND)
    assert by_name is not None
    assert by_name.proof == Proof.DECLARED
    same = origin_of(measured("end", "output", step("local", "output", BASE), group=weights), made)
    renamed = origin_of(measured("end", "mine-from-scratch", group=weights), made)
    assert same is not None
    assert renamed is not None
    assert (same.proof, same.is_undeclared) == (Proof.PROVED, False)
    assert (renamed.proof, renamed.is_undeclared) == (Proof.PROVED, True)  # by its bytes, whatever it is called


@pytest.mark.parametrize(
    ("last", "weights", "why"),
    [
        (step("second", "ft:other", ONE), None, "but that run made ft:two"),
        (step("second", TWO, ONE, dataset_sha256="edited"), None, "ft:two on another dataset"),
        (step("second", TWO, ONE, iteration=4), None, "but that iteration made none"),
        (step("local", "output", BASE), "22" * 32, "with other weights"),
        (step("second", "output", BASE), "11" * 32, "but its weights were made by run/acme/local@1"),
    ],
)
def test_a_lineage_that_says_what_its_ancestor_did_not_make_is_broken(
    last: dict[str, object], weights: str | None, why: str
) -> None:
    local = training("local", "output", BASE, made={"weights_sha256": "11" * 32})
    end = measured("end", str(last["model"]), last, group={"weights_sha256": weights})
    origin = origin_of(end, FIRST, SECOND, local)
    assert origin is not None
    assert origin.proof == Proof.BROKEN
    assert why in str(origin.reason)
    assert rollouts_behind(end, FIRST, SECOND, local)[1]  # so that its effort is at least what is known
    assert any(why in mark for mark in marks(end, FIRST, SECOND, local))


def test_a_lineage_that_ends_with_another_model_than_was_played_is_broken() -> None:
    origin = origin_of(measured("end", "ft:better", step("second", TWO, ONE)), SECOND)
    assert origin is not None
    assert (origin.proof, origin.reason) == (
        Proof.BROKEN,
        f"the run used ft:better, but the lineage of its model ends with {TWO}",
    )


def test_a_model_trained_for_one_more_step_and_published_again_is_shown_for_what_it_is() -> None:
    """L1: whoever takes an agent, trains it for one step and leaves its past out, has its past found again."""
    cut = training("mine", THREE, TWO, owner="thief", group={"base_model": TWO})  # its lineage begins with itself
    end = measured("end", THREE, step("mine", THREE, TWO), owner="thief")
    bare = measured("bare", THREE, owner="thief")  # no lineage at all
    for subject in (end, bare):
        assert rollouts_behind(subject, FIRST, SECOND, cut) == (10, True)
        assert "claimed by run/acme/second@1 (iteration 0), not confirmed" in marks(subject, FIRST, SECOND, cut)
    ours = training("mine", THREE, TWO, group={"base_model": TWO})
    own = measured("end", THREE)  # of one's own runs nothing is left out
    assert rollouts_behind(own, FIRST, SECOND, ours) == (30, False)
    assert any(mark.startswith("ancestor run/acme/second@1 (it") for mark in marks(own, FIRST, SECOND, ours))
    assert rollouts_behind(end, cut) == (10, True)  # where the run it took is not here, its name says that there is one
    assert f"{TWO} is a fine-tuned model, and its training is not here" in marks(end, cut)


def test_weights_taken_from_a_run_are_known_whatever_they_are_called_and_whoever_trains_them() -> None:
    weights, more = {"weights_sha256": "11" * 32}, {"weights_sha256": "33" * 32}
    theirs = training("theirs", "output", BASE, made=weights)
    mine = training("mine", "output", "llama", made=more, owner="thief", group=weights)
    end = measured("end", "fresh", owner="thief", group=more)
    assert rollouts_behind(end, theirs, mine) == (10, False)  # by their word alone it is a claim, which is told
    assert "claimed by run/acme/theirs@1 (iteration 0), not confirmed" in marks(end, theirs, mine)
    assert origin_of(mine, theirs).proof == Proof.CLAIMED  # type: ignore[union-attr]
    sent = published_weights("theirs", theirs, b"of theirs")
    taken = measured("end", "fresh", owner="thief", group={"weights_sha256": sent.published_weights})
    assert sent.published_weights is not None
    assert origin_of(taken, sent).proof == Proof.PROVED  # type: ignore[union-attr]
    assert rollouts_behind(taken, sent) == (10, False)


def published_weights(run: str, made_by: LineageNode, content: bytes, **said: Any) -> LineageNode:
    """A model's release with a file of weights, in which a run says that it made them."""
    file = FileEntry(
        path="weights/model.bin", size=len(content), sha256=digest(content), media_type="application/octet-stream"
    )
    weights = tagged_hash("weights", [[file.path.removeprefix("weights/"), file.size, file.sha256]])
    made = step(run, "output", BASE, weights_sha256=said.pop("weights", weights))
    release = Release(
        kind=Kind.MODEL, owner=made_by.owner or "", name=run, version="1", files=(file,),
        identity={"weights": made["weights_sha256"]}, facts={"run_id": run, "trained": [group(BASE, made=[made])]},
    )  # fmt: skip
    return node_from_release(ReleaseEntry(release.reference, "0" * 64), release)


def test_a_stranger_who_says_to_have_made_ones_weights_adds_nothing_but_the_claim() -> None:
    """It would have set up a proved origin to any run, with its own games on the datapoints that are measured."""
    weights = {"weights_sha256": "ab" * 32}
    points = {"datapoints_sha256": ["d1", "d2"]}
    evil = training("evil", "output", BASE, owner="mallory", made=weights)
    games = games_of(evil, "d1", "d2", owner="mallory")
    false = published_weights("evil", evil, b"other", weights="ab" * 32)  # its files are not those weights
    plain = measured("honest", "my-llama", owner="honest", group=weights, facts=points)
    assert marks(plain, evil, games, false) == [CLAIM]
    assert rollouts_behind(plain, evil, games, false) == (0, False)

    learnt = training("learn", "output", BASE, owner="honest", made=weights)
    copied = training("learn", "output", "other", owner="mallory", made=weights, identity={"run": "cd" * 32})
    end = measured("end", "output", step("learn", "output", BASE), owner="honest", group=weights, facts=points)
    others = (learnt, games_of(learnt, "x", owner="honest"), evil, games, false, copied)
    assert rollouts_behind(end, *others) == (10, False)
    assert [mark for mark in marks(end, *others) if "claimed by" not in mark] == []

    named = measured("named", "mine", step("run", "mine", BASE), owner="honest", group=weights)
    wrong = training("run", "else", BASE, owner="mallory")  # a run of the same id, which made another model
    assert origin_of(named, wrong).proof == Proof.MISSING  # type: ignore[union-attr]


CLAIM = "claimed by run/mallory/evil@1 (iteration 0) and model/mallory/evil@1 (iteration 0), not confirmed"


def test_a_trained_model_that_nothing_identifies_is_marked() -> None:
    made = training("local", "output", BASE)
    assert marks(measured("end", "output", step("local", "output", BASE)), made) == ["weights not known"]


def test_a_stranger_cannot_claim_a_model_whose_name_anybody_may_give() -> None:
    """Else one hostile release would have every run of a base model continue it."""
    claim = training("claim", "gpt-4o-mini-2024-07-18", "nothing", owner="mallory")
    games = games_of(claim, "d1", "d2", owner="mallory")
    honest = measured("honest", "gpt-4o-mini-2024-07-18", facts={"datapoints_sha256": ["d1", "d2"]})
    assert origin_of(honest, claim, games) is None
    assert marks(honest, claim, games) == []
    two = [training("one", "ft:x", BASE, owner="a"), training("two", "ft:x", BASE, owner="b")]
    assert marks(measured("end", "ft:x"), *two) == [
        "claimed by run/a/one@1 (iteration 0) and run/b/two@1 (iteration 0), not confirmed"
    ]


def test_a_missing_ancestor_is_a_tombstone_with_its_digest_and_what_lies_behind_it_is_still_found() -> None:
    """The prototype's page raised KeyError for a run whose root was never published."""
    gone = step("second", TWO, ONE, release="run/acme/second@1", release_sha256="ab" * 32)
    end = measured("end", TWO, step("first", ONE, BASE), gone)
    assert str(origin_of(end, FIRST).reason).endswith(f"which is not here (sha256:{'ab' * 32})")  # type: ignore[union-attr]
    untold = "is not here: the effort of its training is not known"
    assert marks(end, FIRST) == [f"ancestor run/acme/second@1 {untold}"]
    lines = step("gone", ONE, BASE), step("gone", TWO, ONE, iteration=1, release="run/acme/gone@1")
    measuring = {"datapoints_sha256": ["a", "b"]}
    alone = measured("end", TWO, *lines, facts=measuring)  # one mark, however many of its models are in the lineage
    assert marks(alone) == [f"ancestor run/acme/gone@1 {untold}"]
    assert describe_effort(Lineage([alone]).ancestry(alone).total, "rollouts", "cost_usd") == "not known"
    assert rollouts_behind(end, FIRST) == (10, True)
    assert rollouts_behind(end) == (0, True)


def test_of_a_private_ancestor_nothing_is_told_but_that_it_is_there() -> None:
    hidden = training("second", TWO, ONE, step("first", ONE, BASE), visibility="private")
    end = measured("end", TWO, step("first", ONE, BASE), step("second", TWO, ONE))
    assert marks(end, hidden, FIRST) == [f"made by a private release, sha256:{hidden.sha256}"]
    assert rollouts_behind(end, hidden, FIRST) == (10, True)
    wrong = measured("wrong", "ft:else", step("second", "ft:else", ONE))
    assert "second@1" not in " ".join(marks(wrong, hidden))
    assert TWO not in " ".join(marks(wrong, hidden))


def test_a_yanked_ancestor_counts_and_is_told() -> None:
    yanked = training("second", TWO, ONE, step("first", ONE, BASE), yanked="a leak")
    end = measured("end", TWO, step("first", ONE, BASE), step("second", TWO, ONE))
    assert rollouts_behind(end, yanked, FIRST) == (20, False)
    assert "run/acme/second@1, an ancestor, was yanked: a leak" in marks(end, yanked, FIRST)


def test_another_release_under_the_name_it_was_made_from_is_told() -> None:
    last = step("first", ONE, BASE, release="run/acme/first@1", release_sha256="cd" * 32)
    assert "the lineage names another run/acme/first@1" in marks(measured("end", ONE, last), FIRST)[0]


def test_runs_that_claim_each_others_models_are_counted_once() -> None:
    chicken = training("chicken", "ft:c", "ft:e", step("egg", "ft:e", "ft:c"))
    egg = training("egg", "ft:e", "ft:c", step("chicken", "ft:c", "ft:e"))
    after = measured("after", "ft:c", step("chicken", "ft:c", "ft:e"))
    itself = training("itself", "ft:i", "ft:i0", step("itself", "ft:i0", "ft:i", dataset_sha256=None))
    lineage = Lineage([chicken, egg, after, FIRST, SECOND])
    assert lineage.ancestry(after).total.effort.rollouts == 20
    assert {row.node.run_id for row in build_history("egg", [chicken, egg, after])} == {"chicken", "egg", "after"}
    assert Lineage([itself]).ancestry(itself).total.effort.rollouts == 10


def test_a_training_took_no_less_than_its_own_published_games_say() -> None:
    parent = training("first", ONE, BASE)
    end = measured("end", ONE, step("first", ONE, BASE))
    for owner, most in (("acme", 500), ("mallory", 10)):
        facts = {"parent_run_id": "first", "kind": "training", "rollouts": 500}
        games = node("first-i0", group("any"), facts=facts, owner=owner)
        assert rollouts_behind(end, parent, games) == (most, False)


@pytest.mark.full
def test_a_chain_of_thousands_needs_no_stack() -> None:
    names = [f"m{n:04d}" for n in range(600)]
    chain = [
        training(f"r{n:04d}", names[n + 1], names[n], *([step(f"r{n - 1:04d}", names[n], names[n - 1])] if n else []))
        for n in range(len(names) - 1)
    ]
    end = measured("zz", names[-1], step("r0598", names[-1], names[-2]))
    assert rollouts_behind(end, *chain) == (10 * len(chain), False)
    assert len(build_history("m0100", chain[:200])) == 200


def test_copies_of_a_run_count_once_and_what_another_owners_copy_says_otherwise_is_a_claim() -> None:
    cheap = training("first", ONE, BASE, owner="thief", group={"games": []})
    end = measured("end", ONE, step("first", ONE, BASE), owner="thief")
    assert rollouts_behind(end, FIRST, cheap) == rollouts_behind(end, cheap) == (0, True)  # at least: its own word
    assert "claimed by run/acme/first@1 (iteration 0), not confirmed" in marks(end, FIRST, cheap)
    honest = measured("end", ONE, step("first", ONE, BASE))
    dear = training("first", ONE, BASE, owner="mallory", group={"games": [{"iteration": 0, "rollouts": 10**9}]})
    assert rollouts_behind(honest, FIRST, dear) == (10, False)  # nor can a stranger's copy make a run look dearer
    assert rollouts_behind(honest, FIRST, training("first", ONE, BASE, owner="colleague")) == (10, False)
    assert marks(honest, FIRST, training("first", ONE, BASE, owner="colleague")) == []


def test_a_benchmark_whose_lineage_trained_on_its_datapoints_is_marked() -> None:
    end = measured("end", ONE, step("first", ONE, BASE), facts={"datapoints_sha256": ["a", "b", "c", "d"]})
    assert marks(end, FIRST, games_of(FIRST, "b", "d", "x")) == ["trained on 2 of its 4 datapoints"]
    assert marks(end, FIRST, games_of(FIRST, "x")) == []
    assert marks(end, FIRST) == ["trained on an unknown number of its 4 datapoints"]  # nothing is known of its games
    foreign = games_of(FIRST, "a", "b", "c", "d", owner="mallory")
    assert marks(end, FIRST, games_of(FIRST, "x"), foreign) == []  # whose games they are is for their run to say


def test_only_what_an_iteration_learnt_from_is_behind_it() -> None:
    zero, one = step("run", "ft:0", BASE), step("run", "ft:1", BASE, iteration=1)
    apart = node("run", group(BASE, made=[{**zero, "trained_on": [0]}, {**one, "trained_on": [1]}]))
    chained = node("run", group(BASE, made=[zero, {**one, "from_iteration": 0}]))
    together = node("run", group(BASE, made=[zero, {**one, "trained_on": [0, 1]}]))
    end = measured("end", "ft:1", one)
    assert [rollouts_behind(end, made)[0] for made in (apart, chained, together)] == [10, 20, 20]


@pytest.mark.parametrize(
    "wrong",
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
def test_facts_that_are_no_runs_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ReleaseError, match="run/acme/odd@1: invalid facts of a run"):
        node("odd", facts=wrong)


def test_what_a_model_of_another_group_says_is_no_claim() -> None:
    """A run of two groups, whose lineage names no owner, as that of a run played anew does."""
    lines = step("duo", "m:v", BASE), step("duo", "m:p", BASE)
    duo = node("duo", group(BASE, made=[lines[0]]), group(BASE, made=[lines[1]], group="p"))
    models = [node("duo", one) for one in (group(BASE, made=[lines[0]]), group(BASE, made=[lines[1]], group="p"))]
    end = replace(measured("end", "m:v", lines[0]), owner=None)
    assert marks(end, duo, *models) == ["weights not known"]
