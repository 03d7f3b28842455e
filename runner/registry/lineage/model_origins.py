"""Find the origin of a model: the run whose training made the model that another run started from.

Boards and `nip-run log` use origins to add up the training behind a model. A run declares the
past trainings of its models (its *lineage*), but a publisher could remove steps from it. So an origin is found by the
model's identity. It is *proved* by the hash of the weights, *declared* by the model's name at its provider, and
*broken* if the lineage names a run that did not make the model.

Anyone can publish a run that claims to have made someone else's model: its log can be written by hand, and a registry
does not record who was first. The training in such a claim counts only if one of these confirms the claim:

- The same owner published the claiming run and the run that started from the model.
- The lineage of the run that started from the model names the claiming run and its owner.
- The claiming owner published a model release whose files have the hash of the weights. This shows that the owner had
  the weights, not that no one else had them.

An origin with only unconfirmed claims is *claimed*. A board shows such claims with their owners, but adds no training
and no warning because of them, so strangers cannot harm another owner's run. If the name of a model shows that it was
fine-tuned, the sums are lower bounds, with or without a confirmed claim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.registry.lineage.nodes import LineageNode
from runner.registry.lineage.typed_facts import Group, OutputModel, TrainingStep

UNIQUE_PREFIX = "ft:"
"""Prefix of the names that a provider gives to fine-tuned models. The provider gives each name only once."""


class Proof(StrEnum):
    """How an origin is known."""

    PROVED = "proved"
    DECLARED = "declared"
    CLAIMED = "claimed"
    """Another owner claims to have produced the model, and nothing confirms the claim."""
    BROKEN = "broken"
    """The lineage names a run that did not produce the model."""
    MISSING = "missing"
    """The run that produced the model is not among the known runs, or is private."""


@dataclass(frozen=True)
class ModelUse:
    """A model that a run started from, or an ancestor of this model in the declared lineage."""

    node: LineageNode
    """The run."""
    group: Group
    """The run's model group that started from the model."""
    model: str | None
    """The model's name at its provider."""
    weights_sha256: str | None
    lineage: tuple[TrainingStep, ...]
    """The declared trainings of the model, from the first to the last."""

    @classmethod
    def from_group(cls, node: LineageNode, group: Group) -> ModelUse:
        """Return the model that a run started from in a model group."""
        return cls(node, group, group.model, group.weights_sha256, group.lineage)

    @property
    def has_unique_name(self) -> bool:
        return (self.model or "").startswith(UNIQUE_PREFIX)


@dataclass(frozen=True)
class ModelMaker:
    """A run or model release that says that it made a model."""

    node: LineageNode
    group: Group
    output_model: OutputModel

    @property
    def key(self) -> tuple[tuple[str, str], str, int]:
        """The run (id and identity), model group and iteration that made the model."""
        return self.node.run, self.group.name, self.output_model.step.iteration

    @property
    def step_key(self) -> tuple[str, int]:
        """The run id and iteration that made the model. A lineage names a training by these two."""
        return self.node.run_id, self.output_model.step.iteration


@dataclass(frozen=True)
class ModelOrigin:
    """The origin of a model. If no maker is known, `reason` says why."""

    use: ModelUse
    proof: Proof
    makers: tuple[ModelMaker, ...] = ()
    """The confirmed makers of the model: several if, for example, a run and its model release are both published."""
    reason: str | None = None
    """A remark for users about what is wrong or unknown."""
    is_undeclared: bool = False
    """Whether the origin is missing in the lineage that the run declares."""
    claimed_by: tuple[ModelMaker, ...] = ()
    """The makers whose claims are not confirmed."""
    missing_run: str | None = None
    """The id of the run that the lineage names, if this run is not among the known runs."""


