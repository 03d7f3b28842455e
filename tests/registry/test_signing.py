"""Signatures of manifests. These tests need the package `model-signing`, which only the gate installs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.base.errors import ReleaseError, TakenError, UsageError
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import MANIFEST, Release
from runner.documents.releases.reference import Kind
from runner.registry.check_notes import CheckNote
from runner.registry.signing import check_release_signature, check_signature, sign_manifest, sign_release
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.listing import SIGNATURE_FILE
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.verification.verify import find_release_problems
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import environment, nip_run_here, python

CURVES = ("SECP256R1", "SECP384R1", "SECP521R1")


def build_bundle(version: str = "1") -> Bundle:
    release = Release(kind=Kind.RUN, owner="acme", name="signed", version=version)
    return Bundle.of(release, {"spec.yaml": b"name: signed\n"})


@pytest.fixture
def library() -> None:
    pytest.importorskip("model_signing.signing", reason="model-signing is for the step of the consumers")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(FolderTransport(str(tmp_path / "registry"))) as opened:
        opened.publish([build_bundle()], "Publish")
        yield opened


def write_key_pair(folder: Path, name: str = "key", curve: str = CURVES[0]) -> tuple[Path, Path]:
    """Write a private key and its public key as PEM files."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(getattr(ec, curve)())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def run_model_signing(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line of `model-signing`."""
    return subprocess.run(
        [sys.executable, "-m", "model_signing", *map(str, arguments)],
        env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip


def read_entry(registry: Registry) -> ReleaseEntry:
    registry._listing.clear()
    (entry,) = registry.entries()
    return entry


def test_signatures_are_compatible_with_the_model_signing_command_line(
    library: None, registry: Registry, tmp_path: Path
) -> None:
    private, public = write_key_pair(tmp_path)
    sign_release(registry, read_entry(registry), private)
    folder = tmp_path / "registry" / read_entry(registry).reference.folder
    options = ("--signature", folder / "signature" / SIGNATURE_FILE)
    done = run_model_signing("verify", "key", folder / MANIFEST, *options, "--public_key", public)
    assert "Verification succeeded" in done.stdout, done.stderr
    signature = tmp_path / "theirs.sig"
    done = run_model_signing("sign", "key", folder / MANIFEST, "--signature", signature, "--private_key", private)
    assert "Signing succeeded" in done.stdout, done.stderr
    check_signature((folder / MANIFEST).read_bytes(), signature.read_bytes(), public)
    with pytest.raises(ReleaseError, match="does not match this manifest"):
        check_signature(b"{}", signature.read_bytes(), public)


@pytest.mark.parametrize("curve", CURVES)
def test_changed_manifest_byte_is_detected(library: None, tmp_path: Path, curve: str) -> None:
    private, public = write_key_pair(tmp_path, curve=curve)
    manifest = build_bundle().manifest
    signature = sign_manifest(manifest, private)
    check_signature(manifest, signature, public)
    for offset in range(0, len(manifest), 64):
        changed = manifest[:offset] + bytes([manifest[offset] ^ 1]) + manifest[offset + 1 :]
        with pytest.raises(ReleaseError, match="does not match this manifest"):
            check_signature(changed, signature, public)


def test_signature_of_another_manifest_or_key_is_refused(
    library: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = write_key_pair(tmp_path)
    other_private, _ = write_key_pair(tmp_path, "other")
    manifest = build_bundle().manifest
    valid = sign_manifest(manifest, private)
    invalid = (
        b"", b"{}", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", valid[:-10], valid[: len(valid) // 2],
        sign_manifest(manifest, other_private),
        sign_manifest(build_bundle("2").manifest, private),
        valid.replace(b"in-toto", b"in-toti"),
        valid.replace(b'"sig":"', b'"sig":"AAAA'),
    )  # fmt: skip
    for signature in invalid:
        with pytest.raises(ReleaseError, match="the signature does not match this manifest"):
            check_signature(manifest, signature, public)
    older = json.loads(valid)
    del older["verificationMaterial"]["publicKey"]["hint"]
    check_signature(manifest, json.dumps(older).encode(), public)
    assert capsys.readouterr().out == ""  # the library prints a warning


def test_signature_that_covers_no_file_is_refused(library: None, tmp_path: Path) -> None:
    """The library alone accepts it, because the signature itself lists the files to ignore."""
    from model_signing import hashing, signing, verifying

    private, public = write_key_pair(tmp_path)
    manifest = tmp_path / MANIFEST
    manifest.write_bytes(build_bundle().manifest)
    nothing = hashing.Config().set_ignored_paths(paths=["."])
    signature = tmp_path / "nothing.sig"
    signing.Config().use_elliptic_key_signer(private_key=private).set_hashing_config(nothing).sign(manifest, signature)
    (tmp_path / "elsewhere").mkdir()
    manifest = manifest.rename(tmp_path / "elsewhere" / MANIFEST)
    verifying.Config().use_elliptic_key_verifier(public_key=public).verify(manifest, signature)
    with pytest.raises(ReleaseError, match="does not cover this manifest"):
        check_signature(manifest.read_bytes(), signature.read_bytes(), public)


def test_a_release_is_signed_once_and_by_one_key(library: None, registry: Registry, tmp_path: Path) -> None:
    private, public = write_key_pair(tmp_path)
    other_private, other_public = write_key_pair(tmp_path, "other")
    sign_release(registry, read_entry(registry), private)
    first = registry.read_signature(read_entry(registry))
    sign_release(registry, read_entry(registry), private)
    with pytest.raises(TakenError, match="is already signed with another key"):
        sign_release(registry, read_entry(registry), other_private)
    assert registry.read_signature(read_entry(registry)) == first
    assert (
        check_release_signature(registry, read_entry(registry), public)
        == f"run/acme/signed@1 is signed with the key of {public}"
    )
    with pytest.raises(ReleaseError, match=r"run/acme/signed@1 in file:.*does not match this manifest and the key"):
        check_release_signature(registry, read_entry(registry), other_public)


def find_problems(registry: Registry, public: Path) -> list[str]:
    return [
        line
        for line in find_release_problems(registry, read_entry(registry), public)
        if not isinstance(line, CheckNote)
    ]


@pytest.mark.full
def test_flipped_signature_byte_is_detected_and_named(library: None, registry: Registry, tmp_path: Path) -> None:
    private, public = write_key_pair(tmp_path)
    sign_release(registry, read_entry(registry), private)
    (path,) = (tmp_path / "registry").rglob(SIGNATURE_FILE)
    good = path.read_bytes()
    for offset in sorted({*range(0, len(good), 64), len(good) - 1}):
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        problems = find_problems(registry, public)
        assert len(problems) == 1, offset
        assert f"signature/{SIGNATURE_FILE}: the signature does not match this manifest" in problems[0], (
            offset,
            problems,
        )
    path.write_bytes(good)
    assert check_release_signature(registry, read_entry(registry), public) is not None


def test_signature_is_noted_without_a_key_and_required_with_a_key(registry: Registry) -> None:
    assert check_release_signature(registry, read_entry(registry), None) is None
    with pytest.raises(ReleaseError, match=r"is not signed, but --signer-key requires a signature; ask its publisher"):
        check_release_signature(registry, read_entry(registry), Path("key.pub"))
    registry.add_signature(read_entry(registry), b"{}")
    note = check_release_signature(registry, read_entry(registry), None)
    assert note == "run/acme/signed@1 is signed, but not checked; check it with --signer-key"
    assert note in [
        line for line in find_release_problems(registry, read_entry(registry)) if isinstance(line, CheckNote)
    ]


def test_unusable_key_is_refused_with_the_requirements(library: None, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    private, public = write_key_pair(tmp_path)
    manifest = build_bundle().manifest
    signature = sign_manifest(manifest, private)
    encrypted, rsa_key, curve = (tmp_path / name for name in ("encrypted.pem", "rsa.pem", "curve.pem"))
    pem, pkcs8 = form.Encoding.PEM, form.PrivateFormat.PKCS8
    supported = ec.generate_private_key(ec.SECP256R1())
    encrypted.write_bytes(supported.private_bytes(pem, pkcs8, form.BestAvailableEncryption(b"secret")))
    rsa_key.write_bytes(rsa.generate_private_key(65537, 1024).private_bytes(pem, pkcs8, form.NoEncryption()))
    unsupported = ec.generate_private_key(ec.SECP256K1())
    curve.write_bytes(unsupported.private_bytes(pem, pkcs8, form.NoEncryption()))
    for path in (tmp_path / "none.pem", tmp_path, encrypted, rsa_key, curve, public):
        with pytest.raises(UsageError, match=r"is not a usable private key \(.*elliptic curve .*not encrypted"):
            sign_manifest(manifest, path)
    for path in (tmp_path / "none.pem", tmp_path, private, rsa_key):
        with pytest.raises(UsageError, match=r"is not a usable public key \(.*elliptic curve"):
            check_signature(manifest, signature, path)


def test_commands_sign_and_verify_and_refuse_another_key(library: None, tmp_path: Path) -> None:
    private, public = write_key_pair(tmp_path)
    _, other_public = write_key_pair(tmp_path, "other")
    prompts = ROOT / "prompts" / "code_validation" / "nip"
    publish = ("--kind", "prompts", "--as", "acme/signed@1", "--to", "registry", "--licence", "MIT", "--force")
    done = nip_run_here("publish", prompts, *publish, "--sign-key", private, "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["releases"][0]["signed"]) == (0, True), done.stderr
    arguments = ("prompts/acme/signed@1", "--from", "registry", "--signer-key")
    for command in ("verify", "get"):
        refused = nip_run_here(command, *arguments, other_public, cwd=tmp_path)
        output = refused.stdout + refused.stderr
        assert (refused.returncode, "does not match this manifest and the key" in output) == (1, True), refused
    assert not (tmp_path / "signed").exists()
    assert nip_run_here("verify", *arguments, public, cwd=tmp_path).returncode == 0
    fetched = nip_run_here("get", *arguments, public, cwd=tmp_path)
    assert (fetched.returncode, "is signed with the key of" in fetched.stderr) == (0, True), fetched


def test_signer_key_is_refused_for_what_is_not_a_release(tmp_path: Path) -> None:
    for argument in ("last", "claims-0123456789"):
        done = nip_run_here("verify", argument, "--signer-key", "key.pub", cwd=tmp_path)
        assert (done.returncode, "--signer-key needs a release in a registry" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        (
            "model_signing",
            "from runner.registry.signing import sign_manifest; sign_manifest(b'', pathlib.Path('key'))",
            "nip-run[sign]",
        ),
        (
            "huggingface_hub",
            "from runner.registry.transports.locations import connect; connect('hf:acme/x')",
            "nip-run[hf]",
        ),
    ],
)
def test_missing_package_error_names_the_extra_to_install(package: str, use: str, extra: str) -> None:
    done = python(f"import sys, pathlib; sys.modules[{package!r}] = None; {use}")
    assert done.returncode == 1
    assert f"pip install '{extra}'" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("runner.base.errors.UsageError: ")
