"""The OpenAPI document of a server: as its routes say it, and where a token may be given without being wanted."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from runner.server.web.asking import bearer

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
    return made
