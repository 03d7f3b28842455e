"""The arguments of the commands of the registry: published, got, checked, reproduced, installed."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.cli.arguments import RUN, folder
from runner.cli.arguments_experiments import allow_command, allow_host, allow_key

WHERE = "a folder, git:URL, hf:OWNER/NAME or https://HOST; default: what NIP_RUN_REGISTRY says"
REF = "KIND/OWNER/NAME@VERSION, without a version the newest, or sha256:..."


def _margin(text: str) -> float:
    margin = float(text)
    if not 0 < margin < 1:
        raise argparse.ArgumentTypeError(f"a share above 0 and below 1 belongs here, not {text}")
    return margin


def _source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="where", metavar="WHERE", help=f"the registry: {WHERE}")


def publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="+",
        metavar="RUN|FILE|FOLDER",
        help=f"runs ({RUN}; or a folder); or with --kind the file or folder of a component",
    )
    parser.add_argument("--to", dest="where", metavar="WHERE", help=f"the registry: {WHERE}")
    parser.add_argument("--kind", help="of a component: protocol, prompts, dataset, agent, trainer, spec or model")
    parser.add_argument(
        "--as",
        dest="name",
        metavar="OWNER/NAME@VERSION",
        help="its name; of a run the owner will do: its id is the name, and 1 the version",
    )
    parser.add_argument("--part", metavar="NAME", help="of a spec: which agent, trainer or model group it is")
    parser.add_argument("--description", default="", metavar="TEXT", help="what it is, for a list")
    parser.add_argument(
        "--licence",
        "--license",
        metavar="SPDX",
        help="how others may use it: an SPDX expression, such as CC-BY-4.0 or MIT",
    )
    parser.add_argument(
        "--dataset-licence",
        "--dataset-license",
        metavar="SPDX",
        help="license of a run's dataset, if it is another; none: its rows stay here",
    )
    parser.add_argument("--private", action="store_true", help="left out of searches and boards")
    parser.add_argument("--dry-run", action="store_true", help="check all, and show what would be sent; send nothing")
    parser.add_argument(
        "--force",
        action="store_true",
        help="publish although files of a public repository are not committed or not pushed; marked as not pinned",
    )
    parser.add_argument(
        "--pin", type=Path, metavar="SPEC", help="pin a run: SPEC and its files, unchanged, are in a pushed commit now"
    )
    parser.add_argument(
        "--allow-name", action="append", default=[], metavar="WORD",
        help="publish this user name, machine name, host or path anyway; may be given again",
    )  # fmt: skip
    parser.add_argument("--child-of", metavar="REF", help=f"the release that it was made from: {REF}")
    parser.add_argument("--pull-request", action="store_true", help="git, hf: as a branch or a pull request to merge")
    parser.add_argument("--sign-key", type=Path, metavar="FILE", help="sign the manifest with this private key (PEM)")
    parser.add_argument(
        "--yank", metavar="REASON", help="no longer the newest for anybody; who asks for it is told why"
    )


def get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="REF", help=f"{REF}; without a kind: a run")
    parser.add_argument("folder", metavar="DIR", nargs="?", type=folder, help="default: the name of the release")
    _source(parser)
    parser.add_argument("--signer-key", type=Path, metavar="FILE", help="the public key (PEM) that must have signed it")


def reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="REF|DIR", help=f"{REF}; or a folder that `get` left")
    _source(parser)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="play it anew, and say by how much it has drifted: exit code 1 where it has, 5 where that cannot be told, "
        "4 where its model is gone",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="with --fresh: where its models are served, and other keys that change no game; dataset.path=FILE, where "
        "it was published without the rows of its dataset; may be given again",
    )
    parser.add_argument("--metric", default="accuracy", metavar="NAME", help="with --fresh: what is compared")
    parser.add_argument(
        "--margin", type=_margin, default=0.1, metavar="SHARE",
        help="with --fresh: reproduced is what is shown to differ by no more than this share of the metric's scale "
        "(of the published value, where it has none); default: 0.1",
    )  # fmt: skip
    allow_key(parser)
    allow_command(parser)
    allow_host(parser)


def verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RUN|REF|DIR", help=f"a run ({RUN}), {REF}, or a folder that `get` left")
    _source(parser)
    parser.add_argument("--signer-key", type=Path, metavar="FILE", help="the public key (PEM) that must have signed it")


def login(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", metavar="URL", nargs="?", help="the server; default: $NIP_RUN_REGISTRY")
    parser.add_argument("--logout", action="store_true", help="forget its token here")


def install(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("references", metavar="REF", nargs="*", help=f"{REF}; without any: what nip-run.lock says")
    _source(parser)


def uninstall(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("references", metavar="REF", nargs="+", help=REF)


def search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", metavar="WORD", nargs="*", help="found in names, descriptions, models and benchmarks")
    _source(parser)
    parser.add_argument("--kind", help="only these: protocol, prompts, dataset, agent, trainer, spec, model or run")
    parser.add_argument("--all", action="store_true", help="private and yanked releases, and older versions, too")


def freeze(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", metavar="SPEC", help="a spec file")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the spec with every reference pinned")


def status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RUN|SPEC", nargs="?", help="only this run, or the components of this spec")


def history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", metavar="AGENT", help="an agent, a model group or a model, by its name, or a run's id")
    parser.add_argument("--from", dest="where", metavar="WHERE", help=f"what is published there, too: {WHERE}")
