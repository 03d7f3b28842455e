"""Which run made the model that another began with.

An edge is found by the identity of the model, not by what somebody says of its past: by the hash of its weights it is
*proved*, by its name at its provider it is *declared*, and where a lineage says that a run made a model which that run
did not make it is *broken*. A lineage that was cut out by hand leaves the edge where it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runner.registry.sessions import Group, Made, Session, Step

MINTED = "ft:"
"""What the names of fine-tuned models begin with that a provider gives to no two."""


class Proof(StrEnum):
    """How an edge is known."""

    PROVED = "proved"
    DECLARED = "declared"
    BROKEN = "broken"
    MISSING = "missing"
    """The run that is named is not here, or nothing may be seen of it."""


@dataclass(frozen=True)
class Use:
    """A model that a run began with."""

    session: Session
    group: Group
    model: str | None
    weights_sha256: str | None
    lineage: tuple[Step, ...]

    @classmethod
    def of(cls, session: Session, group: Group) -> Use:
        return cls(session, group, group.model, group.weights_sha256, group.lineage)

    def before(self) -> Use:
        """The model that its last training started from, by its own lineage alone."""
        return Use(self.session, self.group, self.lineage[-1].from_model, None, self.lineage[:-1])


@dataclass(frozen=True)
class Maker:
    """A run, or a model's release, that has made a model of a group."""

    session: Session
    group: Group
    made: Made

    @property
    def key(self) -> tuple[tuple[str, str], str, int]:
        return self.session.run, self.group.name, self.made.step.iteration


@dataclass(frozen=True)
class Edge:
    """Where a model came from. Without makers nothing more is known of it than what `why` says."""

    use: Use
    proof: Proof
    makers: tuple[Maker, ...] = ()
    why: str | None = None
    """What is to be told of it."""
    left_out: bool = False
    """Whether the lineage that the run declares does not say so."""


