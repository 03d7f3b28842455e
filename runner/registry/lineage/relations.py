"""What a run is of others: a replay, a play of it again, a judge of its debates, its child, a part of a training run.

And which sessions are one run: a release may be cleaned of paths and addresses, and then has another identity than the
run that it was made of.
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

_LEFT_BY_CLEANING = (
    "kind", "seed", "started_at", "finished_at", "status", "rollouts", "completions", "prompt_tokens",
    "completion_tokens", "cost_usd", "parent_run_id", "iteration",
)  # fmt: skip
"""Facts that are the same before and after a run is cleaned: when to the second, and how much, and of what."""


def reproduced_by(session: LineageSession) -> ReleaseLink | None:
    """The release that a run plays again, from its transcripts or anew."""
    return next((link for link in session.links if link.role == _REPRODUCES), None)


def replayed_run(session: LineageSession) -> str | None:
    """The run whose answers are all of a run's: nobody was asked, and it is no session of its own; None of others."""
    said = session.facts.get("replay_of")
    is_whole = isinstance(said, (list, tuple)) and said[1] is None and not session.trains
    return said[0] if is_whole and said is not None else None


def again_in_words(session: LineageSession) -> Iterator[str]:
    """What it has of another run."""
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
    """What it continues, and which release it is a child of, but for those that were told."""
    before = continued(groups)
    if before:
        yield f"continues {comma_join(before)}"
    child = child_of(links)
    if child is not None and child not in (*told, *before):
        yield f"child of {child}"


def continued(groups: Iterable[Group]) -> list[str]:
    """What made the models that a training, or a model's, began with: releases, and runs that had none."""
    steps = [group.lineage[-1] for group in groups if group.made and group.lineage]
    return list(dict.fromkeys(step.release or step.run_id for step in steps))


def child_of(links: Iterable[ReleaseLink]) -> str | None:
    """The release that one was made from by changing it."""
    return next((link.release for link in links if link.role == _CHILD and link.release is not None), None)


def kin_in_words(session: LineageSession) -> list[str]:
    """What it has of another run, or which part of a training run it is."""
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
    """Which session a replay replays, among those of a results folder and a registry."""

    def __init__(self, sessions: Iterable[LineageSession]) -> None:
        self._by_sha256: dict[str | None, LineageSession] = {}
        self._by_run: dict[str, LineageSession] = {}
        for session in sorted(sessions, key=lambda one: (one.kind == "model", one.owner is not None)):
            if not session.private:
                self._by_sha256.setdefault(session.sha256, session)
                self._by_run.setdefault(session.run_id, session)

    def first_of(self, session: LineageSession) -> LineageSession:
        """What a replay came from in the end; itself where that is not here, and of what is no replay, or of itself."""
        seen = [session]
        while (original := self._of(seen[-1])) is not None:
            if original in seen:
                return session
            seen.append(original)
        return seen[-1]

    def _of(self, session: LineageSession) -> LineageSession | None:
        """The session that is replayed: by its release, since other runs may have the same id; else by that.

        Where that release is not here, the run of this machine that it was made of may be: it has the same identity.
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
    """The sessions, with the releases of a run of this machine under the identity that the run has here.

    A model whose name was a path has another one where it is published, and with it the run has another identity.
    Nothing that leads back to the path is published, not even a hash of it, which could be guessed: the run is known
    again by what was written down here as it was published. One that only says the same of itself stays another run.
    """
    here = {session.run_id: session for session in sessions if session.owner is None}
    return [_known_again(session, here.get(session.run_id)) for session in sessions]


def _known_again(session: LineageSession, own: LineageSession | None) -> LineageSession:
    if own is None or session.owner is None or own.identity == session.identity:
        return session
    if session.sha256 in own.sent_as:
        return replace(session, identity=own.identity)
    return replace(session, looks_like=own.run_id) if _is_cleaned_from(session, own) else session


def _is_cleaned_from(published: LineageSession, own: LineageSession) -> bool:
    if not published.facts.get("cleaned") or published.facts.get("finished_at") is None:
        return False
    if any(published.facts.get(name) != own.facts.get(name) for name in _LEFT_BY_CLEANING):
        return False
    played, said = own.datapoints, published.datapoints
    return played is None or said is None or played == said
