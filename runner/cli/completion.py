"""`nip-run completion`: the scripts of the shells, and what they ask: the words that may stand where the cursor is.

A script calls `nip-run completion -- WORD...`, the last word being the one that is completed, and gets a line for
each that it may become. This must be instant: of a results folder only the names of its runs are read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from runner.base.exit_codes import ExitCode
from runner.base.package_data import queries
from runner.cli.commands import COMMANDS
from runner.cli.terminal.output import say
from runner.results.default_folder import default_results

_BASH = """\
_nip_run() {
    local line odd= word="${COMP_WORDS[COMP_CWORD]}"
    word=${word#[\\"\\']}
    word=${word//\\\\/}
    COMPREPLY=()
    while IFS= read -r line; do
        [ -n "$line" ] && COMPREPLY+=("$line")
        [[ $line == *[!A-Za-z0-9_./+-]* ]] && odd=1
    done < <("${COMP_WORDS[0]}" completion -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$word" 2>/dev/null)
    if [ -n "$odd" ]; then compopt -o filenames 2>/dev/null; fi  # has readline quote them
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -F _nip_run nip-run
"""

_ZSH = """\
#compdef nip-run
_nip_run() {
    local -a found folders
    found=("${(@f)$("${words[1]}" completion -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    folders=(${(M)found:#*/})
    found=(${found:#*/})
    (( ${#found} )) && compadd -- "${found[@]}"
    (( ${#folders} )) && compadd -S '' -- "${folders[@]}"
}
compdef _nip_run nip-run
"""

_FISH = """\
function __nip_run
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion -- $words[2..-1] 2>/dev/null
end
complete -c nip-run -f -a '(__nip_run)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_SPECS = (".yaml", ".yml")
_TAKES_SPECS = ("run", "check", "render")
_TAKES_RUN = ("show", "export", "explain-misses", "notes")
_TAKES_RUNS = {"report": 1, "view": 1, "plot": 2}
"""Commands of any number of runs, and how many words stand before the first; the command is one."""


def execute(args: argparse.Namespace) -> int:
    say(SCRIPTS[args.shell].rstrip("\n"))
    return ExitCode.DONE


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of the words after `nip-run` may become; a name that is no line of text is none of it."""
    *before, word = words or [""]
    return sorted({found for found in _possible(before, word) if found.startswith(word) and found.isprintable()})


def _possible(before: Sequence[str], word: str) -> Iterable[str]:
    first = next(iter(_positionals(before, _parser("run"))), None)
    name = first if first in COMMANDS else None
    parser = _parser(name or "run")
    last = parser._option_string_actions.get(before[-1]) if before else None  # noqa: SLF001 - it has no other face
    if last is not None and last.nargs != 0:
        return _values(last, before, word)
    if word.startswith("-"):
        return (option for option in parser._option_string_actions if option.startswith("--"))  # noqa: SLF001
    if name is None:
        return [*(COMMANDS if not before else ()), *_files(word, _SPECS)]
    words = len(_positionals(before, parser))
    is_first = words == 1  # the command's own name
    if name == "sql" and is_first and word.startswith("@"):
        return _queries(before)
    if name in _TAKES_SPECS:
        return _files(word, _SPECS) if is_first or name != "render" else ()
    if (name in _TAKES_RUN and is_first) or words >= _TAKES_RUNS.get(name, words + 1):
        return ["last", *_runs(before)]
    positional = next((one for one in parser._actions if not one.option_strings), None)  # noqa: SLF001
    if positional is None or not is_first:
        return ()
    return _files(word, ()) if positional.metavar == "DIR" else map(str, positional.choices or ())


def _positionals(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words that are no options, and no options' values."""
    found, takes_value = [], False
    for word in words:
        if takes_value:
            takes_value = False
        elif word.startswith("-") and word != "-":
            option = parser._option_string_actions.get(word)  # noqa: SLF001
            takes_value = option is not None and option.nargs != 0
        else:
            found.append(word)
    return found


def _values(option: argparse.Action, before: Sequence[str], word: str) -> Iterable[str]:
    """The values that an option takes."""
    if option.choices is not None:
        return map(str, option.choices)
    if option.metavar == "RUN":
        return _runs(before)
    if option.dest == "metric":
        from runner.results.metric_table import option_names

        return option_names(())
    return _files(word, None if option.metavar == "FILE" else ()) if option.metavar in ("FILE", "DIR") else ()


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    COMMANDS[name].arguments(parser)
    parser.add_argument("--results", metavar="DIR")
    for flag in ("--help", "--json", "--quiet", "--verbose"):
        parser.add_argument(flag, action="store_true")
    return parser


def _runs(before: Sequence[str]) -> Iterator[str]:
    """The ids of the runs in the results folder that the line names."""
    try:
        with os.scandir(os.path.join(_results(before), "runs")) as found:  # noqa: PTH118
            yield from (entry.name for entry in found if entry.is_dir())
    except (OSError, ValueError):
        return


def _queries(before: Sequence[str]) -> Iterator[str]:
    """The questions that can be asked by name, those of the results folder too."""
    for folder in (queries(), os.path.join(_results(before), "queries")):  # noqa: PTH118
        try:
            with os.scandir(folder) as found:
                yield from (f"@{entry.name.removesuffix('.sql')}" for entry in found if entry.name.endswith(".sql"))
        except (OSError, ValueError):
            continue


def _results(before: Sequence[str]) -> str:
    """The results folder that the line names."""
    named = [value for option, value in pairwise(before) if option == "--results"]
    named += [word.partition("=")[2] for word in before if word.startswith("--results=")]
    return (named or [default_results()])[-1]


def _files(word: str, endings: Sequence[str] | None) -> Iterator[str]:
    """Folders, and the files with one of these endings, or all, that begin with a word."""
    folder, slash, start = word.rpartition("/")
    try:
        with os.scandir(f"{folder}{slash}" or ".") as found:
            for entry in found:
                if entry.name.startswith(".") and not start.startswith("."):
                    continue
                if entry.is_dir():
                    yield f"{folder}{slash}{entry.name}/"
                elif endings is None or (endings and entry.name.endswith(tuple(endings))):
                    yield f"{folder}{slash}{entry.name}"
    except (OSError, ValueError):
        return
