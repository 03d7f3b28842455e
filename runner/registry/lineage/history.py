"""The history of an agent, a model group, a model or a run, for `nip-run log`: a row for each run, oldest first.

A run has one row, even if it is published several times. The training games and the replays of a run belong to its
row. Each test of a training run has its own row, and so has a run that plays another run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from runner.base.errors import UsageError
from runner.base.text import did_you_mean
from runner.registry.lineage.descriptions import describe_marks, origin_to_json, total_to_json
from runner.registry.lineage.lineage import Ancestry, Lineage, TrainingOverlap
from runner.registry.lineage.model_origins import ModelOrigin
from runner.registry.lineage.nodes import LineageNode
from runner.registry.lineage.relations import (
    OriginalFinder,
    describe_dependencies,
    find_original_link,
    replayed_run,
    unify_identities,
)
from runner.registry.lineage.typed_facts import Group

RunKey = tuple[str, str]
"""The id and the identity of a run; see `LineageNode.run`."""


@dataclass
class HistoryRow:
    """A run in a history."""

    node: LineageNode
    groups: tuple[Group, ...]
    """The run's model groups that the user selected."""
    origins: tuple[ModelOrigin, ...]
    """The origins of the models that these groups started from."""
    own_training: Ancestry
    """The training in this run only."""
    ancestry: Ancestry
    """The training behind the run's models, in this run and in all runs that made its start models."""
    overlap: TrainingOverlap | None
    """The number of the run's datapoints that its models were trained on; see `Lineage.training_overlap`."""
    published: tuple[LineageNode, ...]
    """The releases of the run and of the models that it made."""
    replays: tuple[LineageNode, ...] = ()
    """Replays of the run, which have no rows of their own."""
    maker_runs: tuple[RunKey, ...] = ()
    """The runs in this history that made the start models of this run."""
    datapoints: int | None = None
    """The number of distinct datapoints that the run was measured or trained on; None if unknown."""
    depth: int = 0
    """The level of the row in the tree of ancestors and descendants; the first level is 0."""
    marks: tuple[str, ...] = field(default=())
    """Remarks, for example that the run was yanked."""

    @property
    def kind(self) -> str:
        """`training`, `benchmark`, `model`, `rejudged`, or `replay` if the replayed run is missing."""
        if replayed_run(self.node) is not None:
            return "replay"
        return self.node.kind if self.node.facts.get("rejudge_of") is None else "rejudged"

    @property
    def start_models(self) -> list[str]:
        """The models of the selected groups that the run started from."""
        return [group.model or group.provider for group in self.groups]

    @property
    def final_models(self) -> list[str]:
        """The last model that the run made in each selected group."""
        return [group.output_models[-1].step.model for group in self.groups if group.output_models]

    def to_json(self) -> dict[str, Any]:
        node = self.node
        return {
            "run_id": node.run_id,
            "kind": node.kind,
            **{name: node.facts.get(name) for name in ("started_at", "finished_at", "status", "benchmark")},
            "published": list(dict.fromkeys(release.key for release in self.published)),
            "published_in": [
                {"release": release.key, "sha256": release.sha256, "where": release.address, "yanked": release.yanked}
                for release in self.published
            ],
            "replayed_by": list(dict.fromkeys(release.key for release in self.replays)),
            "replay_of": node.facts.get("replay_of"),
            "rejudge_of": node.facts.get("rejudge_of"),
            "reproduces": None if (link := find_original_link(node)) is None else vars(link),
            "groups": [group.name for group in self.groups],
            "from": self.start_models,
            "to": self.final_models,
            "datapoints": self.datapoints,
            "effort": total_to_json(self.own_training),
            "cumulative": total_to_json(self.ancestry),
            "accuracy": node.facts.get("accuracy"),
            "trained_on": None if self.overlap is None else {**asdict(self.overlap), "shown": str(self.overlap)},
            "lineage": [origin_to_json(origin) for origin in self.origins],
            "after": [run_id for run_id, _ in self.maker_runs],
            "depth": self.depth,
            "marks": list(self.marks),
        }


