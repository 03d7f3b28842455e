"""Signatures of manifests, by `model-signing` and its own command line; the gate runs this where that is installed."""

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


def bundle(version: str = "1") -> Bundle:
    release = Release(kind=Kind.RUN, owner="acme", name="signed", version=version)
    return Bundle.of(release, {"spec.yaml": b"name: signed\n"})


@pytest.fixture
def library() -> None:
    pytest.importorskip("model_signing.signing", reason="model-signing is for the step of the consumers")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(FolderTransport(str(tmp_path / "registry"))) as opened:
        opened.publish([bundle()], "Publish")
        yield opened


def key_pair(folder: Path, name: str = "key", curve: str = CURVES[0]) -> tuple[Path, Path]:
    """A private key and its public one, in PEM."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(getattr(ec, curve)())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def model_signing(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line of the library."""
    return subprocess.run(
        [sys.executable, "-m", "model_signing", *map(str, words)],
        env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip


def only(registry: Registry) -> ReleaseEntry:
    registry._listing.clear()
    (entry,) = registry.entries()
    return entry


def test_what_we_sign_the_command_line_of_the_library_verifies_and_what_it_signs_we_verify(
    library: None, registry: Registry, tmp_path: Path
) -> None:
    private, public = key_pair(tmp_path)
    sign_release(registry, only(registry), private)
    folder = tmp_path / "registry" / only(registry).reference.folder
    ours = ("--signature", folder / "signature" / SIGNATURE_FILE)
    done = model_signing("verify", "key", folder / MANIFEST, *ours, "--public_key", public)
    assert "Verification succeeded" in done.stdout, done.stderr
    theirs = tmp_path / "theirs.sig"
    done = model_signing("sign", "key", folder / MANIFEST, "--signature", theirs, "--private_key", private)
    assert "Signing succeeded" in done.stdout, done.stderr
    check_signature((folder / MANIFEST).read_bytes(), theirs.read_bytes(), public)
    with pytest.raises(ReleaseError, match="does not match this manifest"):
        check_signature(b"{}", theirs.read_bytes(), public)


@pytest.mark.parametrize("curve", CURVES)
def test_a_byte_changed_in_a_manifest_is_found(library: None, tmp_path: Path, curve: str) -> None:
    private, public = key_pair(tmp_path, curve=curve)
    manifest = bundle().manifest
    signature = sign_manifest(manifest, private)
    check_signature(manifest, signature, public)
    for place in range(0, len(manifest), 64):
        changed = manifest[:place] + bytes([manifest[place] ^ 1]) + manifest[place + 1 :]
        with pytest.raises(ReleaseError, match="does not match this manifest"):
            check_signature(changed, signature, public)


def test_a_signature_that_is_no_signature_of_this_manifest_by_this_key_is_refused(
    library: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = key_pair(tmp_path)
    other, _ = key_pair(tmp_path, "other")
    manifest = bundle().manifest
    ours = sign_manifest(manifest, private)
    forged = (
        b"", b"{}", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", ours[:-10], ours[: len(ours) // 2],
        sign_manifest(manifest, other),
        sign_manifest(bundle("2").manifest, private),
        ours.replace(b"in-toto", b"in-toti"),
        ours.replace(b'"sig":"', b'"sig":"AAAA'),
    )  # fmt: skip
    for signature in forged:
        with pytest.raises(ReleaseError, match="the signature does not match this manifest"):
            check_signature(manifest, signature, public)
    older = json.loads(ours)
    del older["verificationMaterial"]["publicKey"]["hint"]
    check_signature(manifest, json.dumps(older).encode(), public)
    assert capsys.readouterr().out == ""  # where the library prints a warning


def test_a_signature_that_was_once_made_of_nothing_does_not_hold_for_everything(library: None, tmp_path: Path) -> None:
    """The library alone takes it: the signature itself says which files are to be passed over."""
    from model_signing import hashing, signing, verifying

    private, public = key_pair(tmp_path)
    manifest = tmp_path / MANIFEST
    manifest.write_bytes(bundle().manifest)
    nothing = hashing.Config().set_ignored_paths(paths=["."])
    signature = tmp_path / "nothing.sig"
    signing.Config().use_elliptic_key_signer(private_key=private).set_hashing_config(nothing).sign(manifest, signature)
    (tmp_path / "elsewhere").mkdir()
    manifest = manifest.rename(tmp_path / "elsewhere" / MANIFEST)
    verifying.Config().use_elliptic_key_verifier(public_key=public).verify(manifest, signature)
    with pytest.raises(ReleaseError, match="does not cover this manifest"):
        check_signature(manifest.read_bytes(), signature.read_bytes(), public)


def test_a_release_is_signed_once_and_by_one_key(library: None, registry: Registry, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path)
    other, other_public = key_pair(tmp_path, "other")
    sign_release(registry, only(registry), private)
    first = registry.read_signature(only(registry))
    sign_release(registry, only(registry), private)
    with pytest.raises(TakenError, match="is already signed with another key"):
        sign_release(registry, only(registry), other)
    assert registry.read_signature(only(registry)) == first
    assert (
        check_release_signature(registry, only(registry), public)
        == f"run/acme/signed@1 is signed with the key of {public}"
    )
    with pytest.raises(ReleaseError, match=r"run/acme/signed@1 in file:.*does not match this manifest and the key"):
        check_release_signature(registry, only(registry), other_public)


def wrong(registry: Registry, public: Path) -> list[str]:
    return [line for line in find_release_problems(registry, only(registry), public) if not isinstance(line, CheckNote)]


@pytest.mark.full
def test_every_64th_byte_flipped_in_a_signature_is_found_and_named(
    library: None, registry: Registry, tmp_path: Path
) -> None:
    private, public = key_pair(tmp_path)
    sign_release(registry, only(registry), private)
    (path,) = (tmp_path / "registry").rglob(SIGNATURE_FILE)
    good = path.read_bytes()
    for at in sorted({*range(0, len(good), 64), len(good) - 1}):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        told = wrong(registry, public)
        assert len(told) == 1, at
        assert f"signature/{SIGNATURE_FILE}: the signature does not match this manifest" in told[0], (at, told)
    path.write_bytes(good)
    assert check_release_signature(registry, only(registry), public) is not None


def test_where_no_key_is_given_a_signature_is_told_and_where_one_is_given_there_must_be_one(registry: Registry) -> None:
    assert check_release_signature(registry, only(registry), None) is None
    with pytest.raises(ReleaseError, match=r"is not signed, but --signer-key requires a signature; ask its publisher"):
        check_release_signature(registry, only(registry), Path("key.pub"))
    registry.add_signature(only(registry), b"{}")
    note = check_release_signature(registry, only(registry), None)
    assert note == "run/acme/signed@1 is signed, but not checked; check it with --signer-key"
    assert note in [line for line in find_release_problems(registry, only(registry)) if isinstance(line, CheckNote)]


def test_a_key_that_cannot_be_used_is_named_with_what_it_must_be(library: None, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    private, public = key_pair(tmp_path)
    manifest = bundle().manifest
    signature = sign_manifest(manifest, private)
    encrypted, other, curve = (tmp_path / name for name in ("encrypted.pem", "rsa.pem", "curve.pem"))
    pem, pkcs8 = form.Encoding.PEM, form.PrivateFormat.PKCS8
    of_curve = ec.generate_private_key(ec.SECP256R1())
    encrypted.write_bytes(of_curve.private_bytes(pem, pkcs8, form.BestAvailableEncryption(b"secret")))
    other.write_bytes(rsa.generate_private_key(65537, 1024).private_bytes(pem, pkcs8, form.NoEncryption()))
    foreign = ec.generate_private_key(ec.SECP256K1())
    curve.write_bytes(foreign.private_bytes(pem, pkcs8, form.NoEncryption()))
    for path in (tmp_path / "none.pem", tmp_path, encrypted, other, curve, public):
        with pytest.raises(UsageError, match=r"is not a usable private key: .*elliptic curve .*not encrypted"):
            sign_manifest(manifest, path)
    for path in (tmp_path / "none.pem", tmp_path, private, other):
        with pytest.raises(UsageError, match=r"is not a usable public key: .*elliptic curve"):
            check_signature(manifest, signature, path)


def test_by_the_commands_it_is_signed_checked_and_not_got_by_another_key(library: None, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path)
    _, other = key_pair(tmp_path, "other")
    prompts = ROOT / "prompts" / "code_validation" / "nip"
    publish = ("--kind", "prompts", "--as", "acme/signed@1", "--to", "registry", "--licence", "MIT", "--force")
    done = nip_run_here("publish", prompts, *publish, "--sign-key", private, "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["releases"][0]["signed"]) == (0, True), done.stderr
    words = ("prompts/acme/signed@1", "--from", "registry", "--signer-key")
    for command in ("verify", "get"):
        refused = nip_run_here(command, *words, other, cwd=tmp_path)
        said = refused.stdout + refused.stderr
        assert (refused.returncode, "does not match this manifest and the key" in said) == (1, True), refused
    assert not (tmp_path / "signed").exists()
    assert nip_run_here("verify", *words, public, cwd=tmp_path).returncode == 0
    taken = nip_run_here("get", *words, public, cwd=tmp_path)
    assert (taken.returncode, "is signed with the key of" in taken.stderr) == (0, True), taken


def test_where_no_signature_can_be_no_key_is_asked_to_have_signed(tmp_path: Path) -> None:
    for what in ("last", "claims-0123456789"):
        done = nip_run_here("verify", what, "--signer-key", "key.pub", cwd=tmp_path)
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
def test_where_a_package_is_missing_the_extra_that_brings_it_is_named(package: str, use: str, extra: str) -> None:
    done = python(f"import sys, pathlib; sys.modules[{package!r}] = None; {use}")
    assert done.returncode == 1
    assert f"pip install '{extra}'" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("runner.base.errors.UsageError: ")
