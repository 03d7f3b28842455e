"""Where a server keeps what it holds, and how much it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.documents.releases.limits import Limits

TAKEN = Limits(files=2_000, file_bytes=1 << 30, total_bytes=2 << 30)
"""The most that is taken of one release."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one server is set up; what a command line or a container says."""

    folder: Path
    """Everything that is on a disk: the database by default, blobs by default, uploads, boards, cached files."""
    database: str | None = None
    """A URL of SQLAlchemy, such as `postgresql+psycopg://nip-run@localhost/nip_run`; None: SQLite in the folder."""
    blobs: str | None = None
    """Where blobs are kept, such as `s3://bucket/prefix`; None: in the folder."""
    address: str = "http://127.0.0.1:8080"
    """Where others find it, without a slash at its end: what links and commands say."""
    proxies: tuple[str, ...] = ()
    """The networks of reverse proxies, whose word is taken for who asks: the last of `X-Forwarded-For`."""
    rate: float = 100.0
    """Requests a second that one account, or one address without a token, may make; 0: any number."""
    connections: int = 512
    """At once; who comes then is told to come again."""
    any_name: bool = False
    """It may be asked by any name, and not by that of its address alone."""
    limits: Limits = TAKEN
    releases_at_once: int = 500
    """The most of one publish, seen whole or not at all: a training run comes with its parts and models."""
    files_at_once: int = 20_000
    """The most of one publish."""
    open_uploads: int = 32
    """The most of one account that are sent or checked."""
    open_bytes: int = 16 << 30
    """The most that those have in all."""
    account_bytes: int = 64 << 30
    """The most that one account may have published and have open, each file once; 0: any number."""
    spare_bytes: int = 256 << 20
    """What stays free on the disk once all that is open is sent: an upload that would take of it is refused."""
    pages_bytes: int = 8 << 30
    """The most that pages of runs have on the disk, and once more those of two runs; the oldest are made again."""
    declared_bytes: int = 16 << 20
    """Of a request that declares an upload or a competition."""
    body_seconds: float = 120.0
    """In which such a request must come."""
    piece_wait: float = 60.0
    """Seconds that the next bytes of a piece are waited for; then what came is kept, and the connection ended."""
    piece_seconds: float = 900.0
    """Seconds that one request with a piece may take."""
    upload_seconds: float = 24 * 3600.0
    """After which an upload that nothing was sent for is forgotten."""
    check_seconds: float = 300.0
    """Of wall time that the check of one publish may take, and of processor time."""
    check_bytes: int = 2 << 30
    """Of memory that it may take."""
    checks_at_once: int = 1
    check_tries: int = 3
    """How often a check is begun that the server itself could not bring to an end."""

    def __post_init__(self) -> None:
        # Pages and checks are made in folders of their own, from which a relative name would lead elsewhere.
        object.__setattr__(self, "folder", self.folder.absolute())
        dialect, _, file = (self.database or "").partition(":///")
        if dialect.partition("+")[0] == "sqlite" and file and not file.startswith(("/", ":memory:", "file:")):
            object.__setattr__(self, "database", f"{dialect}:///{Path(file).absolute()}")

    @property
    def connections_of_one(self) -> int:
        """The most of one address, and of requests of it that are open."""
        return max(1, self.connections // 2)

    @property
    def incoming(self) -> Path:
        """Where uploads are, until they are seen or forgotten."""
        return self.folder / "incoming"

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.folder / 'registry.sqlite'}"