class OriginIndex:
    """Finds the origins of models among given runs: those of a registry, of a results folder, or of both."""

    def __init__(self, nodes: Iterable[LineageNode]) -> None:
        self.nodes = list(nodes)
        self._by_weights: dict[str, list[ModelMaker]] = defaultdict(list)
        self._by_name: dict[tuple[str, str], list[ModelMaker]] = defaultdict(list)
        self._by_step: dict[tuple[str, int], list[ModelMaker]] = defaultdict(list)
        self._by_run: dict[str, list[LineageNode]] = defaultdict(list)
        self._cache: dict[tuple[int, str], ModelOrigin | None] = {}
        for node in self.nodes:
            self._by_run[node.run_id].append(node)
            for group in node.groups:
                for model in group.output_models:
                    self._add(ModelMaker(node, group, model))

    def _add(self, maker: ModelMaker) -> None:
        step = maker.output_model.step
        self._by_step[maker.step_key].append(maker)
        self._by_name[maker.group.provider, step.model].append(maker)
        if step.weights_sha256 is not None:
            self._by_weights[step.weights_sha256].append(maker)

    def origin_of(self, node: LineageNode, group: Group) -> ModelOrigin | None:
        """Return the origin of the model that a model group of a run started from. The result is cached."""
        key = (id(node), group.name)
        if key not in self._cache:
            self._cache[key] = self.find_origin(ModelUse.from_group(node, group))
        return self._cache[key]

    def makers_of(self, node: LineageNode) -> list[ModelMaker]:
        """Return the makers of all models that a run started from."""
        origins = (self.origin_of(node, group) for group in node.groups)
        return [maker for origin in origins if origin is not None for maker in origin.makers]

    def find_origin(self, use: ModelUse) -> ModelOrigin | None:
        """Return the origin of a model; None if nothing shows that the model was trained in a run."""
        same_weights = _without_own_run(self._by_weights.get(use.weights_sha256 or "", ()), use)
        makers, unconfirmed = _split_claims(same_weights, use)
        origin = self._find_by_weights(use, makers) if makers else self._find_by_declaration(use)
        if not unconfirmed:
            return origin
        claims = _public_makers(unconfirmed)
        if origin is None:
            return ModelOrigin(use, Proof.CLAIMED, claimed_by=claims)
        new_claims = [claim for claim in claims if claim not in origin.claimed_by]
        return replace(origin, claimed_by=(*origin.claimed_by, *new_claims))

    def _find_by_declaration(self, use: ModelUse) -> ModelOrigin | None:
        """Return the origin according to the declared lineage, or to the model's name if there is no lineage."""
        if use.lineage:
            return self._find_by_lineage(use, use.lineage[-1])
        origin = self._find_by_name(use, None)
        if origin is None and use.has_unique_name:
            reason = f"{use.model} is a fine-tuned model, and its training is not here"
            return ModelOrigin(use, Proof.MISSING, reason=reason)
        return origin

    def _find_by_weights(self, use: ModelUse, makers: Sequence[ModelMaker]) -> ModelOrigin:
        """Return the origin from the makers of the same weights; it is `BROKEN` if the lineage names other weights."""
        if not use.lineage:
            return _hide_private(ModelOrigin(use, Proof.PROVED, tuple(makers), is_undeclared=True))
        last_step = use.lineage[-1]
        is_declared = any(maker.step_key == (last_step.run_id, last_step.iteration) for maker in makers)
        named_makers = self._by_step[last_step.run_id, last_step.iteration]
        if is_declared or not any(_is_named(maker.node, use, last_step) for maker in named_makers):
            return _hide_private(ModelOrigin(use, Proof.PROVED, tuple(makers), is_undeclared=not is_declared))
        reason = (
            f"the lineage says that {last_step.run_id} made the model, but its weights were made by "
            f"{_format_makers(makers)}"
        )
        return _hide_private(ModelOrigin(use, Proof.BROKEN, tuple(makers), reason))

    def _find_by_lineage(self, use: ModelUse, last_step: TrainingStep) -> ModelOrigin:
        """Return the origin that the last step of the declared lineage names."""
        if use.model is not None and use.model != last_step.model:
            return self._broken_origin(
                use, f"the run used {use.model}, but the lineage of its model ends with {last_step.model}"
            )
        same_step = self._by_step[last_step.run_id, last_step.iteration]
        candidates = _select_named_makers(same_step, use, last_step)
        makers = [maker for maker in candidates if _matches(maker, use, last_step)]
        if makers:
            runs = {maker.node.run for maker in makers}
            by_other_owners = [maker for maker in same_step if not _is_named(maker.node, use, last_step)]
            same_run = [maker for maker in by_other_owners if maker.node.run in runs]
            claims = _public_makers(_without_copies(same_run, makers))
            reason = _describe_other_release(makers, last_step)
            return _hide_private(ModelOrigin(use, Proof.DECLARED, tuple(makers), reason, claimed_by=claims))
        named_makers = [maker for maker in candidates if _is_named(maker.node, use, last_step)]
        if named_makers:
            models = _describe_other_models(named_makers, last_step)
            return self._broken_origin(
                use, f"the lineage says that {_format_makers(named_makers)} made the model, but that run made {models}"
            )
        step = f"iteration {last_step.iteration} of {last_step.run_id}"
        nodes = (node for node in self._by_run[last_step.run_id] if _is_named(node, use, last_step))
        if any(node.kind == "training" for node in nodes):
            return self._broken_origin(
                use, f"the lineage says that {step} made the model, but that iteration made none"
            )
        missing = ModelOrigin(use, Proof.MISSING, reason=_describe_missing(last_step), missing_run=last_step.run_id)
        return self._find_by_name(use, f"the lineage names {step}") or missing

    def _broken_origin(self, use: ModelUse, reason: str) -> ModelOrigin:
        """Return an origin for a wrong lineage, with the makers of models that have the same name."""
        makers, claims = _split_claims(self._makers_of_name(use), use)
        return ModelOrigin(use, Proof.BROKEN, _public_makers(makers), reason, claimed_by=_public_makers(claims))

    def _find_by_name(self, use: ModelUse, reason: str | None) -> ModelOrigin | None:
        """Return the origin that the model's name alone shows; None if no run made a model with this name."""
        makers, claims = _split_claims(self._makers_of_name(use), use)
        if not makers:
            return ModelOrigin(use, Proof.CLAIMED, reason=reason, claimed_by=_public_makers(claims)) if claims else None
        if len({maker.node.run for maker in makers}) > 1:
            reason = f"several runs say that they made {use.model}: {_format_makers(makers)}"
            return ModelOrigin(use, Proof.MISSING, reason=reason, is_undeclared=True)
        is_undeclared = not use.lineage
        return _hide_private(ModelOrigin(use, Proof.DECLARED, tuple(makers), reason, is_undeclared=is_undeclared))

    def _makers_of_name(self, use: ModelUse) -> list[ModelMaker]:
        """Return the makers of models with this name by the same owner; if there are none, by all owners.

        Other owners count only if the provider gave the name. Publishers choose all other names, so equal names of two
        owners prove nothing.
        """
        if use.model is None:
            return []
        makers = _without_own_run(self._by_name.get((use.group.provider, use.model), ()), use)
        own_makers = [maker for maker in makers if maker.node.owner == use.node.owner]
        return own_makers or (makers if use.has_unique_name else [])


