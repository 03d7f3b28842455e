"""Builds the OpenAPI document of a server, at /api/v1/openapi.json.

FastAPI's document does not say that operations accept an optional token, and lacks the bodies that `json_body` reads.
This module adds both.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel

from runner.server.web.authentication import bearer
from runner.server.web.request_bodies import MODEL_ATTRIBUTE

_ACCEPTS_TOKEN = ("/api/v1", "/metrics")


def add_openapi_document(app: FastAPI) -> None:
    """Make an application build its OpenAPI document with `_build_document`, on the first request for it."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build_document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign] # as the library documents it


def _build_document(app: FastAPI) -> dict[str, object]:
    document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith(_ACCEPTS_TOKEN):  # operations that require a token have declared it
                operation.setdefault("security", [{}, {bearer.scheme_name: []}])
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute) and (model := _body_of(route.dependant)) is not None:
            for method in route.methods or ():
                _describe_body(document, document["paths"][str(context.path_format)][method.lower()], model)
    return document


def _body_of(dependant: Dependant) -> type[BaseModel] | None:
    """Return the model of the body that an operation reads with `json_body`."""
    models = (getattr(dependency.call, MODEL_ATTRIBUTE, None) for dependency in dependant.dependencies)
    return next((model for model in models if model is not None), None)


def _describe_body(document: dict[str, Any], operation: dict[str, Any], model: type[BaseModel]) -> None:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    content = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    operation["requestBody"] = {"content": {"application/json": content}, "required": True}
