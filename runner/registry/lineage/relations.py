"""Relations between runs: replays, runs played again, judged debates, children, and parts of training runs.

Boards and `nip-run log` describe these relations. If paths or addresses in a release were redacted, the release has
another identity than its local run; `unify_identities` recognizes that both are the same run.
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
"""Facts that are the same in a redacted release and in its local run."""


def reproduced_by(session: LineageSession) -> ReleaseLink | None:
    """Return the link to the release that a run replays or plays again."""
    return next((link for link in session.links if link.role == _REPRODUCES), None)


def replayed_run(session: LineageSession) -> str | None:
    """Return the id of the run that a session replays completely, without calls to models; None if it replays none."""
    replay_of = session.facts.get("replay_of")  # the run id, and the last replayed round; None for all rounds
    if not isinstance(replay_of, (list, tuple)) or replay_of[1] is not None or session.trains:
        return None
    return str(replay_of[0])


def describe_dependencies(session: LineageSession) -> Iterator[str]:
    """Yield descriptions of how a session depends on other runs."""
    link, replay_of, judged = reproduced_by(session), session.facts.get("replay_of"), session.facts.get("rejudge_of")
    release = None if link is None else link.release
    if (replayed := replayed_run(session)) is not None:
        yield f"a replay of {release or replayed}, without calls to models"
    elif link is not None:
        yield f"plays {release or 'a run'} again"
    elif replay_of is not None:
        yield f"has the answers of {replay_of[0]} up to round {replay_of[1]}"
    if session.looks_like is not None:
        yield f"looks like {session.looks_like} of this results folder, which has no record of having published it"
    if judged is not None:
        yield f"judges the debates of {judged[0]}"
    yield from describe_parents(session.groups, () if session.parent_run_id is not None else session.links, release)


def describe_parents(groups: Iterable[Group], links: Iterable[ReleaseLink], *described: str | None) -> Iterator[str]:
    """Yield phrases about the releases that a run continues or is a child of, except the releases in `described`."""
    continued = list_continued_releases(groups)
    if continued:
        yield f"continues {comma_join(continued)}"
    parent = find_parent_release(links)
    if parent is not None and parent not in (*described, *continued):
        yield f"child of {parent}"


def list_continued_releases(groups: Iterable[Group]) -> list[str]:
    """Return the releases (or run ids) that made the models that a training run started from."""
    steps = [group.lineage[-1] for group in groups if group.made_models and group.lineage]
    return list(dict.fromkeys(step.release or step.run_id for step in steps))


def find_parent_release(links: Iterable[ReleaseLink]) -> str | None:
    """Return the release that this one is based on."""
    return next((link.release for link in links if link.role == _CHILD and link.release is not None), None)


def describe_relations(session: LineageSession) -> list[str]:
    """Describe how a session depends on other runs, and which part of a training run it is."""
    lines = list(describe_dependencies(session))
    if session.parent_run_id is not None:
        lines.append(_describe_part(session, session.facts.get("iteration")))
    return lines


def _describe_part(session: LineageSession, iteration: int | None) -> str:
    if session.kind == "training":
        return f"games of iteration {iteration} of {session.parent_run_id}"
    # The test of an iteration is played before the iteration.
    when = f"after iteration {iteration - 1}" if iteration else "before its training"
    return f"test of {session.parent_run_id}, {when}"


class Originals:
    """Finds the originals of replays among the sessions of a results folder and a registry."""

    def __init__(self, sessions: Iterable[LineageSession]) -> None:
        self._by_sha256: dict[str | None, LineageSession] = {}
        self._by_run: dict[str, LineageSession] = {}
        for session in sorted(sessions, key=lambda item: (item.kind == "model", item.owner is not None)):
            if not session.private:
                self._by_sha256.setdefault(session.sha256, session)
                self._by_run.setdefault(session.run_id, session)

    def first_of(self, session: LineageSession) -> LineageSession:
        """Return the original of a replay; the session itself if it is not a replay, or its original is missing."""
        chain = [session]
        while (original := self._replayed_session(chain[-1])) is not None:
            if original in chain:
                return session
            chain.append(original)
        return chain[-1]

    def _replayed_session(self, session: LineageSession) -> LineageSession | None:
        """Return the original of a replay; None if the session is not a replay, or the original is missing.

        The original is found by the hash of its release, because several runs may have the same id. If the hash is
        unknown, it is found by its id. If the release is missing, a local run with the same id and identity is used.
        """
        run_id, link = replayed_run(session), reproduced_by(session)
        if run_id is None:
            return None
        by_run = self._by_run.get(run_id)
        if link is None or link.sha256 is None:
            return by_run
        is_own = by_run is not None and by_run.owner is None and by_run.identity == session.identity
        return self._by_sha256.get(link.sha256, by_run if is_own else None)


def unify_identities(sessions: Sequence[LineageSession]) -> list[LineageSession]:
    """Return the sessions, with the identity of a local run for all of its releases.

    If the name of a model is a path, the release has another name, and thus another identity than the local run. The
    release cannot have a hash of the path, because readers could guess the path and check the guess. Therefore, a
    release belongs to a local run only if the run's folder records that it was published (`sent/`). A release that
    only has the same facts counts as another run.
    """
    local_runs = {session.run_id: session for session in sessions if session.owner is None}
    return [_with_local_identity(session, local_runs.get(session.run_id)) for session in sessions]


def _with_local_identity(session: LineageSession, local: LineageSession | None) -> LineageSession:
    if local is None or session.owner is None or local.identity == session.identity:
        return session
    if session.sha256 in local.sent_hashes:
        return replace(session, identity=local.identity)
    return replace(session, looks_like=local.run_id) if _looks_like(session, local) else session


def _looks_like(published: LineageSession, local: LineageSession) -> bool:
    """Return whether a redacted release has the same facts and datapoints as a local run."""
    if not published.facts.get("cleaned") or published.facts.get("finished_at") is None:
        return False
    if any(published.facts.get(name) != local.facts.get(name) for name in _UNCHANGED_FACTS):
        return False
    local_datapoints, published_datapoints = local.datapoints, published.datapoints
    return local_datapoints is None or published_datapoints is None or local_datapoints == published_datapoints
