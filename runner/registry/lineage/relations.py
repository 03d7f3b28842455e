"""Relations between runs: replays, runs played again, judged debates, children, and parts of training runs.

A release whose paths and addresses are redacted has another identity than its run; here both are recognized as one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from runner.base.text import comma_join
from runner.documents.releases.manifest import ReleaseLink
from runner.registry.lineage.session_facts import Group
from runner.registry.lineage.sessions import LineageSession

_REPRODUCES = "reproduces"
_CHILD = "child_of"

_UNCHANGED_FACTS = (
    "kind", "seed", "started_at", "finished_at", "status", "rollouts", "completions", "prompt_tokens",
    "completion_tokens", "cost_usd", "parent_run_id", "iteration",
)  # fmt: skip
"""Facts that redaction does not change."""


def reproduced_by(session: LineageSession) -> ReleaseLink | None:
    """Return the link to the release that a run replays or plays again."""
    return next((link for link in session.links if link.role == _REPRODUCES), None)


def replayed_run(session: LineageSession) -> str | None:
    """Return the run that a session replays completely, without asking any model; None for other sessions."""
    said = session.facts.get("replay_of")
    is_whole = isinstance(said, (list, tuple)) and said[1] is None and not session.trains
    return said[0] if is_whole and said is not None else None


def again_in_words(session: LineageSession) -> Iterator[str]:
    """Yield descriptions of how a session depends on other runs."""
    link, said, judged = reproduced_by(session), session.facts.get("replay_of"), session.facts.get("rejudge_of")
    named = None if link is None else link.release
    if (replayed := replayed_run(session)) is not None:
        yield f"a replay of {named or replayed}, in which nobody was asked"
    elif link is not None:
        yield f"plays {named or 'a run'} again"
    elif said is not None:
        yield f"has the answers of {said[0]} up to round {said[1]}"
    if session.looks_like is not None:
        yield f"looks like {session.looks_like} of this results folder, which has no record of having published it"
    if judged is not None:
        yield f"judges the debates of {judged[0]}"
    yield from made_from_in_words(session.groups, () if session.parent_run_id is not None else session.links, named)


def made_from_in_words(groups: Iterable[Group], links: Iterable[ReleaseLink], *told: str | None) -> Iterator[str]:
    """Yield what a run continues and which release it is a child of, without those that are described already."""
    before = continued(groups)
    if before:
        yield f"continues {comma_join(before)}"
    child = child_of(links)
    if child is not None and child not in (*told, *before):
        yield f"child of {child}"


def continued(groups: Iterable[Group]) -> list[str]:
    """Return the releases, or else the runs, that made the models at the start of a training."""
    steps = [group.lineage[-1] for group in groups if group.made and group.lineage]
    return list(dict.fromkeys(step.release or step.run_id for step in steps))


def child_of(links: Iterable[ReleaseLink]) -> str | None:
    """Return the release that this one was made from."""
    return next((link.release for link in links if link.role == _CHILD and link.release is not None), None)


def kin_in_words(session: LineageSession) -> list[str]:
    """Describe how a session depends on other runs, or which part of a training run it is."""
    said = list(again_in_words(session))
    if session.parent_run_id is not None:
        said.append(_part_in_words(session, session.facts.get("iteration")))
    return said


def _part_in_words(session: LineageSession, iteration: int | None) -> str:
    if session.kind == "training":
        return f"games of iteration {iteration} of {session.parent_run_id}"
    when = f"after iteration {iteration - 1}" if iteration else "before its training"  # it is played before that one
    return f"test of {session.parent_run_id}, {when}"


class Originals:
    """Finds the sessions that replays replay, in a results folder and a registry."""

    def __init__(self, sessions: Iterable[LineageSession]) -> None:
        self._by_sha256: dict[str | None, LineageSession] = {}
        self._by_run: dict[str, LineageSession] = {}
        for session in sorted(sessions, key=lambda one: (one.kind == "model", one.owner is not None)):
            if not session.private:
                self._by_sha256.setdefault(session.sha256, session)
                self._by_run.setdefault(session.run_id, session)

    def first_of(self, session: LineageSession) -> LineageSession:
        """Return the original of a replay, or the session itself if it is no replay or its original is not here."""
        seen = [session]
        while (original := self._of(seen[-1])) is not None:
            if original in seen:
                return session
            seen.append(original)
        return seen[-1]

    def _of(self, session: LineageSession) -> LineageSession | None:
        """Find the replayed session by its release, because other runs may have the same id, or else by the run id.

        If that release is not here, a run of this machine with the same identity may be.
        """
        run_id, link = replayed_run(session), reproduced_by(session)
        if run_id is None:
            return None
        by_run = self._by_run.get(run_id)
        if link is None or link.sha256 is None:
            return by_run
        is_own = by_run is not None and by_run.owner is None and by_run.identity == session.identity
        return self._by_sha256.get(link.sha256, by_run if is_own else None)


def as_one(sessions: Sequence[LineageSession]) -> list[LineageSession]:
    """Return sessions in which the releases of a local run have the identity of that run.

    A model whose name is a path is published under another name, so that the run's identity changes. No hash of the
    path is published, because it could be guessed: the local record of what was published (`sent/`) identifies the run.
    A release that only has the same facts stays a run of its own.
    """
    here = {session.run_id: session for session in sessions if session.owner is None}
    return [_with_local_identity(session, here.get(session.run_id)) for session in sessions]


def _with_local_identity(session: LineageSession, own: LineageSession | None) -> LineageSession:
    if own is None or session.owner is None or own.identity == session.identity:
        return session
    if session.sha256 in own.sent_as:
        return replace(session, identity=own.identity)
    return replace(session, looks_like=own.run_id) if _looks_like(session, own) else session


def _looks_like(published: LineageSession, own: LineageSession) -> bool:
    if not published.facts.get("cleaned") or published.facts.get("finished_at") is None:
        return False
    if any(published.facts.get(name) != own.facts.get(name) for name in _UNCHANGED_FACTS):
        return False
    played, said = own.datapoints, published.datapoints
    return played is None or said is None or played == said
