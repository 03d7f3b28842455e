"""Store the token for a registry's server.

Examples:
  nip-run login https://registry.example.org
  nip-run login https://registry.example.org < token.txt
  nip-run login https://registry.example.org --logout
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import warnings
from contextlib import closing

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.redaction import remember_secret
from runner.base.text import comma_join, in_one_line
from runner.cli.terminal.output import note, print_json, say

MAX_TOKEN_LENGTH = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="URL", nargs="?", help="the server; default: $NIP_RUN_REGISTRY")
    parser.add_argument("--logout", action="store_true", help="delete the stored token")


def execute(args: argparse.Namespace) -> int:
    from runner.registry.transports.http.tokens import (
        REGISTRY_ENV,
        TOKEN_ENV,
        normalize_address,
        store_token,
        tokens_path,
    )

    server = args.server or os.environ.get(REGISTRY_ENV, "")
    if not server:
        raise UsageError(f"the server is missing: give its address, such as https://HOST, or set {REGISTRY_ENV}")
    address = normalize_address(server)
    if args.logout:
        return _log_out(address, as_json=args.json)
    token = _read_token(address)
    account, owners = _find_account(address, token)
    store_token(address, token)
    if args.json:
        print_json({"where": address, "account": account, "owners": owners, "kept_in": str(tokens_path())})
        return ExitCode.DONE
    permission = f"may publish as {in_one_line(comma_join(owners))}" if owners else "may read but not publish"
    say(f"{address}: logged in as {in_one_line(account)}, who {permission}; the token is stored in {tokens_path()}")
    if os.environ.get(TOKEN_ENV):
        note(f"{TOKEN_ENV} is set and overrides the stored token for the registry in {REGISTRY_ENV}")
    return ExitCode.DONE


def _log_out(address: str, *, as_json: bool) -> int:
    from runner.registry.transports.http.tokens import store_token

    was_stored = store_token(address, None)
    if as_json:
        print_json({"where": address, "forgotten": was_stored})
    else:
        state = "the stored token is deleted; the server still accepts it" if was_stored else "no token is stored"
        say(f"{address}: {state}")
    return ExitCode.DONE


def _read_token(address: str) -> str:
    """Read the token from stdin or a prompt, so that neither the screen nor the list of processes shows it.

    Raises:
        UsageError: no token was given, or the text cannot be a token.
    """
    token = (_prompt_for_token(address) if sys.stdin.isatty() else sys.stdin.readline(MAX_TOKEN_LENGTH)).strip()
    if not token:
        raise UsageError("no token was given; paste it at the prompt, or send it on stdin")
    remember_secret(token)
    if not token.isascii() or not token.isprintable() or " " in token or len(token) >= MAX_TOKEN_LENGTH:
        raise UsageError("the token has spaces or unexpected characters, or is too long; copy it again")
    return token


def _prompt_for_token(address: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(f"token for {address} (hidden): ")
        except getpass.GetPassWarning as warning:
            raise UsageError("this terminal would show the token; send it on stdin") from warning


def _find_account(address: str, token: str) -> tuple[str, list[str]]:
    """Return the account of a token, and the owners whose releases it may publish.

    Raises:
        UsageError: the server does not know the token.
        ReleaseError: the server does not answer.
    """
    from runner.registry.transports.http.api import RegistryApi, parse_account
    from runner.registry.transports.timeouts import Timeouts

    with closing(RegistryApi(address, Timeouts(tries=3), token=token)) as api:
        response = api.request("GET", "")
    if response.status not in (200, 401, 403):
        raise UsageError(f"{address}: {response.message}")
    account = parse_account(response.body, address) if response.status == 200 else None
    if account is None:
        raise UsageError(f"{address} does not accept this token, which may have expired; create a new one")
    return account
