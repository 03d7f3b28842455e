"""Describe the training behind a run's models: as *marks* (remarks on the run's row), as text and as JSON.

Boards and `nip-run log` show these descriptions. The *origin* of a model is the run that trained it; that run is the
model's *maker*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runner.registry.lineage.lineage import Ancestry, Total, TrainingOverlap
from runner.registry.lineage.model_origins import ModelMaker, ModelOrigin, Proof
from runner.registry.lineage.nodes import LineageNode

NO_WEIGHTS = "weights not known"
"""The mark of a run with a trained model that has neither a hash of its weights nor a unique name."""


def describe_marks(node: LineageNode, ancestry: Ancestry, overlap: TrainingOverlap | None) -> list[str]:
    """Return the marks of a run, about its training data, ancestors and files, the most serious first."""
    missing = _missing_runs(ancestry.origins)
    marks = []
    if overlap is not None and (overlap.trained_on or (overlap.at_least and not missing)):
        marks.append(str(overlap))
    for origin in ancestry.origins:
        if origin.is_undeclared and origin.makers:
            marks.append(f"ancestor {describe_makers(origin)}, which its own lineage omits")
        elif origin.missing_run is not None:
            marks.append(f"ancestor {missing[origin.missing_run]} is not here: the effort of its training is not known")
        elif origin.reason is not None:
            marks.append(origin.reason)
        if origin.claimed_by:
            marks.append(_describe_claims(origin))
        marks.extend(
            f"{maker.node.key}, an ancestor, was yanked: {maker.node.yanked}"
            for maker in origin.makers
            if maker.node.yanked is not None
        )
    if node.yanked is not None:
        marks.append(f"yanked: {node.yanked}")
    if node.facts.get("pinned") is False:
        marks.append("not pinned: its files are in no public commit")
    if any(map(_has_unknown_weights, ancestry.origins)):
        marks.append(NO_WEIGHTS)
    return list(dict.fromkeys(marks))


def _missing_runs(origins: Iterable[ModelOrigin]) -> dict[str, str]:
    """Return the names of the missing ancestors by run id: the name of the release, or the run id if it is unknown."""
    names: dict[str, str] = {}
    for origin in origins:
        if origin.missing_run is not None:
            release = origin.use.lineage[-1].release
            names[origin.missing_run] = release or names.get(origin.missing_run, origin.missing_run)
    return names


def describe_makers(origin: ModelOrigin) -> str:
    """Return the runs and iterations that made a model, as text; model releases only of runs that are missing."""
    runs = {maker.node.run for maker in origin.makers if maker.node.kind != "model"}
    return _format_makers(
        [maker for maker in origin.makers if maker.node.kind != "model" or maker.node.run not in runs]
    )


def _format_makers(makers: Sequence[ModelMaker]) -> str:
    """Return the releases and iterations of makers, as text. A run of this results folder replaces its releases."""
    local = {maker.node.run for maker in makers if maker.node.owner is None}
    makers = [maker for maker in makers if maker.node.owner is None or maker.node.run not in local]
    names = (f"{maker.node.key} (iteration {maker.output_model.step.iteration})" for maker in makers)
    return " and ".join(dict.fromkeys(names))


def _describe_claims(origin: ModelOrigin) -> str:
    return f"claimed by {_format_makers(origin.claimed_by)}, not confirmed"


def _has_unknown_weights(origin: ModelOrigin) -> bool:
    """Return whether a trained model has neither a hash of its weights nor a unique name."""
    use = origin.use
    last_step = use.lineage[-1] if use.lineage else None
    is_trained = last_step is not None or bool(origin.makers)
    hashes = [
        use.weights_sha256, last_step and last_step.weights_sha256,
        *(maker.output_model.step.weights_sha256 for maker in origin.makers),
    ]  # fmt: skip
    return is_trained and not any(hashes) and not use.has_unique_name


def origin_to_json(origin: ModelOrigin) -> dict[str, Any]:
    """Return an origin as JSON."""
    return {
        "run": origin.use.node.key if not origin.use.node.private else None,
        "group": origin.use.group.name,
        "model": origin.use.model,
        "proof": str(origin.proof),
        "why": origin.reason,
        "left_out_of_its_lineage": origin.is_undeclared,
        "claimed_by": [maker.node.key for maker in origin.claimed_by],
        "made_by": [
            {
                "release": maker.node.key,
                "sha256": maker.node.sha256,
                "run_id": maker.node.run_id,
                "iteration": maker.output_model.step.iteration,
                "yanked": maker.node.yanked,
            }
            for maker in origin.makers
        ],
    }


def total_to_json(ancestry: Ancestry) -> dict[str, Any]:
    """Return the effort of all training behind a run as JSON."""
    total = ancestry.total
    return {
        **vars(total.effort),
        "at_least": sorted(total.at_least),
        "runs": ancestry.runs,
        "iterations": len(ancestry.games),
        "unknown": list(dict.fromkeys(ancestry.unknown)),
    }


def describe_effort(total: Total, *names: str) -> str:
    """Return effort as text: `24 rollouts`, `at least 24 rollouts`, `not known`, or `none` without training."""
    parts = []
    for name in names:
        if value := getattr(total.effort, name):
            prefix = "at least " if name in total.at_least else ""
            number = f"${value:.2f}" if name == "cost_usd" else f"{value:,} {name.replace('_', ' ')}"
            parts.append(f"{prefix}{number}")
    return ", ".join(parts) or ("none" if total.at_least.isdisjoint(names) else "not known")


def describe_origin(origin: ModelOrigin) -> str:
    """Return who made a model, and how this is known, as text."""
    if origin.proof == Proof.CLAIMED:
        return _describe_claims(origin)
    if origin.proof in (Proof.MISSING, Proof.BROKEN):
        return f"{origin.proof}: {origin.reason}"
    return f"{origin.proof}: {describe_makers(origin)}"


_PROOFS = {
    Proof.PROVED: "by the hash of its weights",
    Proof.DECLARED: "the run that used the model says so, by the model's name",
    Proof.CLAIMED: "another owner claims to have trained the model, but nothing confirms it",
    Proof.BROKEN: "unknown, because the named run trained no such model",
    Proof.MISSING: "unknown, because the named run is not here",
}


def explain_marks(marks: Iterable[str]) -> str | None:
    """Explain the terms that occur in marks; return None if no term needs an explanation."""
    marks = set(marks)
    first_words = {mark.split(" ", 1)[0].rstrip(":") for mark in marks}
    proofs = "; ".join(f"{proof}: {explanation}" for proof, explanation in _PROOFS.items() if proof in first_words)
    lines = [f"how nip-run knows which run trained a model: {proofs}"] if proofs else []
    if NO_WEIGHTS in marks:
        lines.append(f"{NO_WEIGHTS}: only a name identifies the model, and others may use the same name")
    return "; ".join(lines) or None
