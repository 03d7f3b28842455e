"""All the training behind a model: what it took, on which datapoints, and what of it is not known."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from runner.registry.lineage.edges import MINTED, Edge, Edges, ModelMaker, ModelUse, Proof
from runner.registry.lineage.links import EFFORT
from runner.registry.lineage.session_facts import Effort, Group
from runner.registry.lineage.sessions import LineageSession


@dataclass(frozen=True)
class Total:
    """Effort summed up; of the names in `at_least` some is not known."""

    effort: Effort
    at_least: frozenset[str] = frozenset()

    @property
    def is_known(self) -> bool:
        return not self.at_least


@dataclass(frozen=True)
class Contact:
    """How many of a benchmark's datapoints its models were trained on."""

    trained_on: int
    datapoints: int
    at_least: bool

    def __str__(self) -> str:
        if self.at_least and not self.trained_on:
            return f"trained on an unknown number of its {self.datapoints} datapoints"
        least = "at least " if self.at_least else ""
        return f"trained on {least}{self.trained_on} of its {self.datapoints} datapoints"


@dataclass(frozen=True)
class TrainedGames:
    """The games of one iteration that a model learnt from."""

    run_id: str
    effort: Effort
    owners: frozenset[str | None]
    """Of those who say so: whose word counts for which datapoints they had."""


@dataclass
class Ancestry:
    """All the training behind the models of one run."""

    edges: list[Edge] = field(default_factory=list)
    """From the nearest ancestors to the farthest."""
    trained: dict[tuple[tuple[str, str], int], TrainedGames] = field(default_factory=dict)
    """Each iteration of each run that a model learnt from."""
    unknown: list[str] = field(default_factory=list)
    """What is not known, so that all sums are at least what they say."""

    @property
    def total(self) -> Total:
        known: dict[str, int | float] = {}
        at_least = set()
        for name in EFFORT:
            values = [getattr(games.effort, name) for games in self.trained.values()]
            known[name] = sum(value for value in values if value is not None)
            if self.unknown or None in values:
                at_least.add(name)
        return Total(Effort(**known), frozenset(at_least))  # type: ignore[arg-type]  # counts are whole numbers

    def of_run(self, run: tuple[str, str]) -> Ancestry:
        """What of it is the training of one run."""
        return Ancestry(trained={key: games for key, games in self.trained.items() if key[0] == run})

    @property
    def runs(self) -> list[str]:
        """The ids of all runs that trained."""
        return list(dict.fromkeys(run[0] for run, _ in self.trained))


