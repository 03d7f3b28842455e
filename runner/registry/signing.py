"""Signatures of manifests, by the library `model-signing`: whoever has its command line can check what we sign.

What is signed is `release.json`, which names every file of a release by its hash; so a signature is of all of them. The
key is one of an elliptic curve (secp256r1, secp384r1 or secp521r1), in PEM, as `openssl ecparam -genkey` writes it. The
signature stands beside the manifest, in `signature/release.json.sig`:

    model_signing verify key release.json --signature signature/release.json.sig --public_key PUBLIC.pem
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from runner.base.errors import ReleaseError, TakenError, UsageError
from runner.base.storage.safe_files import create, read_bounded
from runner.documents.releases.manifest import MANIFEST, digest
from runner.registry.transports.listing import SIGNATURE
from runner.registry.transports.registry import Registry, ReleaseEntry

SIGNATURE_FILE = "release.json.sig"


def sign_release(registry: Registry, entry: ReleaseEntry, key: Path) -> None:
    """Sign a release that is published. One that this key has signed already is left as it is.

    Raises:
        UsageError: that is no key to sign with, or `model-signing` is not installed.
        TakenError: it is signed already, by another key.
        ReleaseError: its manifest is damaged, or the registry cannot be written.
    """
    _, manifest = registry.read(entry)
    signature = sign(manifest, key)
    try:
        registry.add_signature(entry, signature)
    except TakenError as error:
        with _public_part(key) as public:
            try:
                check(manifest, registry.signature(entry), public)
            except ReleaseError:
                raise TakenError(f"{entry.reference} is signed already, by another key; it keeps that one") from error


def check_release(registry: Registry, entry: ReleaseEntry, signer_key: Path | None) -> str | None:
    """Check the signature of a release, and say what is known of it; None where it has none, and none is asked for.

    Raises:
        UsageError: that is no public key, or `model-signing` is not installed.
        ReleaseError: it is not signed, or not by that key, or its manifest is damaged.
    """
    if signer_key is None:
        return f"{entry.reference} is signed, and that was not checked; give --signer-key" if entry.signed else None
    if not entry.signed:
        raise ReleaseError(
            f"{entry.reference} in {registry.where} is not signed, and --signer-key asks for a signature; ask its "
            "publisher for one, or leave --signer-key out"
        )
    _, manifest = registry.read(entry)
    try:
        check(manifest, registry.signature(entry), signer_key)
    except ReleaseError as error:
        raise type(error)(f"{entry.reference} in {registry.where}: {SIGNATURE}/{SIGNATURE_FILE}: {error}") from error
    return f"{entry.reference} is signed with the key of {signer_key}"


def sign(manifest: bytes, key: Path) -> list[tuple[str, bytes]]:
    """The files of a signature of a manifest, made with a private key in PEM that is not encrypted.

    Raises:
        UsageError: that is no such key, or `model-signing` is not installed.
    """
    signing, hashing, _ = _library()
    try:
        config = signing.Config().use_elliptic_key_signer(private_key=key)
    except Exception as error:  # what the library and those below it raise is of many kinds
        raise UsageError(_no_key(key, "private", error)) from error
    with tempfile.TemporaryDirectory(prefix="nip-run-") as folder:
        signed, signature = Path(folder, MANIFEST), Path(folder, SIGNATURE_FILE)
        _write(signed, manifest)
        config.set_hashing_config(_whole(hashing)).sign(signed, signature)
        return [(SIGNATURE_FILE, read_bounded(signature, 1 << 20))]


def check(manifest: bytes, files: Mapping[str, bytes], public_key: Path) -> None:
    """See that the files of a signature are one of this manifest, made by the owner of this public key.

    Raises:
        UsageError: that is no public key in PEM, or `model-signing` is not installed.
        ReleaseError: they are not.
    """
    _, hashing, verifying = _library()
    try:
        config = verifying.Config().use_elliptic_key_verifier(public_key=public_key)
    except Exception as error:
        raise UsageError(_no_key(public_key, "public", error)) from error
    if SIGNATURE_FILE not in files:
        raise ReleaseError(f"its signature has no file {SIGNATURE_FILE}")
    with tempfile.TemporaryDirectory(prefix="nip-run-") as folder:
        signed, signature = Path(folder, MANIFEST), Path(folder, SIGNATURE_FILE)
        _write(signed, manifest)
        _write(signature, files[SIGNATURE_FILE])
        try:
            with redirect_stdout(io.StringIO()):  # the library prints warnings there
                config.set_hashing_config(_whole(hashing)).verify(signed, signature)
            of = _signed_hashes(files[SIGNATURE_FILE])
        except Exception as error:
            why = str(error).strip().rstrip(".") or type(error).__name__
            raise ReleaseError(f"its signature is not one of this manifest with the key {public_key}: {why}") from error
    if of != [("sha256", digest(manifest))]:
        raise ReleaseError(f"its signature, with the key {public_key}, is of something else than this manifest")


def _signed_hashes(signature: bytes) -> list[tuple[str, str]]:
    """Of what a signature is, each by algorithm and hash.

    The library passes over files that a signature itself says to ignore: one that somebody once made of nothing would
    hold for everything.
    """
    envelope = json.loads(signature)["dsseEnvelope"]
    resources = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["resources"]
    return [(resource["algorithm"], resource["digest"]) for resource in resources]


def _whole(hashing: Any) -> Any:
    """The file is hashed, whatever it is called."""
    return hashing.Config().set_ignored_paths(paths=[], ignore_git_paths=False)


def _no_key(path: Path, which: str, error: Exception) -> str:
    why = getattr(error, "strerror", None) or str(error).strip().rstrip(".") or type(error).__name__
    return (
        f"{path} is no {which} key to use: {why[:200]}; it must be of an elliptic curve (secp256r1, secp384r1 or "
        f"secp521r1), in PEM{', and not encrypted' if which == 'private' else ''}"
    )


@contextmanager
def _public_part(key: Path) -> Iterator[Path]:
    """The public key that belongs to a private one, in a file."""
    from cryptography.hazmat.primitives import serialization as form

    public = form.load_pem_private_key(read_bounded(key, 1 << 20), None).public_key()
    with tempfile.TemporaryDirectory(prefix="nip-run-") as folder:
        path = Path(folder, "public.pem")
        _write(path, public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
        yield path


def _write(path: Path, data: bytes) -> None:
    with create(path) as file:
        file.write(data)


def _library() -> tuple[Any, Any, Any]:
    """The modules of `model-signing`: to sign, to hash, to verify.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from model_signing import hashing, signing, verifying
    except ImportError as error:
        raise UsageError(f"signatures need the package model-signing ({error}); pip install 'nip-run[sign]'") from error
    return signing, hashing, verifying
