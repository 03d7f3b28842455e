"""Search a release for private text before it is published: secrets, names of this machine, addresses of servers.

Secrets are keys of known forms, values in this process's environment, and settings named "secret". A message says which
kind of secret is where, and never shows the secret. Two kinds are not found: a secret of an unknown form that is not in
this process's environment, and a secret inside a compressed file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from runner.base.redaction import Redactor, current_redactor
from runner.documents.releases.bundle import Content, open_content
from runner.documents.releases.manifest import MANIFEST, Release
from runner.registry.draft import Draft
from runner.registry.redaction.draft_redaction import FREE_TEXT, build_rules
from runner.registry.redaction.location_patterns import is_public_host
from runner.registry.redaction.machine_names import MachineNames, compile_path_pattern
from runner.registry.redaction.rules import is_open, list_addresses
from runner.registry.redaction.text_search import Cause, Finder, group_by_cause, search
from runner.registry.redaction.yaml_redaction import values_in
from runner.spec.trainer_files import FOLDER, INDEX

_API_PATH = re.compile(r"/?((api|openai)/)?(v\d+)?/?")
"""Matches the usual paths in the address of an API, which are not secret."""


def find_private_text(
    release: Release, contents: Mapping[str, Content], original: Draft, names: MachineNames
) -> Iterator[str]:
    """Yield a message for each private text in a redacted release. `original` is its draft before redaction."""
    rules = build_rules(original)
    name_finder = names.with_terms(rules.host_words, description="the host of a server in the spec")
    name_finder = name_finder.without({release.owner, *_words_of_public_repositories(release)})
    address_finder = _ServerAddressFinder(rules.base_urls, names.allowed)
    finders: list[Finder] = [find_secret_forms, ProcessSecretFinder(), name_finder, address_finder]
    published: Mapping[str, Content] = {**contents, MANIFEST: release.to_bytes()}
    yield from group_by_cause(search(published, finders))
    # Skip files of free text, except those of trainers: no other ones can contain settings.
    yield from find_secret_settings(
        {path: text for path, text in published.items() if not path.startswith(FREE_TEXT) or f"{FOLDER}/" in path}
    )


def _words_of_public_repositories(release: Release) -> set[str]:
    """Return the host and the folders in each public repository URL of a release. They may be published as the URL."""
    words: set[str] = set()
    for url in (source.repository for source in release.sources.values() if source.repository and source.clean):
        login_and_host, *folders = re.split(r"[:/]+", re.sub(r"^[a-z+]+://", "", url))
        host = login_and_host.rpartition("@")[2]
        words |= {host, *folders} - {""} if is_public_host(host) else set()
    return words


def _may_contain_secret(address: str) -> bool:
    """Return whether an address has a part that may be secret: a login, a query or an unusual path."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    return "@" in parts.netloc or bool(parts.query) or not _API_PATH.fullmatch(parts.path)


class _ServerAddressFinder:
    """Finds the addresses of a spec's servers. One message reports all addresses of a host."""

    def __init__(self, base_urls: Collection[str], allowed: Collection[str]) -> None:
        addresses_by_host: dict[str, dict[str, None]] = {}  # the keys of the inner dictionary are an ordered set
        for url in base_urls:
            addresses = addresses_by_host.setdefault(urlsplit(url).hostname or url, {})
            addresses.update(dict.fromkeys(list_addresses([url])))
        # `compile_path_pattern` also matches the forms of an address that are escaped for JSON or a URL.
        self._patterns = {}
        for host, addresses in addresses_by_host.items():
            private = [text for text in addresses if host.lower() not in allowed or _may_contain_secret(text)]
            if private:
                pattern = b"|".join(compile_path_pattern(address).pattern for address in private)
                self._patterns[host] = re.compile(pattern, re.IGNORECASE)

    def __call__(self, data: bytes) -> Iterator[tuple[int, Cause]]:
        for host, pattern in self._patterns.items():
            for match in pattern.finditer(data):
                yield match.start(), Cause("an address of a server in the spec", host)


@dataclass(frozen=True)
class _SecretForm:
    """A form of secrets. To be fast, its pattern is searched only in bytes that contain one of the `hints`."""

    description: str
    hints: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


_BEFORE = rb"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrtbf]))"
"""Matches the start of a word, also directly after an escape in JSON, such as `\\n`, which ends in a letter."""
_DIGIT = rb"(?=[A-Za-z_-]{0,80}[0-9])"
"""Matches if a digit follows within 80 characters. This excludes names of several words, which have no digits."""

_VALUE = rb"(?:" + _DIGIT + rb"[A-Za-z0-9+/=._~-]{8,}|[A-Za-z+/=]{20,})"
"""Matches the secret part of a header: at least 8 characters with a digit, or at least 20 without one."""


def _form(description: str, hints: tuple[str, ...], pattern: bytes, *, starts_word: bool = True) -> _SecretForm:
    regex = re.compile((_BEFORE if starts_word else b"") + pattern)
    return _SecretForm(description, tuple(hint.encode() for hint in hints), regex)


