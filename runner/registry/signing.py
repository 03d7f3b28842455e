"""Sign releases and check their signatures with the library `model-signing`, for `publish`, `get` and `verify`.

Only the manifest `release.json` is signed. This covers all files of a release, because the manifest has their hashes.
The key is an elliptic curve key (secp256r1, secp384r1 or secp521r1) in PEM format, as `openssl ecparam -genkey` writes
it. The signature is in `signature/release.json.sig`. The command line of `model-signing` can check it, too:

    model_signing verify key release.json --signature signature/release.json.sig --public_key PUBLIC.pem
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from runner.base.errors import ReleaseError, TakenError, UsageError
from runner.base.storage.safe_files import create, read_bounded
from runner.documents.releases.manifest import MANIFEST, digest
from runner.registry.transports.listing import MAX_SIGNATURE_BYTES, SIGNATURE_FILE, SIGNATURE_FOLDER
from runner.registry.transports.registry import Registry, ReleaseEntry


def sign_release(registry: Registry, entry: ReleaseEntry, key: Path) -> None:
    """Sign a published release, unless this key has signed it already.

    Raises:
        UsageError: the key cannot be used, or `model-signing` is not installed.
        TakenError: the release is signed with another key.
        ReleaseError: the manifest is damaged, or the registry cannot be written.
    """
    _, manifest = registry.read_manifest(entry)
    signature = sign_manifest(manifest, key)
    try:
        registry.add_signature(entry, signature)
    except TakenError as error:
        # The registry has a signature. It differs from the new one even if it was made with the same key, because
        # signatures contain random numbers. So check it with the public key.
        with _extract_public_key(key) as public_key_path:
            try:
                check_signature(manifest, registry.read_signature(entry), public_key_path)
            except ReleaseError:
                raise TakenError(
                    f"{entry.reference} is already signed with another key; use that key, or publish a new version"
                ) from error


def check_release_signature(registry: Registry, entry: ReleaseEntry, signer_key: Path | None) -> str | None:
    """Check the signature of a release, and return a note about it; None if there is neither a signature nor a key.

    `signer_key` is the file with the signer's public key, from `--signer-key`.

    Raises:
        UsageError: the key cannot be used, or `model-signing` is not installed.
        ReleaseError: the release is not signed with that key, or its manifest is damaged.
    """
    if signer_key is None:
        return f"{entry.reference} is signed, but not checked; check it with --signer-key" if entry.signed else None
    if not entry.signed:
        raise ReleaseError(
            f"{entry.reference} in {registry.address} is not signed, but --signer-key requires a signature; ask its "
            "publisher for one, or omit --signer-key"
        )
    _, manifest = registry.read_manifest(entry)
    try:
        check_signature(manifest, registry.read_signature(entry), signer_key)
    except ReleaseError as error:
        raise type(error)(
            f"{entry.reference} in {registry.address}: {SIGNATURE_FOLDER}/{SIGNATURE_FILE}: {error}"
        ) from error
    return f"{entry.reference} is signed with the key of {signer_key}"


def sign_manifest(manifest: bytes, key: Path) -> bytes:
    """Sign a manifest with an unencrypted private key in PEM, and return the signature.

    Raises:
        UsageError: the key cannot be used, or `model-signing` is not installed.
    """
    signing, hashing, _ = _import_model_signing()
    try:
        config = signing.Config().use_elliptic_key_signer(private_key=key)
    except Exception as error:  # the library raises exceptions of many types
        raise UsageError(_describe_bad_key(key, "private", error)) from error
    with tempfile.TemporaryDirectory(prefix="nip-run-") as folder:
        manifest_path, signature_path = Path(folder, MANIFEST), Path(folder, SIGNATURE_FILE)
        _write(manifest_path, manifest)
        config.set_hashing_config(_hashing_config(hashing)).sign(manifest_path, signature_path)
        return read_bounded(signature_path, MAX_SIGNATURE_BYTES)


def check_signature(manifest: bytes, signature: bytes, public_key: Path) -> None:
    """Check that `signature` is a signature of this manifest by the owner of this public key.

    Raises:
        UsageError: the key cannot be used, or `model-signing` is not installed.
        ReleaseError: it is not such a signature.
    """
    _, hashing, verifying = _import_model_signing()
    try:
        config = verifying.Config().use_elliptic_key_verifier(public_key=public_key)
    except Exception as error:
        raise UsageError(_describe_bad_key(public_key, "public", error)) from error
    with tempfile.TemporaryDirectory(prefix="nip-run-") as folder:
        manifest_path, signature_path = Path(folder, MANIFEST), Path(folder, SIGNATURE_FILE)
        _write(manifest_path, manifest)
        _write(signature_path, signature)
        try:
            with redirect_stdout(io.StringIO()):  # the library prints warnings there
                config.set_hashing_config(_hashing_config(hashing)).verify(manifest_path, signature_path)
            signed_hashes = _signed_hashes(signature)
        except Exception as error:
            reason = str(error).strip().rstrip(".") or type(error).__name__
            raise ReleaseError(
                f"the signature does not match this manifest and the key {public_key}: {reason}. Check that this is "
                "the publisher's key; if it is, do not trust the release"
            ) from error
    if signed_hashes != [("sha256", digest(manifest))]:
        raise ReleaseError(
            f"the signature with the key {public_key} does not cover this manifest; do not trust the release"
        )


def _signed_hashes(signature: bytes) -> list[tuple[str, str]]:
    """Return the algorithm and hash of each file that a signature covers.

    `model-signing` does not check that the manifest is covered. It skips the files that the signature lists as ignored,
    so it accepts a signature that covers no file at all.
    """
    envelope = json.loads(signature)["dsseEnvelope"]
    resources = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["resources"]
    return [(resource["algorithm"], resource["digest"]) for resource in resources]


def _hashing_config(hashing: Any) -> Any:
    """Return a hashing configuration that ignores no file."""
    return hashing.Config().set_ignored_paths(paths=[], ignore_git_paths=False)


def _describe_bad_key(path: Path, key_type: str, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error).strip().rstrip(".") or type(error).__name__
    return (
        f"{path} is not a usable {key_type} key ({reason[:200]}); use an elliptic curve key (secp256r1, secp384r1 or "
        f"secp521r1), in PEM{', not encrypted' if key_type == 'private' else ''}"
    )


@contextmanager
def _extract_public_key(key: Path) -> Iterator[Path]:
    """Yield a temporary file with the public key of a private key."""
    from cryptography.hazmat.primitives import serialization

    public_key = serialization.load_pem_private_key(read_bounded(key, 1 << 20), None).public_key()
    with tempfile.TemporaryDirectory(prefix="nip-run-") as folder:
        path = Path(folder, "public.pem")
        _write(
            path, public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        yield path


def _write(path: Path, data: bytes) -> None:
    with create(path) as file:
        file.write(data)


def _import_model_signing() -> tuple[Any, Any, Any]:
    """Return the modules `signing`, `hashing` and `verifying` of `model-signing`.

    Raises:
        UsageError: `model-signing` is not installed.
    """
    try:
        from model_signing import hashing, signing, verifying
    except ImportError as error:
        raise UsageError(f"signatures need the package model-signing ({error}); pip install 'nip-run[sign]'") from error
    return signing, hashing, verifying