def _without_own_run(makers: Iterable[ModelMaker], use: ModelUse) -> list[ModelMaker]:
    return [maker for maker in makers if maker.node.run != use.node.run]


def _hide_private(origin: ModelOrigin) -> ModelOrigin:
    """Return an origin without its private makers. If all makers are private, `reason` has the hash of one of them."""
    public = _public_makers(origin.makers)
    if public:
        return replace(origin, makers=public)
    reason = f"made by a private release, sha256:{origin.makers[0].node.sha256}"
    return ModelOrigin(origin.use, Proof.MISSING, reason=reason, is_undeclared=origin.is_undeclared)


def _split_claims(makers: Sequence[ModelMaker], use: ModelUse) -> tuple[list[ModelMaker], list[ModelMaker]]:
    """Return the makers with confirmed claims, and those with unconfirmed claims; see the module's docstring.

    If the owner of `use` published the weights, another owner's publication of the same weights confirms nothing.
    """
    confirmed = [maker for maker in makers if maker.node.owner in (None, use.node.owner)]
    with_weights = [
        maker
        for maker in makers
        if maker.node.published_weights is not None and maker.node.published_weights == use.weights_sha256
    ]
    if not any(maker in confirmed for maker in with_weights):
        runs = {(maker.node.run, maker.node.owner) for maker in with_weights}
        confirmed += [maker for maker in makers if (maker.node.run, maker.node.owner) in runs]
    if not confirmed and use.lineage:
        last_step = use.lineage[-1]
        same_step = [maker for maker in makers if maker.step_key == (last_step.run_id, last_step.iteration)]
        confirmed = _select_named_makers(same_step, use, last_step)
    return confirmed, _without_copies(makers, confirmed)