class Edges:
    """Where each model came from, among the sessions of a registry, of a results folder, or of both."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self.sessions = list(sessions)
        self._by_weights: dict[str, list[Maker]] = defaultdict(list)
        self._by_name: dict[tuple[str, str], list[Maker]] = defaultdict(list)
        self._by_step: dict[tuple[str, int], list[Maker]] = defaultdict(list)
        self._by_run: dict[str, list[Session]] = defaultdict(list)
        self._found: dict[tuple[int, str], Edge | None] = {}
        for session in self.sessions:
            self._by_run[session.run_id].append(session)
            for group in session.groups:
                for made in group.made:
                    self._index(Maker(session, group, made))

    def _index(self, maker: Maker) -> None:
        step = maker.made.step
        self._by_step[maker.session.run_id, step.iteration].append(maker)
        self._by_name[maker.group.provider, step.model].append(maker)
        if step.weights_sha256 is not None:
            self._by_weights[step.weights_sha256].append(maker)

    def edge_of(self, session: Session, group: Group) -> Edge | None:
        """Where the model came from that a run began with in a group; found once."""
        key = (id(session), group.name)
        if key not in self._found:
            self._found[key] = self.edge(Use.of(session, group))
        return self._found[key]

    def edge(self, use: Use) -> Edge | None:
        """Where a model came from; None where, as far as anybody knows, nothing was trained before."""
        by_bytes = [
            maker
            for maker in self._by_weights.get(use.weights_sha256 or "", ())
            if maker.session.run != use.session.run
        ]
        if by_bytes:
            return self._proved(use, by_bytes)
        if use.lineage:
            return self._declared(use, use.lineage[-1])
        named = self._named(use, None)
        if named is None and (use.model or "").startswith(MINTED):
            return Edge(use, Proof.MISSING, (), f"{use.model} is a fine-tuned model, whose training is not here")
        return named

    def _proved(self, use: Use, makers: Sequence[Maker]) -> Edge:
        if not use.lineage:
            return self._seen(Edge(use, Proof.PROVED, tuple(makers), left_out=True))
        last = use.lineage[-1]
        said = [one for one in makers if (one.session.run_id, one.made.step.iteration) == (last.run_id, last.iteration)]
        if said or not self._by_step.get((last.run_id, last.iteration)):
            return self._seen(Edge(use, Proof.PROVED, tuple(makers), left_out=not said))
        why = f"its lineage says that {last.run_id} made it, but its weights are those that {_names(makers)} made"
        return self._seen(Edge(use, Proof.BROKEN, tuple(makers), why))

    def _declared(self, use: Use, last: Step) -> Edge:
        there = self._by_step.get((last.run_id, last.iteration), [])
        if use.model is not None and use.model != last.model:
            return self._broken(use, f"it was played with {use.model}, and its lineage ends with {last.model}")
        exact = [maker for maker in there if _matches(maker, use, last)]
        if exact:
            return self._seen(Edge(use, Proof.DECLARED, tuple(exact), _other_release(exact, last)))
        if there:
            made = _made(there, last)
            return self._broken(use, f"its lineage says that {_names(there)} made it, and that made {made}")
        which = f"iteration {last.iteration} of {last.run_id}"
        if any(session.kind == "training" for session in self._by_run.get(last.run_id, ())):
            return self._broken(use, f"its lineage says that {which} made it, and that made no model of it")
        return self._named(use, f"its lineage names {which}") or Edge(use, Proof.MISSING, (), _tombstone(last))

    def _broken(self, use: Use, why: str) -> Edge:
        makers = tuple(maker for maker in self._of_name(use) if not maker.session.private)
        return Edge(use, Proof.BROKEN, makers, why)

    def _named(self, use: Use, why: str | None) -> Edge | None:
        """Where a model came from by its name alone; None where nobody made one of this name."""
        makers = self._of_name(use)
        if not makers:
            return None
        if len({maker.session.run for maker in makers}) > 1:
            return Edge(use, Proof.MISSING, (), f"several say that they made {use.model}: {_names(makers)}", True)
        return self._seen(Edge(use, Proof.DECLARED, tuple(makers), why, left_out=not use.lineage))

    def _of_name(self, use: Use) -> list[Maker]:
        """Who made a model of this name: its own publisher, or others where a provider gives no name twice.

        A stranger's word that it made a model whose name anybody may give tells nothing.
        """
        if use.model is None:
            return []
        found = [
            maker
            for maker in self._by_name.get((use.group.provider, use.model), ())
            if maker.session.run != use.session.run
        ]
        own = [maker for maker in found if maker.session.owner == use.session.owner]
        return own or (found if use.model.startswith(MINTED) else [])

    def _seen(self, edge: Edge) -> Edge:
        """An edge as it may be told: nothing is seen of a private release but that it is there."""
        public = tuple(maker for maker in edge.makers if not maker.session.private)
        if public:
            return Edge(edge.use, edge.proof, public, edge.why, edge.left_out)
        private = edge.makers[0].session
        why = f"made by a private release, sha256:{private.sha256}"
        return Edge(edge.use, Proof.MISSING, (), why, edge.left_out)


def _matches(maker: Maker, use: Use, last: Step) -> bool:
    made = maker.made.step
    claimed = {digest for digest in (use.weights_sha256, last.weights_sha256) if digest is not None}
    return (
        made.model == last.model
        and last.dataset_sha256 in (None, made.dataset_sha256)
        and (not claimed or made.weights_sha256 is None or claimed == {made.weights_sha256})
    )


def _other_release(makers: Sequence[Maker], last: Step) -> str | None:
    """That the release it was taken from is here, with other bytes."""
    for maker in makers:
        session = maker.session
        if session.key == last.release and last.release_sha256 not in (None, session.sha256):
            return f"it was made from another {session.key} (sha256:{last.release_sha256}) than the one that is here"
    return None


def _tombstone(last: Step) -> str:
    """What is left of an ancestor that is not here."""
    release = f", {last.release}" if last.release else ""
    digest = last.release_sha256 or last.weights_sha256
    told = f"sha256:{digest}" if digest else f"trained on a dataset of sha256:{last.dataset_sha256}"
    return f"made by {last.run_id}{release}, which is not here ({told})"


def _names(makers: Sequence[Maker]) -> str:
    return " and ".join(dict.fromkeys("a private release" if m.session.private else m.session.key for m in makers))


def _made(makers: Sequence[Maker], last: Step) -> str:
    """What differs between what was made and what is said of it."""
    models = {maker.made.step.model for maker in makers if not maker.session.private}
    if last.model not in models:
        return " and ".join(sorted(models)) or "another model"
    of_name = [maker.made.step for maker in makers if maker.made.step.model == last.model]
    if all(last.dataset_sha256 not in (None, step.dataset_sha256) for step in of_name):
        return f"{last.model} on another dataset"
    return f"{last.model} with other weights"
