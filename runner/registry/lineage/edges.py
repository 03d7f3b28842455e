"""Which run made the model that another began with.

An edge is found by the identity of the model, not by what somebody says of its past: by the hash of its weights it is
*proved*, by its name at its provider it is *declared*, and where a lineage says that a run made a model which that run
did not make it is *broken*. A lineage that was cut out by hand leaves the edge where it was.

Whose word it is decides. That a run made a model is what its release says, and anybody may publish a run that says so
of another's model, later: a stage log can be written by hand, and a registry has no clock to ask who was first. It
counts (its effort, its datapoints) only where one of these says the same:

- the owner of the run that began with the model: the maker is theirs;
- that run's own lineage, which names the run that made it, of the owner of the release that the step names;
- the bytes: the maker's owner has published, as a model's release, the files whose hashes come to the weights' hash.
  This shows that they have held the weights, not that nobody else has: where weights are public, it is as good as
  their word, and who reads the row sees whose.

All else is *claimed*: it is told, with who says so, and adds nothing to the row. So a stranger smears nobody, and
whoever goes on from another's model and says nothing has that other's claim on the row: it does not pass for a model
of which nobody knows anything. Where the model's own name says that it was fine-tuned, what is behind it is at least
what is known, whoever claims it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.registry.lineage.session_facts import Group, MadeModel, TrainingStep
from runner.registry.lineage.sessions import LineageSession

MINTED = "ft:"
"""What the names of fine-tuned models begin with that a provider gives to no two."""


class Proof(StrEnum):
    """How an edge is known."""

    PROVED = "proved"
    DECLARED = "declared"
    CLAIMED = "claimed"
    """Others say that they made the model, and nothing confirms it."""
    BROKEN = "broken"
    MISSING = "missing"
    """The run that is named is not here, or nothing may be seen of it."""


@dataclass(frozen=True)
class ModelUse:
    """A model that a run began with."""

    session: LineageSession
    group: Group
    model: str | None
    weights_sha256: str | None
    lineage: tuple[TrainingStep, ...]

    @classmethod
    def of(cls, session: LineageSession, group: Group) -> ModelUse:
        return cls(session, group, group.model, group.weights_sha256, group.lineage)

    def before(self) -> ModelUse:
        """The model that its last training started from, by its own lineage alone."""
        return ModelUse(self.session, self.group, self.lineage[-1].from_model, None, self.lineage[:-1])


@dataclass(frozen=True)
class ModelMaker:
    """A run, or a model's release, that has made a model of a group."""

    session: LineageSession
    group: Group
    made: MadeModel

    @property
    def key(self) -> tuple[tuple[str, str], str, int]:
        return self.session.run, self.group.name, self.made.step.iteration


@dataclass(frozen=True)
class Edge:
    """Where a model came from. Without makers nothing more is known of it than what `why` says."""

    use: ModelUse
    proof: Proof
    makers: tuple[ModelMaker, ...] = ()
    why: str | None = None
    """What is to be told of it."""
    left_out: bool = False
    """Whether the lineage that the run declares does not say so."""
    claimed_by: tuple[ModelMaker, ...] = ()
    """Others that say they made it, where nothing confirms it."""
    gone: str | None = None
    """The id of the run that its lineage names, where neither that nor anything of the model's name is here."""


