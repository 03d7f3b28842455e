"""The settings of a server: where it stores its data, its public address, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.documents.releases.limits import Limits

RELEASE_LIMITS = Limits(files=2_000, file_bytes=1 << 30, total_bytes=2 << 30)
"""Limits on the size of one release."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one server. Options of `nip-run serve` set some of them; the others have their defaults."""

    folder: Path
    """The folder for uploads, boards, cached files and, by default, the database and the blobs."""
    database: str | None = None
    """An SQLAlchemy URL, such as `postgresql+psycopg://nip-run@localhost/nip_run`; None: SQLite in the folder."""
    blobs: str | None = None
    """URL of the blob store, such as `s3://bucket/prefix`; None: in the folder."""
    address: str = "http://127.0.0.1:8080"
    """The server's public URL, without a slash at the end; used in links and commands."""
    proxies: tuple[str, ...] = ()
    """Networks of trusted reverse proxies, which write the client's address last into `X-Forwarded-For`."""
    rate: float = 100.0
    """Maximum requests per second from one account, or from one address without a token; 0: unlimited."""
    connections: int = 512
    """Maximum number of open connections. If there are more, the server closes idle ones or answers with status 503."""
    any_host: bool = False
    """Accept requests with any `Host` header, not only the host of `address`."""
    limits: Limits = RELEASE_LIMITS
    releases_at_once: int = 500
    """Maximum releases in one upload. A training run is uploaded together with its parts and models."""
    files_at_once: int = 20_000
    """Maximum files in one upload."""
    open_uploads: int = 32
    """Maximum uploads of one account that are being sent or checked."""
    open_bytes: int = 16 << 30
    """Maximum total size of one account's open uploads, in bytes."""
    account_bytes: int = 64 << 30
    """Maximum size of the files that one account has published or is uploading, each counted once; 0: unlimited."""
    spare_bytes: int = 256 << 20
    """Disk space that uploads leave free, in bytes, also after all open uploads are complete."""
    pages_bytes: int = 8 << 30
    """Maximum bytes of cached pages of single runs, and separately of cached pages that compare two runs."""
    declared_bytes: int = 16 << 20
    """Maximum size of a request body that declares an upload or a competition."""
    body_seconds: float = 120.0
    """Time limit for receiving the body of any request except a piece of a file."""
    piece_idle_seconds: float = 60.0
    """Maximum time without new bytes of a piece. After that, the server stores what it received and ends the
    request."""
    piece_seconds: float = 900.0
    """Time limit for a request that sends a piece of a file."""
    upload_seconds: float = 24 * 3600.0
    """Seconds without new bytes after which an unfinished upload is deleted."""
    check_seconds: float = 300.0
    """Maximum wall time, and also maximum processor time, of checking one upload."""
    check_bytes: int = 2 << 30
    """Limit on the memory of checking one upload, in bytes."""
    check_tries: int = 3
    """Maximum attempts to check an upload if the server itself fails."""

    def __post_init__(self) -> None:
        # Processes that build pages or check uploads have other working directories, so paths must be absolute.
        object.__setattr__(self, "folder", self.folder.absolute())
        dialect, _, path = (self.database or "").partition(":///")
        if dialect.partition("+")[0] == "sqlite" and path and not path.startswith(("/", ":memory:", "file:")):
            object.__setattr__(self, "database", f"{dialect}:///{Path(path).absolute()}")

    @property
    def connections_per_address(self) -> int:
        """Maximum connections from one address, and maximum open requests from one address."""
        return max(1, self.connections // 2)

    @property
    def incoming(self) -> Path:
        """The folder of uploads until they are published or deleted."""
        return self.folder / "incoming"

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.folder / 'registry.sqlite'}"