def build_history(name: str, nodes: Iterable[LineageNode]) -> list[HistoryRow]:
    """Return the rows for an agent, a model group, a model or a run, in the order of `_order_as_tree`.

    Raises:
        UsageError: nothing has this name; the message suggests the nearest name.
    """
    nodes = unify_identities(list(nodes))
    lineage = Lineage(nodes)
    runs, replays = _group_by_run(nodes)
    selected = _select_runs(name, runs, replays, lineage)
    parents = (node.parent_run_id for node in nodes if name in _run_names(node))
    parent = next(filter(None, parents), None)
    if not selected and parent is not None:  # the name is that of training games, which belong to the row of their run
        selected = _select_runs(parent, runs, replays, lineage)
        if not selected:
            raise UsageError(
                f"{name} is a part of the training run {parent}, which is neither in the results folder nor in the "
                "registry; add --from WHERE with the registry that has it"
            )
    if not selected:
        names = {name for node in nodes for name in _all_names(node)} - {name}
        hint = did_you_mean(name, names) or "; add --from WHERE to look in a registry, too"
        raise UsageError(f"there is no agent, model group, model or run {name!r}{hint}")
    return _build_rows(selected, runs, replays, lineage)


def build_full_history(nodes: Iterable[LineageNode]) -> list[HistoryRow]:
    """Return the rows of all runs, in the order of `_order_as_tree`, except training games whose run is missing."""
    nodes = unify_identities(list(nodes))
    runs, replays = _group_by_run(nodes)
    selected = {key: trained_groups(copies[0]) for key, copies in runs.items()}
    return _build_rows(selected, runs, replays, Lineage(nodes))


Runs = Mapping[RunKey, Sequence[LineageNode]]
"""Nodes by run: the local run, if there is one, and the releases of the run and its models."""
Selection = Mapping[RunKey, tuple[Group, ...]]
"""Runs, each with its selected model groups."""


def _group_by_run(nodes: Sequence[LineageNode]) -> tuple[Runs, Runs]:
    """Return the nodes by run, local nodes first; and the replays by the run that they replay.

    Training games are omitted, because they belong to the row of their training run. If the run that a replay replays
    is missing, the replay is returned as a run.
    """
    runs: dict[RunKey, list[LineageNode]] = {}
    replays: dict[RunKey, list[LineageNode]] = {}
    originals = OriginalFinder(nodes)
    for node in sorted(nodes, key=lambda item: (item.kind == "model", item.owner is not None)):
        if node.private or (node.kind == "training" and node.parent_run_id is not None):
            continue
        original = originals.first_of(node)
        (runs if original is node else replays).setdefault(original.run, []).append(node)
    return runs, replays


def _all_names(node: LineageNode) -> Iterator[str]:
    """Yield the names that `build_history` accepts for a run or model."""
    yield node.run_id
    yield node.key
    for group in node.groups:
        yield from (group.name, *group.agents, *_model_names(group))


def _model_names(group: Group) -> list[str]:
    start_models = [] if group.model is None else [group.model]
    return start_models + [model.step.model for model in group.output_models]


def _select_runs(name: str, runs: Runs, replays: Runs, lineage: Lineage) -> Selection:
    """Return the runs that a name selects; for the name of a model or run, also its ancestors and descendants."""
    by_agent = _select_groups(runs, lambda group: group.name == name or name in group.agents)
    if by_agent:
        return by_agent
    by_model = _select_groups(runs, lambda group: name in _model_names(group))
    by_run = {
        key: trained_groups(copies[0])
        for key, copies in runs.items()
        if any(name in _run_names(node) for node in (*copies, *replays.get(key, ())))
    }
    return _with_relatives(by_model or by_run, runs, lineage)


def _run_names(node: LineageNode) -> set[str]:
    """Return the run id of a node, and the name of its release with and without kind and version."""
    without_kind = node.key.partition("/")[2] if node.owner is not None else node.key
    return {node.run_id, *(name for key in (node.key, without_kind) for name in (key, key.partition("@")[0]))}


def _build_rows(selected: Selection, runs: Runs, replays: Runs, lineage: Lineage) -> list[HistoryRow]:
    rows = {key: _build_row(runs[key], replays.get(key, ()), groups, lineage) for key, groups in selected.items()}
    for row in rows.values():
        makers = dict.fromkeys(maker.node.run for origin in row.origins for maker in origin.makers)
        row.maker_runs = tuple(run for run in makers if run in rows and run != row.node.run)
    return list(_order_as_tree(rows))


def trained_groups(node: LineageNode) -> tuple[Group, ...]:
    """Return the groups whose model was trained before or in the run; if no model was trained, all groups."""
    return tuple(group for group in node.groups if group.output_models or group.lineage) or node.groups


def _select_groups(runs: Runs, is_selected: Callable[[Group], bool]) -> Selection:
    selected = {key: tuple(group for group in copies[0].groups if is_selected(group)) for key, copies in runs.items()}
    return {key: groups for key, groups in selected.items() if groups}


