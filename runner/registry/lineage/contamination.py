"""What is told of a run for where its models came from: in words for a row, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runner.registry.lineage.edges import MINTED, Edge, ModelMaker, Proof
from runner.registry.lineage.lineage import Ancestry, Contact, Total
from runner.registry.lineage.sessions import LineageSession

NO_WEIGHTS = "weights not known"
"""Of a run with a trained model that nothing but a name identifies; `legend` says so, once below the table."""


def marks_of(session: LineageSession, ancestry: Ancestry, contact: Contact | None) -> list[str]:
    """What a reader must know of a run, the worst first."""
    gone = _gone(ancestry.edges)
    marks = [] if contact is None or not (contact.trained_on or (contact.at_least and not gone)) else [str(contact)]
    for edge in ancestry.edges:
        if edge.left_out and edge.makers:
            marks.append(f"goes on from {made_by(edge)}, which its own lineage leaves out")
        elif edge.gone is not None:
            marks.append(f"ancestor {gone[edge.gone]} is not here: what its training took is not known")
        elif edge.why is not None:
            marks.append(edge.why)
        if edge.claimed_by:
            marks.append(claimed_in_words(edge))
        marks.extend(
            f"{maker.session.key}, an ancestor, was yanked: {maker.session.yanked}"
            for maker in edge.makers
            if maker.session.yanked is not None
        )
    if session.yanked is not None:
        marks.append(f"yanked: {session.yanked}")
    if session.facts.get("pinned") is False:
        marks.append("not pinned: its files are in no public commit")
    if any(map(without_weights, ancestry.edges)):
        marks.append(NO_WEIGHTS)
    return list(dict.fromkeys(marks))


def _gone(edges: Iterable[Edge]) -> dict[str, str]:
    """What each ancestor that is not here is called, by its run's id: by its release, where any step names it."""
    found: dict[str, str] = {}
    for edge in edges:
        if edge.gone is not None:
            release = edge.use.lineage[-1].release
            found[edge.gone] = release or found.get(edge.gone, edge.gone)
    return found


def made_by(edge: Edge) -> str:
    """Who made a model, as `run/acme/learn@1`, and in which iteration; a model's release only where no run is there."""
    runs = {maker.session.run for maker in edge.makers if maker.session.kind != "model"}
    return _named([maker for maker in edge.makers if maker.session.kind != "model" or maker.session.run not in runs])


def _named(makers: Sequence[ModelMaker]) -> str:
    """Makers by release and iteration; of a run that is here not its releases, too."""
    here = {one.session.run for one in makers if one.session.owner is None}
    makers = [one for one in makers if one.session.owner is None or one.session.run not in here]
    return " and ".join(dict.fromkeys(f"{one.session.key} (iteration {one.made.step.iteration})" for one in makers))


def claimed_in_words(edge: Edge) -> str:
    """Who says that they made a model, where nothing confirms it."""
    return f"claimed by {_named(edge.claimed_by)}, not confirmed"


def without_weights(edge: Edge) -> bool:
    """Whether a model that was trained is known by neither the hash of its weights nor a name that is given once."""
    use = edge.use
    last = use.lineage[-1] if use.lineage else None
    trained = last is not None or bool(edge.makers)
    hashes = [use.weights_sha256, last and last.weights_sha256, *(one.made.step.weights_sha256 for one in edge.makers)]
    return trained and not any(hashes) and not (use.model or "").startswith(MINTED)


def edge_json(edge: Edge) -> dict[str, Any]:
    """Where a model came from, for machines."""
    return {
        "run": edge.use.session.key if not edge.use.session.private else None,
        "group": edge.use.group.name,
        "model": edge.use.model,
        "proof": str(edge.proof),
        "why": edge.why,
        "left_out_of_its_lineage": edge.left_out,
        "claimed_by": [maker.session.key for maker in edge.claimed_by],
        "made_by": [
            {
                "release": maker.session.key,
                "sha256": maker.session.sha256,
                "run_id": maker.session.run_id,
                "iteration": maker.made.step.iteration,
                "yanked": maker.session.yanked,
            }
            for maker in edge.makers
        ],
    }


def total_json(ancestry: Ancestry) -> dict[str, Any]:
    """What all training behind a run took, for machines."""
    total = ancestry.total
    return {
        **vars(total.effort),
        "at_least": sorted(total.at_least),
        "runs": ancestry.runs,
        "iterations": len(ancestry.trained),
        "unknown": list(dict.fromkeys(ancestry.unknown)),
    }


def effort_in_words(total: Total, *names: str) -> str:
    """`24 rollouts`, `at least 24 rollouts`, `not known`; `none`: nothing was trained, as far as anybody knows."""
    shown = []
    for name in names:
        if value := getattr(total.effort, name):
            least = "at least " if name in total.at_least else ""
            figure = f"${value:.2f}" if name == "cost_usd" else f"{value:,} {name.replace('_', ' ')}"
            shown.append(f"{least}{figure}")
    return ", ".join(shown) or ("none" if total.at_least.isdisjoint(names) else "not known")


def proof_in_words(edge: Edge) -> str:
    """How an edge is known, and from whom."""
    if edge.proof == Proof.CLAIMED:
        return claimed_in_words(edge)
    if edge.proof in (Proof.MISSING, Proof.BROKEN):
        return f"{edge.proof}: {edge.why}"
    return f"{edge.proof}: {made_by(edge)}"


_PROOFS = {
    Proof.PROVED: "by the hash of its weights",
    Proof.DECLARED: "by its name, and by the word of whoever used it",
    Proof.CLAIMED: "by the word of others alone, which counts for nothing",
    Proof.BROKEN: "not known, since that run made no such model",
    Proof.MISSING: "not known, since that run is not here",
}


def legend(marks: Iterable[str]) -> str | None:
    """What words of marks mean: of those who tell who made a model, and that weights are not known; None: no such."""
    found = set(marks)
    begun = {mark.split(" ", 1)[0].rstrip(":") for mark in found}
    proofs = "; ".join(f"{proof}: {how}" for proof, how in _PROOFS.items() if proof in begun)
    told = [f"how it is known which run made a model: {proofs}"] if proofs else []
    if NO_WEIGHTS in found:
        told.append(f"{NO_WEIGHTS}: nothing but a name says which model it is")
    return "; ".join(told) or None
