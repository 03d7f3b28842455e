"""A graph that shows how nodes originate from others, from left to right, such as runs from training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from runner.pages.charts.drawing import Drawing, empty_chart
from runner.pages.charts.labels import join_facts, width_of
from runner.pages.charts.styles import ChartFrame


@dataclass(frozen=True)
class GraphNode:
    """A node of the graph. Links refer to its `key`; `subtitle` is a second, less prominent line of text."""

    key: str
    name: str
    subtitle: str = ""


@dataclass(frozen=True)
class GraphLink:
    """A link of the graph; `label` appears in the chart's description and the link's tooltip."""

    start: str
    end: str
    label: str = ""


def lineage(nodes: Sequence[GraphNode], links: Sequence[GraphLink], frame: ChartFrame) -> Markup:
    """Draw each node to the right of its origins. Links to missing nodes and backward links are left out."""
    if not nodes:
        return empty_chart(frame)
    layers = _layers(nodes, links)
    size = frame.look.size
    layer_count = max(layers.values()) + 1
    widest = max(width_of(label, size) for node in nodes for label in (node.name, node.subtitle))
    gap = size * 2.2
    node_width = min(max(widest + size * 1.2, size * 6), size * 15)
    drawing = Drawing(frame, layer_count * node_width + (layer_count - 1) * gap + 2)
    top, row = drawing.y + size * 0.3, size * 4.2
    places: dict[str, tuple[float, float]] = {}
    filled = [0] * layer_count  # the number of nodes in each layer so far
    for node in nodes:
        layer = layers[node.key]
        places[node.key] = (1 + layer * (node_width + gap), top + filled[layer] * row)
        filled[layer] += 1
    for link in links:
        if link.start in places and link.end in places and layers[link.start] < layers[link.end]:
            _draw_link(drawing, link, places, node_width)
    for node in nodes:
        _draw_node(drawing, node, places[node.key], node_width)
    drawing.y = top + max(filled) * row - size
    names = {node.key: node.name for node in nodes}
    facts = [
        f"{names[link.end]} from {names[link.start]}{f' ({link.label})' if link.label else ''}"
        for link in links
        if link.start in names and link.end in names
    ]
    return drawing.svg(join_facts(facts or names.values(), 24))


def _layers(nodes: Sequence[GraphNode], links: Sequence[GraphLink]) -> dict[str, int]:
    """Return each node's layer: one more than the last layer of its origins. Links that close a cycle are ignored."""
    origins: Mapping[str, list[str]] = {node.key: [] for node in nodes}
    for link in links:
        if link.start in origins and link.end in origins and link.start != link.end:
            origins[link.end].append(link.start)
    layers = dict.fromkeys(origins, 0)
    for _ in range(len(origins)):
        has_changed = False
        for name, starts in origins.items():
            layer = max((layers[start] + 1 for start in starts), default=0)
            if layers[name] < layer < len(origins):
                layers[name], has_changed = layer, True
        if not has_changed:
            break
    return layers


def _draw_link(drawing: Drawing, link: GraphLink, places: Mapping[str, tuple[float, float]], node_width: float) -> None:
    size = drawing.size
    (x1, y1), (x2, y2) = places[link.start], places[link.end]
    begin, end = (x1 + node_width, y1 + size * 1.5), (x2, y2 + size * 1.5)
    middle = end[0] - size * 1.1
    tooltip = link.label or None
    points = [begin, (middle, begin[1]), (middle, end[1]), end]
    drawing.polyline(points, "axis", title=tooltip)
    arrow_base = end[0] - size * 0.5
    drawing.polyline([(arrow_base, end[1] - size * 0.3), end, (arrow_base, end[1] + size * 0.3)], "axis")


def _draw_node(drawing: Drawing, node: GraphNode, place: tuple[float, float], node_width: float) -> None:
    size, (x, y) = drawing.size, place
    drawing.rect(x, y, node_width, size * 3, "box", rx=size * 0.2)
    text_width = node_width - size
    full = f"{node.name}, {node.subtitle}" if node.subtitle else None
    drawing.text(
        x + size * 0.5, y + size * (1.25 if node.subtitle else 1.8), node.name, max_width=text_width, title=full
    )
    if node.subtitle:
        drawing.text(x + size * 0.5, y + size * 2.5, node.subtitle, "soft", max_width=text_width)