FORMS: tuple[_SecretForm, ...] = (
    _form(
        "a key of OpenAI or in its form", ("sk-",),
        rb"sk-(?:(?:proj|svcacct|admin|ant|or)-[A-Za-z0-9_-]{0,8})?" + _DIGIT + rb"[A-Za-z0-9_-]{0,24}[A-Za-z0-9]{20}",
    ),
    _form("a token of Hugging Face", ("hf_",), rb"hf_[A-Za-z0-9]{30,}"),
    _form("a token of GitHub", ("gh",), rb"gh[pousr]_[A-Za-z0-9]{30,}"),
    _form("a token of GitHub", ("github_pat_",), rb"github_pat_[A-Za-z0-9_]{40,}"),
    _form("a token of GitLab", ("glpat-",), rb"glpat-[A-Za-z0-9_-]{20,}"),
    _form("a key of AWS", ("AKIA", "ASIA"), rb"A[KS]IA(?!IOSFODNN7EXAMPLE)[A-Z0-9]{16}(?![A-Z0-9])"),
    _form("a key of Google", ("AIza",), rb"AIza[A-Za-z0-9_-]{35}"),
    _form("a token of Slack", ("xox", "xapp-"), rb"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,}[A-Za-z0-9]"),
    _form("a key of Groq", ("gsk_",), rb"gsk_[A-Za-z0-9]{40,}"),
    _form("a key of Replicate", ("r8_",), rb"r8_[A-Za-z0-9]{30,}"),
    _form("a key of NVIDIA", ("nvapi-",), rb"nvapi-[A-Za-z0-9_-]{40,}"),
    _form("a token of PyPI", ("pypi-AgE",), rb"pypi-AgE[A-Za-z0-9_-]{40,}"),
    _form("a token of npm", ("npm_",), rb"npm_[A-Za-z0-9]{36}"),
    _form("a key of Stripe", ("k_live_",), rb"[rs]k_live_[A-Za-z0-9]{20,}"),
    _form("a private key", ("PRIVATE KEY",), rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
          starts_word=False),
    _form("a JSON web token", ("eyJ",), rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    _form(
        "the value of an Authorization header", ("uthorization", "UTHORIZATION"),
        rb"(?i:authorization)[\"'\\]{0,4}\s{0,4}[:=]\s{0,4}[\"'\\]{0,4}"
        rb"(?!\[secret removed\])(?i:basic|bearer|token|digest|apikey)\s+(?!\[secret removed\])"
        + _VALUE,
    ),
    _form(
        "a bearer token", ("earer", "EARER"),
        rb"(?i:bearer)\s{1,4}(?!\[secret removed\])(?=[^\s]{16})" + _VALUE,
    ),
    _form("a password in an address", ("://",), rb"[a-z][a-z0-9+.-]{1,20}://[^\s/@:\"'<>]{1,80}:[^\s/@\"'<>]{3,80}@[\w.-]",
          starts_word=False),
)  # fmt: skip


def find_secret_forms(data: bytes) -> Iterator[tuple[int, Cause]]:
    """Yield the offset and cause of each secret of a known form."""
    for form in FORMS:
        if any(hint in data for hint in form.hints):
            for match in form.pattern.finditer(data):
                yield match.start(), Cause(form.description)


class ProcessSecretFinder:
    """Finds secrets that this process knows: values of environment variables, and keys that it has used."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or current_redactor()

    def __call__(self, data: bytes) -> Iterator[tuple[int, Cause]]:
        offset = self._redactor.find_first(data)
        if offset is not None:
            yield offset, Cause("the value of a key or a token that this process has in its environment")


_SECRET_KEYS = re.compile(
    r"(?i)(?:.*[_-])?(?:(?:api|access|secret|private|auth)[_-]?key|apikey|key|token|secret|passw(?:or)?d|passphrase|"
    r"credentials?|(?:proxy-)?authorization|bearer)"
)
"""Matches keys of settings whose values are secret."""
_TEXT_TOKEN_KEYS = re.compile(
    r"(?i)(?:.*[_-])?(?:bos|eos|pad|unk|sep|cls|mask|stop|end|start|think|image|special)[_-]token"
)
"""Matches keys for a tokenizer's special tokens, which are not secret."""
_PLACEHOLDERS = re.compile(
    r"\?\?\?|\[secret removed\]|(?:Bearer )?\$\{?[A-Za-z_][\w:.,-]*\}?|<[^<>]*>|EMPTY|none|null", re.IGNORECASE
)
_ASSIGNMENT_FILES = (".env", ".ini", ".toml", ".cfg")
"""Suffixes of settings files with lines of `key = value`."""


def is_secret_setting(key: str, text: str) -> bool:
    """Return whether a key is that of a secret, and its value is not a placeholder."""
    name = key.rpartition(".")[2]
    names_secret = _SECRET_KEYS.fullmatch(name) is not None and _TEXT_TOKEN_KEYS.fullmatch(name) is None
    return names_secret and _PLACEHOLDERS.fullmatch(text.strip()) is None


def find_secret_settings(contents: Mapping[str, Content]) -> Iterator[str]:
    """Yield a message for each setting in specs, overrides and trainer files whose key names a secret."""
    for path, content in contents.items():
        is_trainer_file = f"{FOLDER}/" in path and not path.endswith(INDEX)
        name = path.removesuffix(".txt") if is_trainer_file else path
        suffixes = (".yaml", ".yml", *((".json", *_ASSIGNMENT_FILES) if is_trainer_file else (".txt",)))
        if not name.endswith(suffixes):
            continue
        with open_content(content) as file:
            text = file.read().decode("utf-8", "replace")
        has_lines = name.endswith((".txt", *_ASSIGNMENT_FILES))
        lines = (line.partition("=") for line in text.splitlines()) if has_lines else ()
        settings = [(key.strip().lstrip("+~"), value.strip(" \"'")) for key, _, value in lines] or values_in(text)
        for key, value in settings:
            if (is_trainer_file or is_open(key)) and is_secret_setting(key, value):
                yield (
                    f"{path}: {key} has a value that everyone could read, but the name of the key says that the value "
                    "is secret; name an environment variable in `api_key_env` instead, and play the run again"
                )