def _without_copies(makers: Sequence[ModelMaker], confirmed: Sequence[ModelMaker]) -> list[ModelMaker]:
    """Return the makers that are not confirmed, except those in other releases of a confirmed maker's run."""
    groups = [(maker.node.run, group) for maker in confirmed for group in maker.node.groups]
    return [maker for maker in makers if maker not in confirmed and (maker.node.run, maker.group) not in groups]


def _select_named_makers(makers: Sequence[ModelMaker], use: ModelUse, last_step: TrainingStep) -> list[ModelMaker]:
    """Return the makers that the last step of a lineage names; if there are none and the step names no owner, all."""
    named_makers = [maker for maker in makers if _is_named(maker.node, use, last_step)]
    return named_makers or (list(makers) if last_step.release is None else [])


def _is_named(node: LineageNode, use: ModelUse, last_step: TrainingStep) -> bool:
    """Return whether the last step of a lineage names this run, and not another owner's run with the same id."""
    owner = [] if last_step.release is None else last_step.release.split("/")[-2:-1]
    return node.owner in (None, use.node.owner, *owner)


def _public_makers(makers: Sequence[ModelMaker]) -> tuple[ModelMaker, ...]:
    return tuple(maker for maker in makers if not maker.node.private)


def _matches(maker: ModelMaker, use: ModelUse, last_step: TrainingStep) -> bool:
    """Return whether a maker made the model that the last step of a lineage describes."""
    step = maker.output_model.step
    hashes = {digest for digest in (use.weights_sha256, last_step.weights_sha256) if digest is not None}
    return (
        step.model == last_step.model
        and last_step.dataset_sha256 in (None, step.dataset_sha256)
        and (not hashes or step.weights_sha256 is None or hashes == {step.weights_sha256})
    )


def _describe_other_release(makers: Sequence[ModelMaker], last_step: TrainingStep) -> str | None:
    """Return a remark if the lineage names a maker's release, but with another hash; otherwise None."""
    for maker in makers:
        node = maker.node
        if node.key == last_step.release and last_step.release_sha256 not in (None, node.sha256):
            return f"the lineage names another {node.key} (sha256:{last_step.release_sha256}) than the one that is here"
    return None


def _describe_missing(last_step: TrainingStep) -> str:
    """Return a remark about an ancestor that is not among the known runs."""
    release = f", {last_step.release}" if last_step.release else ""
    digest = last_step.release_sha256 or last_step.weights_sha256
    hash_text = f"sha256:{digest}" if digest else f"trained on a dataset of sha256:{last_step.dataset_sha256}"
    return f"made by {last_step.run_id}{release}, which is not here ({hash_text})"


def _format_makers(makers: Sequence[ModelMaker]) -> str:
    names = ("a private release" if maker.node.private else maker.node.key for maker in makers)
    return " and ".join(dict.fromkeys(names))


def _describe_other_models(makers: Sequence[ModelMaker], last_step: TrainingStep) -> str:
    """Describe the models that the makers made instead of the model in a lineage."""
    models = {maker.output_model.step.model for maker in _public_makers(makers)}
    if last_step.model not in models:
        return " and ".join(sorted(models)) or "another model"
    steps = [maker.output_model.step for maker in makers if maker.output_model.step.model == last_step.model]
    if all(last_step.dataset_sha256 not in (None, step.dataset_sha256) for step in steps):
        return f"{last_step.model} on another dataset"
    return f"{last_step.model} with other weights"
