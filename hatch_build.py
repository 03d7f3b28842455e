"""Convert the README to the text that the package index shows, where the files next to the README are missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"^(!\[[^\]]*\])\((?![a-z]+:)([^)]+)\)\n", re.MULTILINE)
LINK = re.compile(r"(?<!!)(\[([^\]]+)\])\((?![a-z]+:)([^)]+)\)")


def render_index_page(readme: str, repository: str | None) -> str:
    """Return the README with absolute links into a repository on GitHub; without a repository, links become text."""
    if repository is None:
        return LINK.sub(r"\2", IMAGE.sub("", readme))
    readme = IMAGE.sub(rf"\1({repository}/raw/HEAD/\2)\n", readme)
    return LINK.sub(rf"\1({repository}/blob/HEAD/\3)", readme)


class IndexPageHook(MetadataHookInterface):
    """Set the field `readme`. The repository is the entry `Repository` of `project.urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        text = render_index_page(readme, metadata.get("urls", {}).get("Repository"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
