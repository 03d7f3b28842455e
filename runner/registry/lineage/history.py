"""The history of an agent, a model group, a model or a run: its sessions in order, with their ancestors and results.

A session is one run, however often it is published. The training games of a run belong to its row; its tests are
sessions of their own. A replay belongs to the row of the run that it replays; a run that is played again is a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from runner.base.errors import UsageError
from runner.base.text import did_you_mean
from runner.registry.lineage.descriptions import marks_of, origin_json, total_json
from runner.registry.lineage.lineage import Ancestry, Contact, Lineage
from runner.registry.lineage.model_origins import ModelOrigin
from runner.registry.lineage.relations import Originals, again_in_words, as_one, replayed_run, reproduced_by
from runner.registry.lineage.session_facts import Group
from runner.registry.lineage.sessions import LineageSession

RunKey = tuple[str, str]


@dataclass
class HistoryRow:
    """One session of a history."""

    session: LineageSession
    groups: tuple[Group, ...]
    """The groups that the name of the history selects."""
    origins: tuple[ModelOrigin, ...]
    own: Ancestry
    """Its own training, without ancestors."""
    ancestry: Ancestry
    contact: Contact | None
    published: tuple[LineageSession, ...]
    """The releases of the run and of the models that it made."""
    replays: tuple[LineageSession, ...] = ()
    """Its replays, which are not sessions of their own."""
    after: tuple[RunKey, ...] = ()
    datapoints: int | None = None
    """The number of distinct datapoints that it was measured or trained on."""
    depth: int = 0
    """Its depth in the tree."""
    marks: tuple[str, ...] = field(default=())

    @property
    def kind(self) -> str:
        """`training`, `benchmark`, `model`, `rejudged`, or `replay` of a run that is not here."""
        if replayed_run(self.session) is not None:
            return "replay"
        return self.session.kind if self.session.facts.get("rejudge_of") is None else "rejudged"

    @property
    def began_with(self) -> list[str]:
        """The models at the start."""
        return [group.model or group.provider for group in self.groups]

    @property
    def came_to(self) -> list[str]:
        """The last models that it made."""
        return [group.made[-1].step.model for group in self.groups if group.made]

    def to_json(self) -> dict[str, Any]:
        session = self.session
        return {
            "run_id": session.run_id,
            "kind": session.kind,
            "started_at": session.facts.get("started_at"),
            "finished_at": session.facts.get("finished_at"),
            "status": session.facts.get("status"),
            "benchmark": session.facts.get("benchmark"),
            "published": list(dict.fromkeys(one.key for one in self.published)),
            "published_in": [
                {"release": one.key, "sha256": one.sha256, "where": one.where, "yanked": one.yanked}
                for one in self.published
            ],
            "replayed_by": list(dict.fromkeys(one.key for one in self.replays)),
            "replay_of": session.facts.get("replay_of"),
            "rejudge_of": session.facts.get("rejudge_of"),
            "reproduces": None if (link := reproduced_by(session)) is None else vars(link),
            "groups": [group.name for group in self.groups],
            "from": self.began_with,
            "to": self.came_to,
            "datapoints": self.datapoints,
            "effort": total_json(self.own),
            "cumulative": total_json(self.ancestry),
            "accuracy": session.facts.get("accuracy"),
            "trained_on": None if self.contact is None else {**asdict(self.contact), "shown": str(self.contact)},
            "lineage": [origin_json(origin) for origin in self.origins],
            "after": [run_id for run_id, _ in self.after],
            "depth": self.depth,
            "marks": list(self.marks),
        }


def history_of(named: str, sessions: Iterable[LineageSession]) -> list[HistoryRow]:
    """Return the sessions that a name selects, each below its ancestor, the oldest first.

    Raises:
        UsageError: the name selects no session; the message suggests the nearest name.
    """
    sessions = as_one(list(sessions))
    lineage = Lineage(sessions)
    runs, replays = _by_run(sessions)
    meant = _meant(named, runs, replays, lineage)
    whole = next((one.parent_run_id for one in sessions if one.parent_run_id and named in _called(one)), None)
    if not meant and whole is not None:  # games that a training played, which are in its row
        meant = _meant(whole, runs, replays, lineage)
        if not meant:
            raise UsageError(f"{named} is a part of {whole}, which is not here")
    if not meant:
        known = {name for session in sessions for name in _names(session)} - {named}  # which is of no session here
        raise UsageError(f"no agent, model group, model or run {named!r}{did_you_mean(named, known)}")
    return _rows(meant, runs, replays, lineage)


def whole_history(sessions: Iterable[LineageSession]) -> list[HistoryRow]:
    """Return all sessions in the order of `history_of`, without training games whose run is not here."""
    sessions = as_one(list(sessions))
    runs, replays = _by_run(sessions)
    return _rows({key: group_of(copies[0]) for key, copies in runs.items()}, runs, replays, Lineage(sessions))


Runs = Mapping[RunKey, Sequence[LineageSession]]


def _by_run(sessions: Sequence[LineageSession]) -> tuple[Runs, Runs]:
    """Group sessions by run, local ones first, and replays by the run that they replay.

    Training games belong to their parent, and a replay belongs to the run that it replays if that is here.
    """
    found: dict[RunKey, list[LineageSession]] = {}
    replays: dict[RunKey, list[LineageSession]] = {}
    originals = Originals(sessions)
    for session in sorted(sessions, key=lambda one: (one.kind == "model", one.owner is not None)):
        if session.private or (session.kind == "training" and session.parent_run_id is not None):
            continue
        original = originals.first_of(session)
        (found if original is session else replays).setdefault(original.run, []).append(session)
    return found, replays


def _names(session: LineageSession) -> Iterator[str]:
    yield session.run_id
    yield session.key
    for group in session.groups:
        yield group.name
        yield from group.agents
        yield from (made.step.model for made in group.made)
        if group.model is not None:
            yield group.model


def _meant(named: str, runs: Runs, replays: Runs, lineage: Lineage) -> dict[RunKey, tuple[Group, ...]]:
    """Return the runs that a name selects, with the selected groups."""
    by_agent = _having(runs, lambda group: group.name == named or named in group.agents)
    if by_agent:
        return by_agent
    by_model = _having(runs, lambda group: group.model == named or any(made.step.model == named for made in group.made))
    by_run = {
        key: group_of(copies[0])
        for key, copies in runs.items()
        if any(named in _called(one) for one in (*copies, *replays.get(key, ())))
    }
    return _family(by_model or by_run, runs, lineage)


def _called(session: LineageSession) -> set[str]:
    """Return the names of a session: its run id, and its release with or without kind and version."""
    without_kind = session.key.partition("/")[2] if session.owner is not None else session.key
    return {session.run_id, *(name for key in (session.key, without_kind) for name in (key, key.partition("@")[0]))}


def _rows(meant: Mapping[RunKey, tuple[Group, ...]], runs: Runs, replays: Runs, lineage: Lineage) -> list[HistoryRow]:
    rows = {key: _row(runs[key], replays.get(key, ()), groups, lineage) for key, groups in meant.items()}
    for row in rows.values():
        found = dict.fromkeys(maker.session.run for origin in row.origins for maker in origin.makers)
        row.after = tuple(run for run in found if run in rows and run != row.session.run)
    return list(_in_tree(rows))


def group_of(session: LineageSession) -> tuple[Group, ...]:
    """Return the groups that were trained before or that the run trains; all groups if there are none."""
    return tuple(group for group in session.groups if group.made or group.lineage) or session.groups


def _having(runs: Runs, is_meant: Callable[[Group], bool]) -> dict[RunKey, tuple[Group, ...]]:
    found = {key: tuple(group for group in copies[0].groups if is_meant(group)) for key, copies in runs.items()}
    return {key: groups for key, groups in found.items() if groups}


def _family(meant: dict[RunKey, tuple[Group, ...]], runs: Runs, lineage: Lineage) -> dict[RunKey, tuple[Group, ...]]:
    """Add the ancestors and descendants of runs, and the tests of each training.

    The test before the first training has no ancestor; the other tests are compared with it.
    """
    trainings = {(copies[0].run_id, copies[0].owner): key for key, copies in runs.items()}
    came_from = {
        key: {maker.session.run for group in copies[0].groups for maker in _makers(copies[0], group, lineage)}
        | {whole for whole in (trainings.get(_parent(copies[0])),) if whole is not None}
        for key, copies in runs.items()
    }
    made: dict[RunKey, set[RunKey]] = {}
    for key, before in came_from.items():
        for one in before:
            made.setdefault(one, set()).add(key)
    found = dict(meant)
    for after in (came_from, made):
        seen, waiting = set(meant), list(meant)
        while waiting:
            for key in sorted(after.get(waiting.pop(), ())):
                if key in runs and key not in seen:
                    seen.add(key)
                    found.setdefault(key, group_of(runs[key][0]))
                    waiting.append(key)
    return found


def _makers(session: LineageSession, group: Group, lineage: Lineage) -> Iterator[Any]:
    origin = lineage.origin_of(session, group)
    yield from () if origin is None else origin.makers


def _row(
    copies: Sequence[LineageSession], replays: Sequence[LineageSession], groups: tuple[Group, ...], lineage: Lineage
) -> HistoryRow:
    session = copies[0]
    found = (lineage.origin_of(session, group) for group in groups)
    origins = tuple(origin for origin in found if origin is not None)
    ancestry = lineage.ancestry(session, groups)
    contact = lineage.contact(session, ancestry)
    own = ancestry.of_run(session.run) if session.trains else Ancestry()
    marks = [*again_in_words(session), *(mark for copy in copies for mark in marks_of(copy, ancestry, contact))]
    published = tuple(copy for copy in copies if copy.owner is not None)
    played = lineage.trained_on(own)[0] if session.trains else session.datapoints
    return HistoryRow(
        session, groups, origins, own, ancestry, contact, published, _once(replays),
        datapoints=len(played) if played else None, marks=tuple(dict.fromkeys(marks)),
    )  # fmt: skip


def _once(replays: Sequence[LineageSession]) -> tuple[LineageSession, ...]:
    """Return each replay once; a local one replaces its releases."""
    found: dict[RunKey, LineageSession] = {}
    for one in replays:
        found.setdefault(one.run, one)
    return tuple(found.values())


def _in_tree(rows: Mapping[RunKey, HistoryRow]) -> Iterator[HistoryRow]:
    """Yield the rows, each after its first ancestor; a single descendant keeps the level, several are one level deeper.

    A test is below the training run that it is a part of, so that time goes down. A cycle starts with its oldest row.
    """
    parents = {(row.session.run_id, row.session.owner): key for key, row in rows.items()}
    below: dict[RunKey | None, list[RunKey]] = {}
    for key, row in sorted(rows.items(), key=lambda item: (item[1].session.started_at, item[0])):
        below.setdefault(parents.get(_parent(row.session)) or (row.after[0] if row.after else None), []).append(key)
    left = dict(rows)
    starts = below.get(None, [])
    while left:
        waiting = [(key, 0) for key in reversed(starts)] or [(min(left, key=lambda key: _age(left[key])), 0)]
        starts = []
        while waiting:
            key, depth = waiting.pop()
            if key not in left:
                continue
            row = left.pop(key)
            row.depth = depth
            yield row
            children = below.get(key, [])
            inner = depth + 1 if len(children) > 1 else depth
            waiting.extend((child, inner) for child in reversed(children))


def _parent(session: LineageSession) -> tuple[str, str | None]:
    """Return the run id and the owner of the training run that a session is a part of."""
    return session.parent_run_id or "", session.owner


def _age(row: HistoryRow) -> tuple[str, str]:
    return row.session.started_at, row.session.run_id