class Lineage(Edges):
    """The graph over sessions, and what can be asked of it."""

    def ancestry(self, session: LineageSession, groups: Sequence[Group] | None = None) -> Ancestry:
        """All the training behind a run's models, or those of some groups: each iteration once, whatever leads to it.

        Of a training run or a model: what is behind what it made, its own training too.
        """
        found = Ancestry()
        seen: set[tuple[object, ...]] = set()
        waiting: deque[ModelUse | ModelMaker] = deque()
        for group in session.groups if groups is None else groups:
            if group.made:
                waiting.append(ModelMaker(session, group, group.made[-1]))
            else:
                waiting.append(ModelUse.of(session, group))
        while waiting:
            at = waiting.popleft()
            if isinstance(at, ModelUse):
                waiting.extend(self._from_use(at, found))
            elif (at.session.key, *at.key) not in seen:  # copies of a run are looked at each: one may say less
                seen.add((at.session.key, *at.key))
                self._count(at, found)
                waiting.append(_before(at))
        return found

    def _from_use(self, use: ModelUse, found: Ancestry) -> Iterator[ModelUse | ModelMaker]:
        is_first = use.lineage is use.group.lineage
        edge = self.edge_of(use.session, use.group) if is_first else self.edge(use)
        if edge is None:
            return
        found.edges.append(edge)
        if edge.proof in (Proof.BROKEN, Proof.MISSING):
            found.unknown.append(edge.why or str(edge.proof))
        elif edge.proof == Proof.CLAIMED and (use.model or "").startswith(MINTED):
            found.unknown.append(f"{use.model} is a fine-tuned model, and who trained it is claimed, not confirmed")
        if edge.makers:
            yield from edge.makers
        elif use.lineage:
            yield use.before()

    def _count(self, maker: ModelMaker, found: Ancestry) -> None:
        """Count the games that a model was trained on; of copies that do not agree, and of its parts, the most."""
        for iteration in maker.made.trained_on:
            key = (maker.session.run, iteration)
            run_id, effort = maker.group.games.get(iteration, ("", Effort()))
            owners = frozenset((maker.session.owner,))
            for part in self._parts(run_id, maker.session.run_id, owners):
                effort = _most(effort, Effort.of(part.facts))
            if key in found.trained:
                before = found.trained[key]
                run_id, effort, owners = run_id or before.run_id, _most(before.effort, effort), owners | before.owners
            found.trained[key] = TrainedGames(run_id, effort, owners)

    def contact(self, session: LineageSession, ancestry: Ancestry | None = None) -> Contact | None:
        """How many datapoints of a benchmark its models were trained on; None where it knows none of either."""
        behind = ancestry or self.ancestry(session)
        if session.kind != "benchmark" or not (behind.trained or behind.unknown):
            return None
        measured = session.datapoints  # which may be read from its inputs: only where it matters
        if not measured:
            return None
        trained, at_least = self.trained_on(behind)
        return Contact(len(trained & measured), len(measured), at_least)

    def trained_on(self, ancestry: Ancestry) -> tuple[set[str], bool]:
        """The content hashes of the datapoints that models learnt from, and whether there may be more of them."""
        trained: set[str] = set()
        at_least = bool(ancestry.unknown)
        for (run, _), games in ancestry.trained.items():
            known = (part.datapoints for part in self._parts(games.run_id, run[0], games.owners))
            parts = [points for points in known if points is not None]
            at_least |= not parts
            trained.update(*parts)
        return trained, at_least

    def _parts(self, run_id: str, parent: str, owners: frozenset[str | None]) -> Iterator[LineageSession]:
        """The sessions of a part of a training run, by those whose word counts for it."""
        for part in self._by_run.get(run_id, ()):
            if part.parent_run_id == parent and part.owner in owners and not part.private:
                yield part

    def cycles(self) -> list[list[str]]:
        """Runs whose models come from each other, which cannot be: some of them say what is not so."""
        return _cycles(self._after())

    def way_back(self, key: str, owner: str | None = None) -> list[str]:
        """The shortest chain by which the models of a run, or of a model's release, come from itself: from it to it.

        With an owner: through that owner's releases alone. Nothing: they do not.
        """
        after = self._after(owner)
        before: dict[str, str] = {}
        waiting = deque([key])
        while waiting and key not in before:
            at = waiting.popleft()
            for maker in sorted(after.get(at, ())):
                if maker not in before:
                    before[maker] = at
                    waiting.append(maker)
        chain = [key] if key in before else []
        while chain and (len(chain) == 1 or chain[-1] != key):
            chain.append(before[chain[-1]])
        return chain[::-1]

    def _after(self, owner: str | None = None) -> dict[str, set[str]]:
        """Of each session, or of an owner's, the makers of the models that it began with."""
        after: dict[str, set[str]] = {}
        for session in (one for one in self.sessions if owner in (None, one.owner)):
            edges = [self.edge_of(session, group) for group in session.groups]
            makers = {maker.session.key for edge in edges if edge is not None for maker in edge.makers}
            if makers:
                after[session.key] = makers
        return after


def _before(maker: ModelMaker) -> ModelUse | ModelMaker:
    """What a model was trained from: an earlier one of the same run, or what that run began with."""
    before = maker.made.from_iteration
    earlier = None if before is None else maker.group.made_in(before)
    return (
        ModelUse.of(maker.session, maker.group) if earlier is None else ModelMaker(maker.session, maker.group, earlier)
    )


def _most(one: Effort, other: Effort) -> Effort:
    def most(name: str) -> int | float | None:
        values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        return max(values, default=None)

    return Effort(**{name.name: most(name.name) for name in fields(Effort)})  # type: ignore[arg-type]


def _cycles(after: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that lead back to themselves, found without a call for each step."""
    left = {node: set(targets) for node, targets in after.items()}
    while True:
        ends = {node for node, targets in left.items() if not targets & left.keys()}
        entered = {target for targets in left.values() for target in targets}
        gone = ends | (left.keys() - entered)
        if not gone:
            break
        left = {node: targets - gone for node, targets in left.items() if node not in gone}
    cycles = []
    while left:
        reached, waiting = set(), [min(left)]
        while waiting:
            node = waiting.pop()
            if node in left and node not in reached:
                reached.add(node)
                waiting.extend(left[node])
        cycles.append(sorted(reached))
        left = {node: targets for node, targets in left.items() if node not in reached}
    return cycles
