"""The OpenAPI document of a server: as its routes say it, and where a token may be given without being wanted."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel

from runner.server.web.authentication import bearer
from runner.server.web.request_bodies import BODY

_TAKES_A_TOKEN = ("/api/v1", "/metrics")


def describe(app: FastAPI) -> None:
    """Have an application make its document so, once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign] # as the library documents it


def _document(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    for path, operations in made["paths"].items():
        for operation in operations.values():
            if path.startswith(_TAKES_A_TOKEN):  # what wants one says so by itself
                operation.setdefault("security", [{}, {bearer.scheme_name: []}])
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute) and (model := _body_of(route.dependant)) is not None:
            for method in route.methods or ():
                _describe_body(made, made["paths"][str(context.path_format)][method.lower()], model)
    return made


def _body_of(dependant: Dependant) -> type[BaseModel] | None:
    """What an operation takes by `json_of`."""
    models = (getattr(one.call, BODY, None) for one in dependant.dependencies)
    return next((model for model in models if model is not None), None)


def _describe_body(made: dict[str, Any], operation: dict[str, Any], model: type[BaseModel]) -> None:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    there = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    operation["requestBody"] = {"content": {"application/json": there}, "required": True}