class Edges:
    """Where each model came from, among the sessions of a registry, of a results folder, or of both."""

    def __init__(self, sessions: Iterable[LineageSession]) -> None:
        self.sessions = list(sessions)
        self._by_weights: dict[str, list[ModelMaker]] = defaultdict(list)
        self._by_name: dict[tuple[str, str], list[ModelMaker]] = defaultdict(list)
        self._by_step: dict[tuple[str, int], list[ModelMaker]] = defaultdict(list)
        self._by_run: dict[str, list[LineageSession]] = defaultdict(list)
        self._found: dict[tuple[int, str], Edge | None] = {}
        for session in self.sessions:
            self._by_run[session.run_id].append(session)
            for group in session.groups:
                for made in group.made:
                    self._index(ModelMaker(session, group, made))

    def _index(self, maker: ModelMaker) -> None:
        step = maker.made.step
        self._by_step[maker.session.run_id, step.iteration].append(maker)
        self._by_name[maker.group.provider, step.model].append(maker)
        if step.weights_sha256 is not None:
            self._by_weights[step.weights_sha256].append(maker)

    def edge_of(self, session: LineageSession, group: Group) -> Edge | None:
        """Where the model came from that a run began with in a group; found once."""
        key = (id(session), group.name)
        if key not in self._found:
            self._found[key] = self.edge(ModelUse.of(session, group))
        return self._found[key]

    def edge(self, use: ModelUse) -> Edge | None:
        """Where a model came from; None where, as far as anybody knows, nothing was trained before."""
        by_bytes = [
            maker
            for maker in self._by_weights.get(use.weights_sha256 or "", ())
            if maker.session.run != use.session.run
        ]
        makers, claims = _parted(by_bytes, use)
        found = self._proved(use, makers) if makers else self._by_words(use)
        if found is None and claims:
            return Edge(use, Proof.CLAIMED, (), claimed_by=_told(claims))
        if found is None or not claims:
            return found
        more = [maker for maker in _told(claims) if maker not in found.claimed_by]
        return replace(found, claimed_by=(*found.claimed_by, *more))

    def _by_words(self, use: ModelUse) -> Edge | None:
        """Where a model came from by lineage and name."""
        if use.lineage:
            return self._declared(use, use.lineage[-1])
        named = self._named(use, None)
        if named is None and (use.model or "").startswith(MINTED):
            return Edge(use, Proof.MISSING, (), f"{use.model} is a fine-tuned model, whose training is not here")
        return named

    def _proved(self, use: ModelUse, makers: Sequence[ModelMaker]) -> Edge:
        if not use.lineage:
            return self._seen(Edge(use, Proof.PROVED, tuple(makers), left_out=True))
        last = use.lineage[-1]
        said = [one for one in makers if (one.session.run_id, one.made.step.iteration) == (last.run_id, last.iteration)]
        if said or not any(_is_meant(one.session, use, last) for one in self._by_step[last.run_id, last.iteration]):
            return self._seen(Edge(use, Proof.PROVED, tuple(makers), left_out=not said))
        why = f"its lineage says that {last.run_id} made it, but its weights are those that {_names(makers)} made"
        return self._seen(Edge(use, Proof.BROKEN, tuple(makers), why))

    def _declared(self, use: ModelUse, last: TrainingStep) -> Edge:
        named = self._by_step[last.run_id, last.iteration]
        there = _whose(named, use, last)
        if use.model is not None and use.model != last.model:
            return self._broken(use, f"it was played with {use.model}, and its lineage ends with {last.model}")
        exact = [maker for maker in there if _matches(maker, use, last)]
        if exact:
            runs = {maker.session.run for maker in exact}
            copies = [one for one in named if one.session.run in runs and not _is_meant(one.session, use, last)]
            claims = _told(_others(copies, exact))
            return self._seen(Edge(use, Proof.DECLARED, tuple(exact), _other_release(exact, last), claimed_by=claims))
        there = [maker for maker in there if _is_meant(maker.session, use, last)]
        if there:
            made = _made(there, last)
            return self._broken(use, f"its lineage says that {_names(there)} made it, and that made {made}")
        which = f"iteration {last.iteration} of {last.run_id}"
        meant = (session for session in self._by_run[last.run_id] if _is_meant(session, use, last))
        if any(session.kind == "training" for session in meant):
            return self._broken(use, f"its lineage says that {which} made it, and that made no model of it")
        gone = Edge(use, Proof.MISSING, (), _tombstone(last), gone=last.run_id)
        return self._named(use, f"its lineage names {which}") or gone

    def _broken(self, use: ModelUse, why: str) -> Edge:
        makers, claims = _parted(self._of_name(use), use)
        return Edge(use, Proof.BROKEN, _told(makers), why, claimed_by=_told(claims))

    def _named(self, use: ModelUse, why: str | None) -> Edge | None:
        """Where a model came from by its name alone; None where nobody made one of this name."""
        makers, claims = _parted(self._of_name(use), use)
        if not makers:
            return None if not claims else Edge(use, Proof.CLAIMED, (), why, claimed_by=_told(claims))
        if len({maker.session.run for maker in makers}) > 1:
            return Edge(use, Proof.MISSING, (), f"several say that they made {use.model}: {_names(makers)}", True)
        return self._seen(Edge(use, Proof.DECLARED, tuple(makers), why, left_out=not use.lineage))

    def _of_name(self, use: ModelUse) -> list[ModelMaker]:
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
            return replace(edge, makers=public)
        private = edge.makers[0].session
        why = f"made by a private release, sha256:{private.sha256}"
        return Edge(edge.use, Proof.MISSING, (), why, edge.left_out)