def _with_relatives(selected: Selection, runs: Runs, lineage: Lineage) -> Selection:
    """Return the selected runs with all their ancestors and descendants.

    The tests of a training run count as its descendants, even the test before the first training, which uses no
    trained model: the other tests are compared with it.
    """
    trainings = {(copies[0].run_id, copies[0].owner): key for key, copies in runs.items()}
    ancestors: dict[RunKey, set[RunKey]] = {}
    descendants: dict[RunKey, set[RunKey]] = {}
    for key, copies in runs.items():
        ancestors[key] = {maker.node.run for maker in lineage.makers_of(copies[0])}
        if (training := trainings.get(_parent_run(copies[0]))) is not None:
            ancestors[key].add(training)
        for ancestor in ancestors[key]:
            descendants.setdefault(ancestor, set()).add(key)
    relatives = dict(selected)
    for neighbors in (ancestors, descendants):
        visited, pending = set(selected), list(selected)
        while pending:
            new = [key for key in sorted(neighbors.get(pending.pop(), ())) if key in runs and key not in visited]
            visited.update(new)
            pending.extend(new)
            for key in new:
                relatives.setdefault(key, trained_groups(runs[key][0]))
    return relatives


def _build_row(
    copies: Sequence[LineageNode], replays: Sequence[LineageNode], groups: tuple[Group, ...], lineage: Lineage
) -> HistoryRow:
    """Return the row of a run from its copies (local and published), its replays and its selected groups."""
    node = copies[0]
    origins_of_groups = (lineage.origin_of(node, group) for group in groups)
    origins = tuple(origin for origin in origins_of_groups if origin is not None)
    ancestry = lineage.ancestry(node, groups)
    overlap = lineage.training_overlap(node, ancestry)
    own_games = {key: games for key, games in ancestry.games.items() if node.trains_models and key[0] == node.run}
    own_training = Ancestry(games=own_games)
    marks = list(describe_dependencies(node))
    for copy in copies:
        marks += describe_marks(copy, ancestry, overlap)
    published = tuple(copy for copy in copies if copy.owner is not None)
    datapoints = lineage.training_datapoints(own_training)[0] if node.trains_models else node.datapoints
    return HistoryRow(
        node, groups, origins, own_training, ancestry, overlap, published, _unique_replays(replays),
        datapoints=len(datapoints) if datapoints else None, marks=tuple(dict.fromkeys(marks)),
    )  # fmt: skip


def _unique_replays(replays: Sequence[LineageNode]) -> tuple[LineageNode, ...]:
    """Return each replay once: the local one, or its first release."""
    by_run: dict[RunKey, LineageNode] = {}
    for replay in replays:
        by_run.setdefault(replay.run, replay)
    return tuple(by_run.values())


def _order_as_tree(rows: Mapping[RunKey, HistoryRow]) -> Iterator[HistoryRow]:
    """Yield each row after its parent, and set its depth in the tree.

    The parent of a test is its training run. The parent of another run is the first run that made one of its start
    models. An only child has the same depth as its parent; several children are one level deeper. In a cycle, the
    oldest row comes first.
    """
    key_of_run = {(row.node.run_id, row.node.owner): key for key, row in rows.items()}
    children_of: dict[RunKey | None, list[RunKey]] = {}
    for key, row in sorted(rows.items(), key=lambda item: (item[1].node.started_at, item[0])):
        parent = key_of_run.get(_parent_run(row.node)) or (row.maker_runs[0] if row.maker_runs else None)
        children_of.setdefault(parent, []).append(key)
    remaining = dict(rows)
    roots = children_of.get(None, [])
    while remaining:  # after the first iteration, only rows in cycles remain
        oldest = min(remaining, key=lambda key: (remaining[key].node.started_at, remaining[key].node.run_id))
        pending = [(key, 0) for key in reversed(roots)] or [(oldest, 0)]
        roots = []
        while pending:
            key, depth = pending.pop()
            if key not in remaining:
                continue
            row = remaining.pop(key)
            row.depth = depth
            yield row
            children = children_of.get(key, [])
            child_depth = depth + 1 if len(children) > 1 else depth
            pending.extend((child, child_depth) for child in reversed(children))


def _parent_run(node: LineageNode) -> tuple[str, str | None]:
    """Return the id and the owner of the training run that a run is a part of; the id is empty if there is none."""
    return node.parent_run_id or "", node.owner
