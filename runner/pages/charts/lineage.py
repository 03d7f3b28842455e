"""A graph of what came from what, from left to right: models and trainings, runs and their replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from runner.pages.charts.drawing import Drawing, empty
from runner.pages.charts.labels import listed, visible, width_of
from runner.pages.charts.styles import PAGE, Look


@dataclass(frozen=True)
class GraphNode:
    """`key` is what links name; `below` is a softer second line."""

    key: str
    name: str
    below: str = ""


@dataclass(frozen=True)
class GraphLink:
    """`words` stand in the description, and where a pointer rests on the line."""

    start: str
    end: str
    words: str = ""


def lineage(
    nodes: Sequence[GraphNode], links: Sequence[GraphLink], *, title: str, look: Look = PAGE, key: str = ""
) -> Markup:  # fmt: skip
    """Each node right of all that it came from; links to what is not there are left out, and so is a way back."""
    if not nodes:
        return empty(look, title, key=key)
    layers = _layers(nodes, links)
    size = look.size
    deep = max(layers.values()) + 1
    widest = max(width_of(visible(words), size) for node in nodes for words in (node.name, node.below))
    gap = size * 2.2
    wide = min(max(widest + size * 1.2, size * 6), size * 15)
    drawing = Drawing(look, title, deep * wide + (deep - 1) * gap + 2)
    top, row = drawing.y + size * 0.3, size * 4.2
    places: dict[str, tuple[float, float]] = {}
    filled = [0] * deep
    for node in nodes:
        layer = layers[node.key]
        places[node.key] = (1 + layer * (wide + gap), top + filled[layer] * row)
        filled[layer] += 1
    for link in links:
        if link.start in places and link.end in places and layers[link.start] < layers[link.end]:
            _link(drawing, link, places, wide)
    for node in nodes:
        _node(drawing, node, places[node.key], wide)
    drawing.y = top + max(filled) * row - size
    names = {node.key: node.name for node in nodes}
    facts = [
        f"{names[link.end]} from {names[link.start]}{f' ({link.words})' if link.words else ''}"
        for link in links
        if link.start in names and link.end in names
    ]
    return drawing.svg(listed(facts or names.values(), 24), key)


def _layers(nodes: Sequence[GraphNode], links: Sequence[GraphLink]) -> dict[str, int]:
    """How many steps each node is from those that came from nothing; a circle is cut where it closes."""
    before: Mapping[str, list[str]] = {node.key: [] for node in nodes}
    for link in links:
        if link.start in before and link.end in before and link.start != link.end:
            before[link.end].append(link.start)
    found = dict.fromkeys(before, 0)
    for _ in range(len(before)):
        moved = False
        for name, starts in before.items():
            layer = max((found[start] + 1 for start in starts), default=0)
            if found[name] < layer < len(before):
                found[name], moved = layer, True
        if not moved:
            break
    return found


def _link(drawing: Drawing, link: GraphLink, places: Mapping[str, tuple[float, float]], wide: float) -> None:
    size = drawing.size
    (x1, y1), (x2, y2) = places[link.start], places[link.end]
    begin, end = (x1 + wide, y1 + size * 1.5), (x2, y2 + size * 1.5)
    middle = end[0] - size * 1.1
    about = link.words or None
    points = [begin, (middle, begin[1]), (middle, end[1]), end]
    drawing.polyline(points, "axis", title=about)
    back = end[0] - size * 0.5
    drawing.polyline([(back, end[1] - size * 0.3), end, (back, end[1] + size * 0.3)], "axis")


def _node(drawing: Drawing, node: GraphNode, place: tuple[float, float], wide: float) -> None:
    size, (x, y) = drawing.size, place
    drawing.rect(x, y, wide, size * 3, "box", rx=size * 0.2)
    room = wide - size
    full = f"{node.name}, {node.below}" if node.below else None
    drawing.text(x + size * 0.5, y + size * (1.25 if node.below else 1.8), node.name, most=room, title=full)
    if node.below:
        drawing.text(x + size * 0.5, y + size * 2.5, node.below, "soft", most=room)
