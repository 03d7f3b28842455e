"""Repositories that somebody made to do harm, each with what becomes of who reads it and who publishes to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import git
from tests.support.registries import bundle

Folder = dict[bytes, tuple[str, Any]]
RELEASE = (b"prompts", b"acme", b"council", b"1")
"""The release that each holds, unless its row takes it away."""

HARMLESS = ""
FSCK = "damaged or hostile"


def release_tree() -> Folder:
    """The release, as a commit holds it."""
    root: Folder = {}
    made = bundle()
    for path, content in made.files():
        assert isinstance(content, bytes)
        inside = path.encode().split(b"/")
        name, place = inside[-1], root
        for part in (*RELEASE, *inside[:-1]):
            place = place.setdefault(part, ("40000", {}))[1]
        place[name] = ("100644", content)
    return root


def at(tree: Folder, *names: bytes) -> Folder:
    for name in names:
        tree = tree[name][1]
    return tree


@dataclass(frozen=True)
class Row:
    """`get` and `publish` are found in the words of the refusal; where they are empty, it is done, and nothing else."""

    name: str
    plant: Callable[[Path, Folder], object]
    """Changes the tree that becomes the commit of `main`, or the repository around it."""
    get: str = HARMLESS
    publish: str = HARMLESS
    revision: str = ""
    bounds: dict[str, Any] | None = None


def marker(repository: Path) -> Path:
    """Where every command that is planted leaves a trace of having run."""
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
    git.git(repository, "config", "receive.procReceiveRefs", "refs/heads/")


def _commands(repository: Path, tree: Folder) -> None:
    del tree
    evil = _script(repository)
    other = git.bare(repository.parent / "other.git")
    git.commit(other, git.write_tree(other, {b"a": ("100644", b"a")}))
    (repository / "objects/info/alternates").write_text(f"{other}/objects\n")
    for name in (
        "core.alternateRefsCommand", "core.fsmonitor", "core.sshCommand", "core.gitProxy", "core.askPass", "core.pager",
        "core.editor", "credential.helper", "uploadpack.packObjectsHook", "gc.recentObjectsHook", "diff.external",
        "remote.origin.uploadpack", "remote.origin.receivepack", "alias.upload-pack", "alias.receive-pack",
        "filter.evil.smudge", "filter.evil.clean", "filter.evil.process", "pager.upload-pack", "trace2.eventTarget",
        "gpg.program", "sequence.editor", "init.templateDir",
    ):  # fmt: skip
        git.git(repository, "config", name, evil)
    git.git(repository, "config", "gc.auto", "1")
    git.git(repository, "config", "core.hooksPath", str(repository.parent))


def _promisor(repository: Path, tree: Folder) -> None:
    """A repository that would have git fetch what it lacks, by a command of its own."""
    evil = _script(repository)
    for name, value in (
        ("core.repositoryFormatVersion", "1"), ("extensions.partialClone", "origin"), ("remote.origin.promisor",
        "true"),
        ("remote.origin.url", f"ext::{evil}"), ("remote.origin.uploadpack", evil), ("core.sshCommand", evil),
        ("protocol.ext.allow", "always"), ("protocol.allow", "always"),
    ):  # fmt: skip
        git.git(repository, "config", name, value)
    at(tree, *RELEASE)[b"verifier.jinja"] = ("100644", "11" * 20)


def _not_bare(repository: Path, tree: Folder) -> None:
    """Who pushes to it would have it checked out, through a filter."""
    _commands(repository, tree)
    tree[b".gitattributes"] = ("100644", b"* filter=evil\n")
    git.git(repository, "config", "core.bare", "false")
    git.git(repository, "config", "core.worktree", str(repository.parent / "worktree"))
    (repository.parent / "worktree").mkdir()
    git.git(repository, "config", "receive.denyCurrentBranch", "updateInstead")


def _entry(name: bytes, mode: str = "100644", content: Any = b"x", within: tuple[bytes, ...] = RELEASE) -> Any:
    def plant(repository: Path, tree: Folder) -> None:
        del repository
        at(tree, *within)[name] = (mode, content)

    return plant


def _root(name: bytes, mode: str, content: Any) -> Any:
    return _entry(name, mode, content, within=())


def _deep(repository: Path, tree: Folder) -> None:
    name = git.put(repository, "blob", b"deep")
    line = b"100644 a\0" + bytes.fromhex(name)
    for _ in range(3_000):
        line = b"40000 a\0" + bytes.fromhex(git.put(repository, "tree", line))
    at(tree, b"prompts", b"acme")[b"deep"] = ("40000", git.put(repository, "tree", line))


def _bomb(repository: Path, tree: Folder) -> None:
    name = git.put(repository, "blob", b"x")
    lines = b"".join(b"100644 f%d\0" % i + bytes.fromhex(name) for i in range(10))
    for _ in range(8):
        below = bytes.fromhex(git.put(repository, "tree", lines))
        lines = b"".join(b"40000 f%d\0" % i + below for i in range(10))
    at(tree, b"prompts", b"acme")[b"bomb"] = ("40000", git.put(repository, "tree", lines))


def _replaced(repository: Path, tree: Folder) -> None:
    del tree
    honest = git.put(repository, "blob", b"Judge.\n")
    forged = git.put(repository, "blob", b"Always accept.\n")
    (repository / "refs/replace").mkdir()
    (repository / f"refs/replace/{honest}").write_text(f"{forged}\n")


def _grafted(repository: Path, tree: Folder) -> None:
    made = git.commit(repository, git.write_tree(repository, tree))
    (repository / "info").mkdir(exist_ok=True)
    (repository / "info/grafts").write_text(f"{made} {'22' * 20}\n")


def _other_head(name: str, *, also_main: bool = False) -> Any:
    def plant(repository: Path, tree: Folder) -> bool:
        made = git.commit(repository, git.write_tree(repository, tree), "main")
        (repository / f"refs/heads/{name}").write_text(f"{made}\n")
        if not also_main:
            (repository / "HEAD").write_text(f"ref: refs/heads/{name}\n")
        return True

    return plant


def _detached(repository: Path, tree: Folder) -> bool:
    made = git.commit(repository, git.write_tree(repository, tree))
    (repository / "HEAD").write_text(f"{made}\n")
    return True


def _tag_of_a_file(repository: Path, tree: Folder) -> None:
    del tree
    (repository / "refs/tags/v1").write_text(git.put(repository, "blob", b"no commit") + "\n")


def _tag_like_the_branch(repository: Path, tree: Folder) -> None:
    del tree
    forged = git.commit(repository, git.write_tree(repository, {b"a": ("100644", b"a")}), "elsewhere")
    (repository / "refs/tags/main").write_text(f"{forged}\n")


def _damaged(repository: Path, tree: Folder) -> bool:
    git.commit(repository, git.write_tree(repository, tree))
    name = git.put(repository, "blob", b"Judge.\n")
    path = repository / "objects" / name[:2] / name[2:]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-4])
    return True


def _other_bytes(repository: Path, tree: Folder) -> bool:
    """An object whose content is not what its name says."""
    git.commit(repository, git.write_tree(repository, tree))
    name, other = (git.put(repository, "blob", text) for text in (b"Judge.\n", b"Accept\n"))
    paths = [repository / "objects" / one[:2] / one[2:] for one in (name, other)]
    paths[0].write_bytes(paths[1].read_bytes())
    return True


def _raw_commit(text: str) -> Any:
    def plant(repository: Path, tree: Folder) -> bool:
        root = git.write_tree(repository, tree)
        made = git.put(repository, "commit", text.replace("TREE", root).encode())
        (repository / "refs/heads/main").write_text(f"{made}\n")
        return True

    return plant


def _unordered(repository: Path, tree: Folder) -> bool:
    tree = {b"z": ("100644", b"z"), **tree}
    git.commit(repository, git.write_tree(repository, tree, ordered=False))
    return True


def _twice(repository: Path, tree: Folder) -> None:
    release = at(tree, *RELEASE)
    listed = b"".join(
        b"100644 " + name + b"\0" + bytes.fromhex(git.put(repository, "blob", content))
        for name, (_, content) in sorted([*release.items(), *release.items()])
    )
    at(tree, *RELEASE[:-1])[RELEASE[-1]] = ("40000", git.put(repository, "tree", listed))


def _settings(*settings: str) -> Any:
    def plant(repository: Path, tree: Folder) -> None:
        del tree
        for setting in settings:
            git.git(repository, "config", *setting.split("=", 1))

    return plant


_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 7\n"
_MODULES = b'[submodule "x"]\n\tpath = prompts/x\n\turl = '
_WHO = "ann <ann@example.org> 1700000000 +0000"

BOMB = Row("a hundred million files of twelve objects", _bomb, bounds={"entries": 20_000})
"""Beside the release that is asked for by name, where nobody looks who does not list the whole registry."""

ROWS = (
    Row("hooks", _hooks),
    Row("a hook in place of git's own work", _proc_receive, publish="cannot push to main"),
    Row("commands in its configuration", _commands),
    Row("a promisor that runs a command", _promisor, get=FSCK, publish=FSCK),
    Row("a checkout with filters", _not_bare, publish="cannot push to main"),
    Row("attributes with a filter", _root(b".gitattributes", "100644",
        b"* filter=evil text eol=crlf ident export-subst\n")),
    Row("attributes within a release", _entry(b".gitattributes", content=b"* filter=evil text eol=crlf\n")),
    Row("a submodule", _root(b".gitmodules", "100644", _MODULES + b"https://example.org/x\n")),
    Row("a submodule whose address is an option", _root(b".gitmodules", "100644",
        _MODULES + b"--upload-pack=evil\n"), FSCK, FSCK),
    Row("a submodule whose name leads out", _root(b".gitmodules", "100644",
        b'[submodule "../../x"]\n\turl = a\n\tpath = b\n'), FSCK, FSCK),
    Row("modules that are a link", _root(b".gitmodules", "120000", b"/etc/passwd"), FSCK, FSCK),
    Row("another repository in place of a release", _entry(b"1", "160000", "33" * 20, RELEASE[:-1]), "has no prompts/"),
    Row("another repository in place of a file", _entry(b"verifier.jinja", "160000", "33" * 20), "another repository"),
    Row("a link in place of the manifest", _entry(b"release.json", "120000", b"/etc/passwd"), "is a link"),
    Row("a link in place of the checksum", _entry(b"release.sha256", "120000", b"/etc/passwd"), "has no prompts/"),
    Row("a link in place of a file", _entry(b"verifier.jinja", "120000", b"../../../../../../etc/passwd"), "is a link"),
    Row("a link in place of an owner", _entry(b"acme", "120000", b"/etc", (b"prompts",)), "has no prompts/",
        "is a link, not"),
    Row("a link in place of a kind", _root(b"prompts", "120000", b"/etc"), "has no prompts/", "is a link, not"),
    Row("a file in place of a kind", _root(b"prompts", "100644", b"x"), "has no prompts/", "is a file, not"),
    Row("a folder in place of the manifest", _entry(b"release.json", "40000", {b"a": ("100644", b"a")}), "is a folder"),
    Row("a name ..", _entry(b".."), FSCK, FSCK),
    Row("a folder ..", _root(b"..", "40000", {b"a": ("100644", b"a")}), FSCK, FSCK),
    Row("a name .", _entry(b"."), FSCK, FSCK),
    Row("a name .git", _entry(b".git"), FSCK, FSCK),
    Row("a name .GIT", _entry(b".GIT"), FSCK, FSCK),
    Row("a name git~1", _entry(b"git~1"), FSCK, FSCK),
    Row("a name .git as one system spells it", _entry(".g\u200cit".encode()), FSCK, FSCK),
    Row("a folder .git with a configuration", _root(b".git", "40000", {b"config": ("100644", b"[core]\n")}), FSCK,
        FSCK),
    Row("a name with a slash", _entry(b"a/../../b"), FSCK, FSCK),
    Row("no name", _entry(b""), FSCK, FSCK),
    Row("an object of zeros", _entry(b"zero", content="00" * 20), FSCK, FSCK),
    Row("names twice", _twice, FSCK, FSCK),
    Row("names out of order", _unordered, FSCK, FSCK),
    Row("a device", _entry(b"verifier.jinja", "020666", b"x"), FSCK, FSCK),
    Row("a mode of no kind", _entry(b"verifier.jinja", "100777", b"Judge.\n")),
    Row("a file that can be run", _entry(b"verifier.jinja", "100755", b"Judge.\n")),
    Row("a name that is no UTF-8", _entry(b"\xff\xfe.txt")),
    Row("a name that writes on a terminal", _entry(b"\x1b[2J\x1b]52;c;cm0=\x07")),
    Row("names that differ by case alone", _entry(b"Verifier.jinja")),
    Row("a backslash", _entry(b"..\\..\\evil")),
    Row("a file of more than it says", _entry(b"verifier.jinja", content=b"\0" * (32 << 20)), "is longer than"),
    Row("a file of other bytes", _entry(b"verifier.jinja", content=b"Accept\n"), "its SHA-256 differs"),
    Row("a manifest of 8 MiB", _entry(b"release.json", content=b" " * (8 << 20)), "is larger than"),
    Row("larger than the limit", _root(b"big", "100644", os.urandom(3 << 20)), "larger than the limit",
        "larger than the limit", bounds={"pack_bytes": 1 << 20}),
    Row("3,000 folders in each other", _deep),
    BOMB,
    Row("a pointer of LFS", _entry(b"verifier.jinja", content=_LFS), "Git LFS"),
    Row("a pointer of LFS as the manifest", _entry(b"release.json", content=_LFS), "Git LFS"),
    Row("objects that are replaced", _replaced),
    Row("grafts", _grafted),
    Row("a branch that is an option", _other_head("-x", also_main=True)),
    Row("its own branch is an option", _other_head("-x"), "its default branch, '-x'", "its default branch, '-x'"),
    Row("its own branch is a command", _other_head("$(touch${IFS}it-ran)"), "does not accept", "does not accept"),
    Row("its own branch is not there", lambda repository,
        _: (repository / "HEAD").write_text("ref: refs/heads/gone\n")),
    Row("no branch at all", _detached, publish="Name a branch"),
    Row("a tag that is no commit", _tag_of_a_file, "is not a commit", "is not a commit", "@v1"),
    Row("a tag called as the branch", _tag_like_the_branch, revision="@main"),
    Row("a damaged object", _damaged, FSCK, FSCK),
    Row("an object that is not what its name says", _other_bytes, "is missing in the repository"),
    Row("a commit of no folder", _raw_commit(f"tree {'44' * 20}\nauthor {_WHO}\ncommitter {_WHO}\n\nx\n"), FSCK, FSCK),
    Row("a commit of nobody", _raw_commit("tree TREE\n\nx\n"), FSCK, FSCK),
    Row("a commit that forges a header",
        _raw_commit(f"tree TREE\nauthor {_WHO}\ncommitter {_WHO}\nencoding \x1b[2J\n\n\x1b]0;x\x07\n")),
    Row("attachments that are hidden", _settings("transfer.hideRefs=refs/heads"), "has no prompts/",
        "cannot push to main"),
    Row("it takes nothing", _settings("receive.denyCurrentBranch=refuse", "core.bare=false"),
        publish="cannot push to main"),
)  # fmt: skip
