"""Relations between runs: replays, runs played again, judged debates, children, and parts of training runs.

Boards and `nip-run log` describe these relations. The identity of a run is a hash of its spec and inputs. If paths in
these were redacted, the release has another identity than the local run; `unify_identities` then finds the local run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from runner.base.text import comma_join
from runner.documents.releases.manifest import ReleaseLink
from runner.registry.lineage.nodes import LineageNode
from runner.registry.lineage.typed_facts import Group

_REPRODUCES = "reproduces"
_CHILD = "child_of"

_UNCHANGED_FACTS = (
    "kind", "seed", "started_at", "finished_at", "status", "rollouts", "completions", "prompt_tokens",
    "completion_tokens", "cost_usd", "parent_run_id", "iteration",
)  # fmt: skip
"""Facts that are the same in a redacted release and in its local run."""


def find_original_link(node: LineageNode) -> ReleaseLink | None:
    """Return the link from a run to the release that it replays or plays again; None if it does neither."""
    return next((link for link in node.links if link.role == _REPRODUCES), None)


def replayed_run(node: LineageNode) -> str | None:
    """Return the id of the run that a run replays completely, without calls to models; None if it replays none."""
    replay_of = node.facts.get("replay_of")  # the run id, and the last replayed round; None for all rounds
    if not isinstance(replay_of, (list, tuple)) or replay_of[1] is not None or node.trains_models:
        return None
    return str(replay_of[0])


def describe_dependencies(node: LineageNode) -> Iterator[str]:
    """Yield phrases about the other runs that a run depends on."""
    link, replay_of, judged = find_original_link(node), node.facts.get("replay_of"), node.facts.get("rejudge_of")
    release = None if link is None else link.release
    if (replayed := replayed_run(node)) is not None:
        yield f"a replay of {release or replayed}, without calls to models"
    elif link is not None:
        yield f"plays {release or 'a run'} again"
    elif replay_of is not None:
        yield f"has the answers of {replay_of[0]} up to round {replay_of[1]}"
    if node.looks_like is not None:
        yield f"looks like {node.looks_like} of this results folder, which did not record that it was published"
    if judged is not None:
        yield f"judges the debates of {judged[0]}"
    yield from describe_parents(node.groups, () if node.parent_run_id is not None else node.links, release)


def describe_parents(groups: Iterable[Group], links: Iterable[ReleaseLink], *described: str | None) -> Iterator[str]:
    """Yield phrases about the releases that a run continues or is a child of. A parent in `described` is omitted."""
    continued = list_continued_releases(groups)
    if continued:
        yield f"continues {comma_join(continued)}"
    parent = find_parent_release(links)
    if parent is not None and parent not in (*described, *continued):
        yield f"child of {parent}"


def list_continued_releases(groups: Iterable[Group]) -> list[str]:
    """Return the releases (or run ids) that made the models that a training run started from."""
    steps = [group.lineage[-1] for group in groups if group.output_models and group.lineage]
    return list(dict.fromkeys(step.release or step.run_id for step in steps))


def find_parent_release(links: Iterable[ReleaseLink]) -> str | None:
    """Return the parent release, on which the links' release is based according to its publisher; None without one."""
    return next((link.release for link in links if link.role == _CHILD and link.release is not None), None)


def describe_relations(node: LineageNode) -> list[str]:
    """Return phrases about the other runs that a run depends on, and about the training run that it is a part of."""
    lines = list(describe_dependencies(node))
    if node.parent_run_id is not None:
        lines.append(_describe_part(node, node.facts.get("iteration")))
    return lines


def _describe_part(node: LineageNode, iteration: int | None) -> str:
    if node.kind == "training":
        return f"games of iteration {iteration} of {node.parent_run_id}"
    # The test with the number of an iteration is played before the games of that iteration.
    when = f"after iteration {iteration - 1}" if iteration else "before its training"
    return f"test of {node.parent_run_id}, {when}"


class OriginalFinder:
    """Finds the originals of replays among the runs of a results folder and a registry."""

    def __init__(self, nodes: Iterable[LineageNode]) -> None:
        self._by_sha256: dict[str | None, LineageNode] = {}
        self._by_run: dict[str, LineageNode] = {}
        for node in sorted(nodes, key=lambda item: (item.kind == "model", item.owner is not None)):
            if not node.private:
                self._by_sha256.setdefault(node.sha256, node)
                self._by_run.setdefault(node.run_id, node)

    def first_of(self, node: LineageNode) -> LineageNode:
        """Return the original of a replay; if the run is not a replay, or its original is missing, the run itself."""
        chain = [node]
        while (original := self._replayed_node(chain[-1])) is not None:
            if original in chain:
                return node
            chain.append(original)
        return chain[-1]

    def _replayed_node(self, node: LineageNode) -> LineageNode | None:
        """Return the run that a run replays; None if the run is not a replay, or the replayed run is missing.

        The link of a replay has the hash of the replayed release, because several runs may have the same id. Without a
        hash, the id must suffice. If no release has the hash, a local run with the same id and identity is returned.
        """
        run_id, link = replayed_run(node), find_original_link(node)
        if run_id is None:
            return None
        same_id = self._by_run.get(run_id)
        if link is None or link.sha256 is None:
            return same_id
        is_local_original = same_id is not None and same_id.owner is None and same_id.identity == node.identity
        return self._by_sha256.get(link.sha256, same_id if is_local_original else None)


def unify_identities(nodes: Sequence[LineageNode]) -> list[LineageNode]:
    """Return the nodes, and give each release of a local run the identity of this run.

    If a model's name is a path, its release has a redacted name instead, and so another identity than the local run.
    The release cannot have a hash of the path either, because readers could guess the path and check the guess. So a
    release belongs to a local run only if the folder `sent/` records that it was published from this run. A release
    that only has the same facts counts as another run.
    """
    local_runs = {node.run_id: node for node in nodes if node.owner is None}
    return [_with_local_identity(node, local_runs.get(node.run_id)) for node in nodes]


def _with_local_identity(node: LineageNode, local_run: LineageNode | None) -> LineageNode:
    if local_run is None or node.owner is None or local_run.identity == node.identity:
        return node
    if node.sha256 in local_run.sent_hashes:
        return replace(node, identity=local_run.identity)
    return replace(node, looks_like=local_run.run_id) if _looks_like(node, local_run) else node


def _looks_like(published: LineageNode, local_run: LineageNode) -> bool:
    """Return whether a release was redacted (its fact `cleaned` is set), and else has the facts of a local run."""
    if not published.facts.get("cleaned") or published.facts.get("finished_at") is None:
        return False
    if any(published.facts.get(name) != local_run.facts.get(name) for name in _UNCHANGED_FACTS):
        return False
    local_datapoints, published_datapoints = local_run.datapoints, published.datapoints
    return local_datapoints is None or published_datapoints is None or local_datapoints == published_datapoints
