"""Hostile git repositories, each with the expected result of reading from it and of publishing to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import git_repositories
from tests.support.registry_locations import bundle

Folder = dict[bytes, tuple[str, Any]]
RELEASE = (b"prompts", b"acme", b"council", b"1")
"""The release that each repository contains, unless its case removes it."""

HARMLESS = ""
FSCK = "damaged or hostile"


def release_tree() -> Folder:
    """Return the tree of a commit that contains the release."""
    root: Folder = {}
    for path, content in bundle().files():
        assert isinstance(content, bytes)
        parts = path.encode().split(b"/")
        name, folder = parts[-1], root
        for part in (*RELEASE, *parts[:-1]):
            folder = folder.setdefault(part, ("40000", {}))[1]
        folder[name] = ("100644", content)
    return root


def descend(tree: Folder, *names: bytes) -> Folder:
    for name in names:
        tree = tree[name][1]
    return tree


@dataclass(frozen=True)
class Case:
    """One repository. `get` and `publish` are parts of the expected errors; if empty, the operation succeeds."""

    name: str
    plant: Callable[[Path, Folder], object]
    """Changes the tree that is then committed to `main`, or the repository."""
    get: str = HARMLESS
    publish: str = HARMLESS
    revision: str = ""
    bounds: dict[str, Any] | None = None


def marker(repository: Path) -> Path:
    """Return the file that every planted command creates if it is executed."""
    return repository.parent / "it-ran"


def _script(repository: Path) -> str:
    path = repository.parent / "evil.sh"
    path.write_text(f"#!/bin/sh\necho \"$0 $*\" >>'{marker(repository)}'\nexit 0\n")
    path.chmod(0o755)
    return str(path)


def _hooks(repository: Path, tree: Folder) -> None:
    del tree
    (repository / "hooks").mkdir(exist_ok=True)
    for name in (
        "pre-receive", "update", "post-receive", "post-update", "reference-transaction", "proc-receive", "pre-auto-gc",
        "post-checkout", "post-merge", "pre-push", "push-to-checkout", "fsmonitor-watchman", "post-index-change",
    ):  # fmt: skip
        (repository / "hooks" / name).symlink_to(_script(repository))


def _proc_receive(repository: Path, tree: Folder) -> None:
    _hooks(repository, tree)
    git_repositories.git(repository, "config", "receive.procReceiveRefs", "refs/heads/")


def _commands(repository: Path, tree: Folder) -> None:
    del tree
    evil = _script(repository)
    second = git_repositories.init_bare(repository.parent / "other.git")
    git_repositories.commit(second, git_repositories.write_tree(second, {b"a": ("100644", b"a")}))
    (repository / "objects/info/alternates").write_text(f"{second}/objects\n")
    for name in (
        "core.alternateRefsCommand", "core.fsmonitor", "core.sshCommand", "core.gitProxy", "core.askPass", "core.pager",
        "core.editor", "credential.helper", "uploadpack.packObjectsHook", "gc.recentObjectsHook", "diff.external",
        "remote.origin.uploadpack", "remote.origin.receivepack", "alias.upload-pack", "alias.receive-pack",
        "filter.evil.smudge", "filter.evil.clean", "filter.evil.process", "pager.upload-pack", "trace2.eventTarget",
        "gpg.program", "sequence.editor", "init.templateDir",
    ):  # fmt: skip
        git_repositories.git(repository, "config", name, evil)
    git_repositories.git(repository, "config", "gc.auto", "1")
    git_repositories.git(repository, "config", "core.hooksPath", str(repository.parent))


def _promisor(repository: Path, tree: Folder) -> None:
    """Configure a command that git would run to fetch missing objects."""
    evil = _script(repository)
    for name, value in (
        ("core.repositoryFormatVersion", "1"), ("extensions.partialClone", "origin"), ("remote.origin.promisor",
        "true"),
        ("remote.origin.url", f"ext::{evil}"), ("remote.origin.uploadpack", evil), ("core.sshCommand", evil),
        ("protocol.ext.allow", "always"), ("protocol.allow", "always"),
    ):  # fmt: skip
        git_repositories.git(repository, "config", name, value)
    descend(tree, *RELEASE)[b"verifier.jinja"] = ("100644", "11" * 20)


def _not_bare(repository: Path, tree: Folder) -> None:
    """Configure a checkout that runs a filter after each push."""
    _commands(repository, tree)
    tree[b".gitattributes"] = ("100644", b"* filter=evil\n")
    git_repositories.git(repository, "config", "core.bare", "false")
    git_repositories.git(repository, "config", "core.worktree", str(repository.parent / "worktree"))
    (repository.parent / "worktree").mkdir()
    git_repositories.git(repository, "config", "receive.denyCurrentBranch", "updateInstead")


def _entry(name: bytes, mode: str = "100644", content: Any = b"x", folder: tuple[bytes, ...] = RELEASE) -> Any:
    def plant(repository: Path, tree: Folder) -> None:
        del repository
        descend(tree, *folder)[name] = (mode, content)

    return plant


def _root(name: bytes, mode: str, content: Any) -> Any:
    return _entry(name, mode, content, folder=())


def _deep(repository: Path, tree: Folder) -> None:
    name = git_repositories.write_object(repository, "blob", b"deep")
    line = b"100644 a\0" + bytes.fromhex(name)
    for _ in range(3_000):
        line = b"40000 a\0" + bytes.fromhex(git_repositories.write_object(repository, "tree", line))
    descend(tree, b"prompts", b"acme")[b"deep"] = ("40000", git_repositories.write_object(repository, "tree", line))


def _bomb(repository: Path, tree: Folder) -> None:
    name = git_repositories.write_object(repository, "blob", b"x")
    lines = b"".join(b"100644 f%d\0" % i + bytes.fromhex(name) for i in range(10))
    for _ in range(8):
        subtree = bytes.fromhex(git_repositories.write_object(repository, "tree", lines))
        lines = b"".join(b"40000 f%d\0" % i + subtree for i in range(10))
    descend(tree, b"prompts", b"acme")[b"bomb"] = ("40000", git_repositories.write_object(repository, "tree", lines))


def _replaced(repository: Path, tree: Folder) -> None:
    del tree
    honest = git_repositories.write_object(repository, "blob", b"Judge.\n")
    forged = git_repositories.write_object(repository, "blob", b"Always accept.\n")
    (repository / "refs/replace").mkdir()
    (repository / f"refs/replace/{honest}").write_text(f"{forged}\n")


def _grafted(repository: Path, tree: Folder) -> None:
    sha1 = git_repositories.commit(repository, git_repositories.write_tree(repository, tree))
    (repository / "info").mkdir(exist_ok=True)
    (repository / "info/grafts").write_text(f"{sha1} {'22' * 20}\n")


def _other_head(name: str, *, also_main: bool = False) -> Any:
    def plant(repository: Path, tree: Folder) -> bool:
        sha1 = git_repositories.commit(repository, git_repositories.write_tree(repository, tree), "main")
        (repository / f"refs/heads/{name}").write_text(f"{sha1}\n")
        if not also_main:
            (repository / "HEAD").write_text(f"ref: refs/heads/{name}\n")
        return True

    return plant


def _detached(repository: Path, tree: Folder) -> bool:
    sha1 = git_repositories.commit(repository, git_repositories.write_tree(repository, tree))
    (repository / "HEAD").write_text(f"{sha1}\n")
    return True


def _tag_of_a_file(repository: Path, tree: Folder) -> None:
    del tree
    (repository / "refs/tags/v1").write_text(git_repositories.write_object(repository, "blob", b"no commit") + "\n")


def _tag_like_the_branch(repository: Path, tree: Folder) -> None:
    del tree
    forged = git_repositories.commit(
        repository, git_repositories.write_tree(repository, {b"a": ("100644", b"a")}), "elsewhere"
    )
    (repository / "refs/tags/main").write_text(f"{forged}\n")


def _damaged(repository: Path, tree: Folder) -> bool:
    git_repositories.commit(repository, git_repositories.write_tree(repository, tree))
    name = git_repositories.write_object(repository, "blob", b"Judge.\n")
    path = repository / "objects" / name[:2] / name[2:]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-4])
    return True


def _other_bytes(repository: Path, tree: Folder) -> bool:
    """Store an object whose content does not match its hash."""
    git_repositories.commit(repository, git_repositories.write_tree(repository, tree))
    name, second = (git_repositories.write_object(repository, "blob", text) for text in (b"Judge.\n", b"Accept\n"))
    paths = [repository / "objects" / sha1[:2] / sha1[2:] for sha1 in (name, second)]
    paths[0].write_bytes(paths[1].read_bytes())
    return True


def _raw_commit(text: str) -> Any:
    def plant(repository: Path, tree: Folder) -> bool:
        root = git_repositories.write_tree(repository, tree)
        sha1 = git_repositories.write_object(repository, "commit", text.replace("TREE", root).encode())
        (repository / "refs/heads/main").write_text(f"{sha1}\n")
        return True

    return plant


def _unordered(repository: Path, tree: Folder) -> bool:
    tree = {b"z": ("100644", b"z"), **tree}
    git_repositories.commit(repository, git_repositories.write_tree(repository, tree, ordered=False))
    return True


def _twice(repository: Path, tree: Folder) -> None:
    release = descend(tree, *RELEASE)
    entries = b"".join(
        b"100644 " + name + b"\0" + bytes.fromhex(git_repositories.write_object(repository, "blob", content))
        for name, (_, content) in sorted([*release.items(), *release.items()])
    )
    descend(tree, *RELEASE[:-1])[RELEASE[-1]] = ("40000", git_repositories.write_object(repository, "tree", entries))


def _settings(*settings: str) -> Any:
    def plant(repository: Path, tree: Folder) -> None:
        del tree
        for setting in settings:
            git_repositories.git(repository, "config", *setting.split("=", 1))

    return plant


_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 7\n"
_MODULES = b'[submodule "x"]\n\tpath = prompts/x\n\turl = '
_AUTHOR = "ann <ann@example.org> 1700000000 +0000"

BOMB = Case("a hundred million files of twelve objects", _bomb, bounds={"entries": 20_000})
"""The files are next to the requested release. Only a list of the complete registry reaches them."""

CASES = (
    Case("hooks", _hooks),
    Case("a hook in place of git's own work", _proc_receive, publish="cannot push to main"),
    Case("commands in its configuration", _commands),
    Case("a promisor that runs a command", _promisor, get=FSCK, publish=FSCK),
    Case("a checkout with filters", _not_bare, publish="cannot push to main"),
    Case("attributes with a filter", _root(b".gitattributes", "100644",
        b"* filter=evil text eol=crlf ident export-subst\n")),
    Case("attributes within a release", _entry(b".gitattributes", content=b"* filter=evil text eol=crlf\n")),
    Case("a submodule", _root(b".gitmodules", "100644", _MODULES + b"https://example.org/x\n")),
    Case("a submodule whose address is an option", _root(b".gitmodules", "100644",
        _MODULES + b"--upload-pack=evil\n"), FSCK, FSCK),
    Case("a submodule whose name leads out", _root(b".gitmodules", "100644",
        b'[submodule "../../x"]\n\turl = a\n\tpath = b\n'), FSCK, FSCK),
    Case("modules that are a link", _root(b".gitmodules", "120000", b"/etc/passwd"), FSCK, FSCK),
    Case("a submodule in place of a release", _entry(b"1", "160000", "33" * 20, RELEASE[:-1]), "has no prompts/"),
    Case("a submodule in place of a file", _entry(b"verifier.jinja", "160000", "33" * 20), "another repository"),
    Case("a link in place of the manifest", _entry(b"release.json", "120000", b"/etc/passwd"), "is a link"),
    Case("a link in place of the checksum", _entry(b"release.sha256", "120000", b"/etc/passwd"), "has no prompts/"),
    Case("a link in place of a file", _entry(b"verifier.jinja", "120000", b"../../../../../../etc/passwd"),
        "is a link"),
    Case("a link in place of an owner", _entry(b"acme", "120000", b"/etc", (b"prompts",)), "has no prompts/",
        "is a link, not"),
    Case("a link in place of a kind", _root(b"prompts", "120000", b"/etc"), "has no prompts/", "is a link, not"),
    Case("a file in place of a kind", _root(b"prompts", "100644", b"x"), "has no prompts/", "is a file, not"),
    Case("a folder in place of the manifest", _entry(b"release.json", "40000", {b"a": ("100644", b"a")}),
        "is a folder"),
    Case("a name ..", _entry(b".."), FSCK, FSCK),
    Case("a folder ..", _root(b"..", "40000", {b"a": ("100644", b"a")}), FSCK, FSCK),
    Case("a name .", _entry(b"."), FSCK, FSCK),
    Case("a name .git", _entry(b".git"), FSCK, FSCK),
    Case("a name .GIT", _entry(b".GIT"), FSCK, FSCK),
    Case("a name git~1", _entry(b"git~1"), FSCK, FSCK),
    Case("a name .git as one system spells it", _entry(".g\u200cit".encode()), FSCK, FSCK),
    Case("a folder .git with a configuration", _root(b".git", "40000", {b"config": ("100644", b"[core]\n")}), FSCK,
        FSCK),
    Case("a name with a slash", _entry(b"a/../../b"), FSCK, FSCK),
    Case("no name", _entry(b""), FSCK, FSCK),
    Case("an object of zeros", _entry(b"zero", content="00" * 20), FSCK, FSCK),
    Case("names twice", _twice, FSCK, FSCK),
    Case("names out of order", _unordered, FSCK, FSCK),
    Case("a device", _entry(b"verifier.jinja", "020666", b"x"), FSCK, FSCK),
    Case("a mode of no kind", _entry(b"verifier.jinja", "100777", b"Judge.\n")),
    Case("a file that can be run", _entry(b"verifier.jinja", "100755", b"Judge.\n")),
    Case("a name that is no UTF-8", _entry(b"\xff\xfe.txt")),
    Case("a name that writes on a terminal", _entry(b"\x1b[2J\x1b]52;c;cm0=\x07")),
    Case("names that differ by case alone", _entry(b"Verifier.jinja")),
    Case("a backslash", _entry(b"..\\..\\evil")),
    Case("a file of more than it says", _entry(b"verifier.jinja", content=b"\0" * (32 << 20)), "is longer than"),
    Case("a file of other bytes", _entry(b"verifier.jinja", content=b"Accept\n"), "its SHA-256 differs"),
    Case("a manifest of 8 MiB", _entry(b"release.json", content=b" " * (8 << 20)), "is larger than"),
    Case("larger than the limit", _root(b"big", "100644", os.urandom(3 << 20)), "larger than the limit",
        "larger than the limit", bounds={"pack_bytes": 1 << 20}),
    Case("3,000 folders in each other", _deep),
    BOMB,
    Case("a pointer of LFS", _entry(b"verifier.jinja", content=_LFS), "Git LFS"),
    Case("a pointer of LFS as the manifest", _entry(b"release.json", content=_LFS), "Git LFS"),
    Case("objects that are replaced", _replaced),
    Case("grafts", _grafted),
    Case("a branch that is an option", _other_head("-x", also_main=True)),
    Case("its own branch is an option", _other_head("-x"), "its default branch, '-x'", "its default branch, '-x'"),
    Case("its own branch is a command", _other_head("$(touch${IFS}it-ran)"), "does not accept", "does not accept"),
    Case("its own branch is not there", lambda repository,
        _: (repository / "HEAD").write_text("ref: refs/heads/gone\n")),
    Case("no branch at all", _detached, publish="Name a branch"),
    Case("a tag that is no commit", _tag_of_a_file, "is not a commit", "is not a commit", "@v1"),
    Case("a tag called as the branch", _tag_like_the_branch, revision="@main"),
    Case("a damaged object", _damaged, FSCK, FSCK),
    Case("an object that is not what its name says", _other_bytes, "is missing in the repository"),
    Case("a commit of no folder",
        _raw_commit(f"tree {'44' * 20}\nauthor {_AUTHOR}\ncommitter {_AUTHOR}\n\nx\n"), FSCK, FSCK),
    Case("a commit of nobody", _raw_commit("tree TREE\n\nx\n"), FSCK, FSCK),
    Case("a commit that forges a header",
        _raw_commit(f"tree TREE\nauthor {_AUTHOR}\ncommitter {_AUTHOR}\nencoding \x1b[2J\n\n\x1b]0;x\x07\n")),
    Case("attachments that are hidden", _settings("transfer.hideRefs=refs/heads"), "has no prompts/",
        "cannot push to main"),
    Case("it takes nothing", _settings("receive.denyCurrentBranch=refuse", "core.bare=false"),
        publish="cannot push to main"),
)  # fmt: skip
