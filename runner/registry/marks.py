"""What is told of a run for where its models came from: in words for a row, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from runner.registry.edges import Edge, Proof
from runner.registry.lineage import Ancestry, Contact, Total
from runner.registry.sessions import Session


def marks_of(session: Session, ancestry: Ancestry, contact: Contact | None) -> list[str]:
    """What a reader must know of a run, the worst first."""
    marks = [] if contact is None or not (contact.trained_on or contact.at_least) else [str(contact)]
    for edge in ancestry.edges:
        if edge.left_out and edge.makers:
            marks.append(f"goes on from {made_by(edge)}, which its own lineage leaves out")
        elif edge.why is not None:
            marks.append(edge.why)
        marks.extend(
            f"{maker.session.key}, an ancestor, was yanked: {maker.session.yanked}"
            for maker in edge.makers
            if maker.session.yanked is not None
        )
    if session.yanked is not None:
        marks.append(f"yanked: {session.yanked}")
    if session.facts.get("pinned") is False:
        marks.append("not pinned: its files are in no public commit")
    return list(dict.fromkeys(marks))


def made_by(edge: Edge) -> str:
    """Who made a model, as `run/acme/learn@1`, and in which iteration; a model's release only where no run is there."""
    runs = {maker.session.run for maker in edge.makers if maker.session.kind != "model"}
    makers = [maker for maker in edge.makers if maker.session.kind != "model" or maker.session.run not in runs]
    return " and ".join(dict.fromkeys(f"{one.session.key} (iteration {one.made.step.iteration})" for one in makers))


def edge_json(edge: Edge) -> dict[str, Any]:
    """Where a model came from, for machines."""
    return {
        "run": edge.use.session.key if not edge.use.session.private else None,
        "group": edge.use.group.name,
        "model": edge.use.model,
        "proof": str(edge.proof),
        "why": edge.why,
        "left_out_of_its_lineage": edge.left_out,
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
        **asdict(total.effort),
        "at_least": sorted(total.at_least),
        "runs": ancestry.runs,
        "iterations": len(ancestry.trained),
        "unknown": list(dict.fromkeys(ancestry.unknown)),
    }


def effort_in_words(total: Total, *names: str) -> str:
    """`24 rollouts`, `at least 24 rollouts`; `none` where nothing was trained, as far as anybody knows."""
    shown = []
    for name in names:
        value = getattr(total.effort, name) or 0
        least = "at least " if name in total.at_least else ""
        if value or least:
            figure = f"${value:.2f}" if name == "cost_usd" else f"{value:,} {name.replace('_', ' ')}"
            shown.append(f"{least}{figure}")
    return ", ".join(shown) or "none"


def proof_in_words(edge: Edge) -> str:
    """How an edge is known, and from whom."""
    if edge.proof in (Proof.MISSING, Proof.BROKEN):
        return f"{edge.proof}: {edge.why}"
    return f"{edge.proof}: {made_by(edge)}"
