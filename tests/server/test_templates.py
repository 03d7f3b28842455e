"""Templates of the server's pages: each has a typed view and renders all values of that view."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import pytest
from jinja2 import meta
from markupsafe import Markup
from pydantic import BaseModel

import runner.server.web.app  # noqa: F401 - defines all views
from runner.pages import html
from runner.pages.report.served import ServedPage, View, render_served

TEMPLATES = Path(html.__file__).parent / "templates" / "served"
TEMPLATES_WITHOUT_VIEW = {"base", "parts"}
"""The template of `ServedPage`, and macros."""
VIEWS = {view.template: view for view in View.__subclasses__()}
SAMPLES = {
    str: "text", int: 3, float: 0.5, bool: True, Markup: Markup("<b>drawn</b>"),
    datetime: datetime(2026, 1, 2, tzinfo=UTC),
}  # fmt: skip


def make_sample(kind: Any, *, full: bool) -> Any:
    """Return a value of a type: as full as possible, or as small as possible."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return (
            make_sample(next(argument for argument in arguments if argument is not NoneType), full=True)
            if full
            else None
        )
    if origin in (list, Sequence):
        return [make_sample(arguments[0], full=full), make_sample(arguments[0], full=True)] if full else []
    if origin is tuple:
        return (
            [make_sample(arguments[0], full=full)]
            if arguments[1:] == (...,)
            else [make_sample(a, full=full) for a in arguments]
        )
    if origin is typing.Literal:
        return arguments[0 if full else -1]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[0 if full else -1]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {name: make_sample(field.annotation, full=full) for name, field in kind.model_fields.items()}
        return kind.model_validate(fields)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: make_sample(hints[field.name], full=full) for field in dataclasses.fields(kind)})
    return SAMPLES[kind] if full or kind is datetime else kind()


def test_each_template_has_one_view() -> None:
    assert VIEWS.keys() | TEMPLATES_WITHOUT_VIEW == {path.stem for path in TEMPLATES.glob("*.html")}
    assert len(VIEWS) == len(View.__subclasses__())


@pytest.mark.parametrize("template", sorted(VIEWS))
def test_template_uses_exactly_the_fields_of_its_view(template: str) -> None:
    tree = html._environment().parse((TEMPLATES / f"{template}.html").read_text("utf-8"))
    fields = {field.name for field in dataclasses.fields(VIEWS[template])}
    assert meta.find_undeclared_variables(tree) == fields


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("template", sorted(VIEWS))
def test_template_renders_full_and_minimal_views(template: str, full: bool) -> None:
    section = make_sample(VIEWS[template], full=full).render()
    page = render_served(
        ServedPage(
            "A page", [(template, section)], account="acme" if full else None, reload_seconds=3 if full else None
        )
    )
    assert section.encode() in page
