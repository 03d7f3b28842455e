"""Secrets that no form tells, by the names of the keys that they stand under, where a spec's keys are anybody's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from runner.documents.releases.bundle import Content, opened
from runner.registry.redaction.rules import is_free
from runner.registry.redaction.yaml_redaction import values_in
from runner.spec.trainer_files import FOLDER, INDEX

_SECRET_KEYS = re.compile(
    r"(?i)(?:.*[_-])?(?:(?:api|access|secret|private|auth)[_-]?key|apikey|key|token|secret|passw(?:or)?d|passphrase|"
    r"credentials?|(?:proxy-)?authorization|bearer)"
)
_NO_SECRET_KEYS = re.compile(
    r"(?i)(?:.*[_-])?(?:bos|eos|pad|unk|sep|cls|mask|stop|end|start|think|image|special)[_-]token"
)
_NO_SECRETS = re.compile(
    r"\?\?\?|\[secret removed\]|(?:Bearer )?\$\{?[A-Za-z_][\w:.,-]*\}?|<[^<>]*>|EMPTY|none|null|", re.IGNORECASE
)


_ASSIGNING = (".env", ".ini", ".toml", ".cfg")
"""Settings files whose lines are `key = value`."""


def says_secret(key: str, text: str) -> bool:
    """Whether a value stands under a key whose name says that it is a secret, and is none that only stands for one."""
    name = key.rpartition(".")[2]
    is_one = _SECRET_KEYS.fullmatch(name) is not None and _NO_SECRET_KEYS.fullmatch(name) is None
    return is_one and _NO_SECRETS.fullmatch(text.strip()) is None


def secret_values(contents: Mapping[str, Content]) -> Iterator[str]:
    """What is wrong with specs and overrides of which a key says secret and holds a value: by file and key."""
    for path, content in contents.items():
        is_trainers = f"{FOLDER}/" in path and not path.endswith(INDEX)
        name = path.removesuffix(".txt") if is_trainers else path
        if not name.endswith((".yaml", ".yml", *((".json", *_ASSIGNING) if is_trainers else (".txt",)))):
            continue
        with opened(content) as file:
            text = file.read().decode("utf-8", "replace")
        lines = (line.partition("=") for line in text.splitlines()) if name.endswith((".txt", *_ASSIGNING)) else ()
        values = [(key.strip().lstrip("+~"), value.strip(" \"'")) for key, _, value in lines] or list(values_in(text))
        for key, value in values:
            if (is_trainers or is_free(key)) and says_secret(key, value):
                yield (
                    f"{path}: {key} holds a value, and says by its name that it is a secret, which everybody would "
                    "have; give keys by `api_key_env`, and play it again"
                )
