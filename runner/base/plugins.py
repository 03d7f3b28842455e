"""Plugins: providers, metrics, exports, training backends and analyzers of other installed distributions.

A distribution announces a plugin as an entry point. nip-run reads entry points only after a name that is not built in,
and imports a plugin only when it is used. A `PluginKind` describes one group of entry points.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runner.base.errors import NipRunError, RunError, UsageError
from runner.base.hashing import file_hash

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

V = TypeVar("V")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

PluginPins = Mapping[str, Mapping[str, str]]
"""The distribution, version and hash of each plugin that a run uses, by `GROUP:NAME`."""


@dataclass(frozen=True)
class PluginKind:
    """A kind of plugin: the group of its entry points, and the values that they may have."""

    group: str
    noun: str
    expected: str
    """The value of an entry point, as the end of an error message."""
    builtin: Callable[[], Collection[str]]
    """Returns the built-in names."""
    is_valid: Callable[[Any], bool] = callable

    def key(self, name: str) -> str:
        """Return the key of a plugin in `PluginPins`."""
        return f"{self.group}:{name}"

    def list_all(self) -> list[Plugin]:
        """Return the installed plugins by name, also plugins that cannot be used."""
        from importlib.metadata import entry_points  # takes 10 ms

        plugins = (Plugin(self, entry) for entry in entry_points(group=self.group))
        return sorted(plugins, key=lambda plugin: (plugin.name, plugin.distribution))

    def installed_names(self) -> list[str]:
        """Return the names of the installed plugins, which are not imported, without built-in names."""
        return sorted({plugin.name for plugin in self.list_all()} - set(self.builtin()))

    def find(self, name: str) -> Plugin | None:
        """Return the plugin with this name, without importing it; None if no distribution has one.

        Raises:
            UsageError: an installed plugin of this kind has a built-in or invalid name, or the name of another plugin.
        """
        if name in self.builtin():
            return None
        plugins = self.list_all()
        for plugin in plugins:
            if (problem := self.name_problem(plugin, plugins)) is not None:
                raise UsageError(problem)
        return next((plugin for plugin in plugins if plugin.name == name), None)

    def name_problem(self, plugin: Plugin, plugins: Iterable[Plugin]) -> str | None:
        """Return an error message if a plugin's name is built in, invalid, or not unique in `plugins`; else None."""
        releases = sorted({p.release for p in plugins if p.name == plugin.name} - {plugin.release})
        if plugin.name in self.builtin():
            return f"{plugin}: the name {plugin.name!r} is built in; rename the plugin, or uninstall its distribution"
        if not _NAME.fullmatch(plugin.name):
            return f"{plugin}: a name has up to 64 letters, digits, _ and -; rename the plugin"
        if releases:
            return f"{plugin}: {', '.join(releases)} has a plugin with the same name; uninstall one of them"
        return None

    def load(self, name: str) -> tuple[Plugin, Any]:
        """Import a plugin, and return it with its value.

        Raises:
            UsageError: there is no such plugin, its import fails, or its value has the wrong type.
        """
        plugin = self.find(name)
        if plugin is None:
            raise UsageError(
                f"no {self.noun} {name!r}: it is not built in, and no installed distribution has such a plugin; "
                "install the plugin, and list all plugins with `nip-run plugins`"
            )
        return plugin, plugin.load()


@dataclass(frozen=True)
class Plugin:
    """An entry point of an installed distribution."""

    kind: PluginKind
    entry: EntryPoint = field(repr=False)

    def __str__(self) -> str:
        return f"{self.kind.noun} plugin {self.name!r} of {self.release}"

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def distribution(self) -> str:
        return "unknown" if self.entry.dist is None else self.entry.dist.name

    @property
    def version(self) -> str:
        return "unknown" if self.entry.dist is None else self.entry.dist.version

    @property
    def release(self) -> str:
        """The distribution and its version."""
        return f"{self.distribution} {self.version}"

    @property
    def key(self) -> str:
        """The key in `PluginPins`."""
        return self.kind.key(self.name)

    @property
    def pin(self) -> dict[str, str]:
        """The value in `PluginPins`."""
        return {"distribution": self.distribution, "version": self.version, "sha256": self.sha256}

    @cached_property
    def sha256(self) -> str:
        """The hash of all files of the plugin's top-level module or package. They are read, but not imported.

        Raises:
            UsageError: the module is not installed, or a file cannot be read.
        """
        try:
            root = _find_source(self.entry.module)
            files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
            digest = hashlib.sha256(b"plugin\0")
            for path in files:
                if "__pycache__" not in path.parts:
                    digest.update(f"{path.relative_to(root.parent).as_posix()}\0{file_hash(path)}\0".encode())
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(f"{self}: cannot read the module {self.entry.module}: {error}; reinstall it") from error
        return digest.hexdigest()

    def load(self) -> Any:
        """Import the plugin, and return the value of its entry point.

        Raises:
            UsageError: the import fails, or the value has the wrong type.
        """
        try:
            value = self.entry.load()
        except (Exception, SystemExit) as error:
            raise UsageError(f"{self} cannot be imported: {_describe(error)}; correct it or uninstall it") from error
        if not self.kind.is_valid(value):
            raise UsageError(
                f"{self}: {self.entry.value} is {_with_article(type(value).__name__)}, but must be {self.kind.expected}"
            )
        return value

    @contextmanager
    def reported_errors(self) -> Iterator[None]:
        """Turn an exception of the plugin's code into an error that names the plugin. nip-run's own errors pass.

        Raises:
            RunError: the plugin's code has failed.
        """
        try:
            yield
        except NipRunError:
            raise
        except (Exception, SystemExit) as error:
            raise RunError(f"{self} has failed: {_describe(error)}; add -v -v to see where") from error

    def check_result(self, result: object, *attributes: str) -> None:
        """Check that a result of the plugin has these attributes.

        Raises:
            RunError: an attribute is missing.
        """
        if missing := [name for name in attributes if not hasattr(result, name)]:
            raise RunError(
                f"{self} returned {_with_article(type(result).__name__)} without {', '.join(missing)}; "
                "see docs/how-to/write-a-plugin.md"
            )


class ExtensibleTable(dict[str, V]):
    """A table of built-in entries. The entry of another name comes from `of_plugin`, and is not stored."""

    def __init__(self, builtin: Mapping[Any, V], of_plugin: Callable[[str], V]) -> None:
        super().__init__(builtin)
        self._of_plugin = of_plugin

    def __missing__(self, name: str) -> V:
        return self._of_plugin(name)


def _find_source(module: str) -> Path:
    """Return the file or folder of a module's top-level package, or of the first package in a namespace package."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    top, *rest = module.split(".")
    name, spec = top, find_spec(top)
    while spec is not None and spec.origin is None and rest:
        name = f"{name}.{rest.pop(0)}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {name!r}")
    path = Path(spec.origin)
    return path.parent if spec.submodule_search_locations else path


def _describe(error: BaseException) -> str:
    """Return the type and the message of an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