def _parted(makers: Sequence[ModelMaker], use: ModelUse) -> tuple[list[ModelMaker], list[ModelMaker]]:
    """Those whose word counts for where a model came from, and those who only claim it, and say something else.

    Who holds the weights counts beside the owner of the run that began with them, unless that owner holds them too.
    """
    counted = [maker for maker in makers if maker.session.owner in (None, use.session.owner)]
    holding = [one for one in makers if one.session.holds is not None and one.session.holds == use.weights_sha256]
    if not any(maker in counted for maker in holding):
        held = {(maker.session.run, maker.session.owner) for maker in holding}
        counted += [one for one in makers if (one.session.run, one.session.owner) in held]
    if not counted and use.lineage:
        last = use.lineage[-1]
        step = last.run_id, last.iteration
        counted = _whose([one for one in makers if (one.session.run_id, one.made.step.iteration) == step], use, last)
    return counted, _others(makers, counted)


def _others(makers: Sequence[ModelMaker], counted: Sequence[ModelMaker]) -> list[ModelMaker]:
    """Those that do not count, but for copies of runs that do and say the same, of whichever group."""
    same = [(one.session.run, group) for one in counted for group in one.session.groups]
    return [one for one in makers if one not in counted and (one.session.run, one.group) not in same]


def _whose(makers: Sequence[ModelMaker], use: ModelUse, last: TrainingStep) -> list[ModelMaker]:
    """Of the runs of the id that a lineage names, the one that it means; without any, all, if it names no owner."""
    meant = [maker for maker in makers if _is_meant(maker.session, use, last)]
    return meant or (list(makers) if last.release is None else [])


def _is_meant(session: LineageSession, use: ModelUse, last: TrainingStep) -> bool:
    """Whether a run of the id that a lineage names is the one that it means, and no stranger's of the same id."""
    named = [] if last.release is None else last.release.split("/")[-2:-1]
    return session.owner in (None, use.session.owner, *named)


def _told(makers: Sequence[ModelMaker]) -> tuple[ModelMaker, ...]:
    return tuple(maker for maker in makers if not maker.session.private)


def _matches(maker: ModelMaker, use: ModelUse, last: TrainingStep) -> bool:
    made = maker.made.step
    claimed = {digest for digest in (use.weights_sha256, last.weights_sha256) if digest is not None}
    return (
        made.model == last.model
        and last.dataset_sha256 in (None, made.dataset_sha256)
        and (not claimed or made.weights_sha256 is None or claimed == {made.weights_sha256})
    )


def _other_release(makers: Sequence[ModelMaker], last: TrainingStep) -> str | None:
    """That the release it was taken from is here, with other bytes."""
    for maker in makers:
        session = maker.session
        if session.key == last.release and last.release_sha256 not in (None, session.sha256):
            return f"it was made from another {session.key} (sha256:{last.release_sha256}) than the one that is here"
    return None


def _tombstone(last: TrainingStep) -> str:
    """What is left of an ancestor that is not here."""
    release = f", {last.release}" if last.release else ""
    digest = last.release_sha256 or last.weights_sha256
    told = f"sha256:{digest}" if digest else f"trained on a dataset of sha256:{last.dataset_sha256}"
    return f"made by {last.run_id}{release}, which is not here ({told})"


def _names(makers: Sequence[ModelMaker]) -> str:
    return " and ".join(dict.fromkeys("a private release" if m.session.private else m.session.key for m in makers))


def _made(makers: Sequence[ModelMaker], last: TrainingStep) -> str:
    """What differs between what was made and what is said of it."""
    models = {maker.made.step.model for maker in makers if not maker.session.private}
    if last.model not in models:
        return " and ".join(sorted(models)) or "another model"
    of_name = [maker.made.step for maker in makers if maker.made.step.model == last.model]
    if all(last.dataset_sha256 not in (None, step.dataset_sha256) for step in of_name):
        return f"{last.model} on another dataset"
    return f"{last.model} with other weights"
