"""Build the wheel and the sdist, check them, and install and test them on every Python that pyproject.toml claims.

    python .ci/tools/release.py [build] [install] [--dist DIR] [--python 3.12 ...] [--tests PATH ...]

`build` builds both files in DIR and checks them, and writes the locked dependencies of the wheel (`--sbom`, CycloneDX).
With `--tag`, it checks that the version may be released. `install` takes the files from DIR. For each claimed Python,
pip installs the wheel in a new environment, and uv in another. Both must play the README's first spec, with random
answers and at a loopback server. Then the tests of the sdist run (`--tests` names others). Without a step, both run.
The script needs only Python and a package index. If a claimed Python is missing, it fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import tarfile
import threading
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.message import Message
from email.parser import Parser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from shared import ROOT, SoftAssertions, temporary_folder

TOOLS = ("build==1.6.1", "check-wheel-contents==0.6.3", "cyclonedx-bom==7.5.0", "twine==7.0.0", "uv==0.13.9")
LOCK = ROOT / ".ci" / "lock.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CLAIMED_PYTHONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
GAME_COUNT = 96
PAIR_COUNT = 7
"""Measurements of start-up time, each next to one of the baseline."""
IMPORT_STATEMENTS = ("import runner", "from runner import load_spec, run")
INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "PYTEST_DEBUG_TEMPROOT",
    "SSL_CERT_FILE",
    "PIP_CERT",
    "PIP_INDEX_URL",
    "UV_INDEX_URL",
)
"""Variables that commands inherit: no keys, and no settings of the calling environment's Python."""
CONSUMER_TESTS = (
    "tests/results/finetune/test_dataset_consumers.py",
    "tests/registry/test_signing.py",
    "tests/api/test_chart_packages.py",
)  # fmt: skip
"""Tests that need the extra `consumers`, as in `.ci/run`."""
CHECKOUT_TEST = "tests/test_what_code_does.py::test_no_file_contains_a_path_of_one_machine"
"""A test of the files in git, which an sdist does not have."""


def call(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Return what a command prints. If it fails, show its output and raise an exception."""
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    process = subprocess.run(
        list(map(str, command)), cwd=cwd, env=inherited | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | variables,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=False,
    )  # fmt: skip
    if process.returncode:
        print(process.stdout[-6000:], flush=True)
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(map(str, command))}")
    return process.stdout


def install_tools(place: Path) -> Path:
    """Create an environment with the tools, and return its folder of programs."""
    venv.create(place, with_pip=True)
    call(place / "bin" / "python", "-m", "pip", "install", "--quiet", *TOOLS)
    return place / "bin"


def find_file(dist: Path, pattern: str) -> Path:
    files = sorted(dist.glob(pattern))
    if len(files) != 1:
        raise SystemExit(f"{dist} has {len(files)} files {pattern} instead of one; build into an empty folder")
    return files[0]


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode("utf-8"))


# Build


def build(check: SoftAssertions, dist: Path, tools: Path, tag: str | None) -> None:
    """Build the sdist, and the wheel from the sdist; check both."""
    call(tools / "python", "-m", "build", "--outdir", dist, ROOT, PIP_BUILD_CONSTRAINT=str(LOCK))
    wheel, sdist = find_file(dist, "*.whl"), find_file(dist, "*.tar.gz")
    for command in (["twine", "check", "--strict", wheel, sdist], ["check-wheel-contents", wheel]):
        output = call(tools / str(command[0]), *command[1:], cwd=ROOT)
        check(True, " ".join(output.split()))
    compare_contents(check, wheel, sdist)
    metadata = read_metadata(wheel)
    page = str(metadata.get_payload())
    relative = re.findall(r"\]\((?![a-z]+:)[^)]*\)", page)
    check(page.startswith("# nip-run") and not relative, f"the index shows the README; broken links: {relative}")
    check_version(check, metadata, tag)


def compare_contents(check: SoftAssertions, wheel: Path, sdist: Path) -> None:
    """Check that the sdist has all files of the repository, and the wheel the same source, but no tests."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(sdist) as tar:
        files = {item.name.partition("/")[2]: tar.extractfile(item) for item in tar if item.isfile()}
        source = {name: file.read() for name, file in files.items() if file}
    tracked = {name for name in call("git", "ls-files", cwd=ROOT).splitlines() if (ROOT / name).is_file()}
    missing = sorted(tracked - set(source) - {"results/.gitkeep"})
    check(not missing, f"the sdist has all {len(tracked)} files of the repository; missing: {missing[:5]}")
    added = sorted(set(source) - tracked - {"PKG-INFO"})
    check(not added, f"the sdist has no other files: {added[:5]}")
    modules = {name: text for name, text in source.items() if name.startswith("runner/")}
    different = sorted(name for name, text in modules.items() if packed.get(name) != text)
    check(not different, f"the wheel has the {len(modules)} files of runner/ with the same bytes; not {different[:5]}")
    outside = sorted(name for name in packed if not re.match(r"runner/|nip_run-[^/]+\.dist-info/", name))
    check(not outside, f"the wheel has {len(packed)} files, all in runner/ or its metadata; not {outside[:5]}")


def check_version(check: SoftAssertions, metadata: Message, tag: str | None) -> None:
    """Check the version against the tag, and the classifier of the development status against the version."""
    version = metadata["Version"]
    stable = re.fullmatch(r"[1-9]\d*\.\d+\.\d+", version) is not None
    status = "5 - Production/Stable" if stable else "4 - Beta"
    claimed = [line for line in metadata.get_all("Classifier", []) if line.startswith("Development Status")]
    check(claimed == [f"Development Status :: {status}"], f"version {version}: the classifiers have {claimed}")
    if tag is not None:
        changelog = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
        check(tag == f"v{version}", f"the tag {tag} is v{version}")
        check(changelog[0] == version, f"CHANGELOG.md begins with {changelog[0]}")


def write_sbom(check: SoftAssertions, sbom: Path, dist: Path, tools: Path, place: Path) -> None:
    """Write the packages of an environment that has the wheel and the locked versions of what it needs."""
    wheel = find_file(dist, "*.whl")
    call(tools / "uv", "venv", "--quiet", "--no-python-downloads", place)
    call(tools / "uv", "pip", "install", "--quiet", "--python", place, "--constraint", LOCK, wheel)
    sbom.parent.mkdir(parents=True, exist_ok=True)
    sbom.unlink(missing_ok=True)
    call(
        tools / "cyclonedx-py",
        "environment",
        place / "bin" / "python",
        "--output-reproducible",
        "--of",
        "JSON",
        "-o",
        sbom,
    )
    listed = {item["name"].lower(): item["version"] for item in json.loads(sbom.read_text("utf-8"))["components"]}
    needed = {re.split(r"[\[>=; ]", line)[0].lower() for line in PROJECT["dependencies"]}
    locked = dict(line.lower().split("==") for line in LOCK.read_text("utf-8").splitlines() if "==" in line)
    missing = sorted(name for name in needed if name not in listed or listed[name] != locked[name])
    check(not missing and "nip-run" in listed, f"{sbom.name} has {len(listed)} packages; missing: {missing}")


# Install


def find_python(version: str) -> Path | None:
    """Return a Python of this version from PATH or from pyenv, or None."""
    candidates = [shutil.which(f"python{version}")]
    if pyenv := shutil.which("pyenv"):
        root = Path(call(pyenv, "root").strip())
        candidates += sorted(map(str, root.glob(f"versions/{version}.*/bin/python")), reverse=True)
    for candidate in filter(None, candidates):
        command = [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.stdout.strip() == version:  # a wrapper of pyenv prints an error for a version that is not active
            return Path(candidate)
    return None


def install(check: SoftAssertions, version: str, dist: Path, uv: Path, here: Path) -> Path:
    """Install and try the wheel on one Python with both installers; return the environment of pip."""
    python = find_python(version)
    if python is None:
        raise RuntimeError("neither PATH nor pyenv has this version, which pyproject.toml claims; install it")
    wheel = find_file(dist, "*.whl")
    packaged = read_metadata(wheel)["Version"]
    place = here / "pip"
    call(python, "-m", "venv", place)
    before = measure_size(place)
    call(place / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    call(place / "bin" / "python", "-m", "pip", "check")
    packages, size = (after - start for after, start in zip(measure_size(place), before, strict=True))
    try_wheel(check, f"Python {version}, pip", place / "bin" / "nip-run", packaged, here)
    print(f"      Python {version}, base install: {size / 1e6:.0f} MB in {packages} packages")
    for statement, ratio in measure_imports(place / "bin" / "python", here).items():
        print(f"      Python {version}, {statement!r}: {ratio:.1f} times the CPU time of `python -c pass`")
    call(uv, "venv", "--quiet", "--python", python, here / "uv")
    call(uv, "pip", "install", "--quiet", "--python", here / "uv", wheel)
    try_wheel(check, f"Python {version}, uv", here / "uv" / "bin" / "nip-run", packaged, here)
    return place


def measure_size(place: Path) -> tuple[int, int]:
    """Return the number of packages in an environment, and their size in bytes, with compiled files."""
    (packages,) = place.glob("lib/python3*/site-packages")
    size = sum(path.lstat().st_size for path in packages.rglob("*") if path.is_file())
    return len(list(packages.glob("*.dist-info"))), size


def measure_imports(python: Path, here: Path) -> Mapping[str, float]:
    """Return the CPU time of each import, start of Python included, as a ratio to that of `python -c pass`."""

    def cpu_seconds(code: str) -> float:
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        call(python, "-c", code, cwd=here)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime

    pairs = [[cpu_seconds(code) for code in ("pass", *IMPORT_STATEMENTS)] for _ in range(PAIR_COUNT + 1)]
    pairs = pairs[1:]  # the first warms up
    ratios = [[seconds / pair[0] for seconds in pair[1:]] for pair in pairs]
    return dict(zip(IMPORT_STATEMENTS, map(statistics.median, zip(*ratios, strict=True)), strict=True))


def try_wheel(check: SoftAssertions, name: str, nip_run: Path, version: str, here: Path) -> None:
    """Play the README's first spec in an empty folder, with random answers and at a loopback server."""
    elsewhere = here / f"{nip_run.parents[1].name}-work"
    elsewhere.mkdir()
    output = call(nip_run, "--version", cwd=elsewhere).strip()
    check(output == f"nip-run {version}", f"{name}: `nip-run --version` prints {output!r}")
    call(nip_run, "specs/quickstart.yaml", cwd=elsewhere)
    with chat_server() as (address, requested_models):
        model = f'{{"provider": "openai", "model": "tiny", "base_url": "{address}"}}'
        call(nip_run, "specs/quickstart.yaml", f"models.offline={model}", "--results", "served", cwd=elsewhere)
    query = "SELECT outcome, count(*) AS games FROM rollouts GROUP BY outcome"
    rows = json.loads(call(nip_run, "sql", query, "--json", "--results", "served", cwd=elsewhere))
    check(
        rows == [{"outcome": "decided", "games": GAME_COUNT}] and len(requested_models) >= 2 * GAME_COUNT,
        f"{name}: the {GAME_COUNT} games of the first spec are decided after {len(requested_models)} requests to a "
        f"server; {rows}",
    )


@contextmanager
def chat_server() -> Iterator[tuple[str, Sequence[str]]]:
    """Run a server that accepts every claim in its second answer. Yield its URL and the requested models."""
    requested_models: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requested_models.append(body["model"])
            has_answers = any(message["role"] == "assistant" for message in body["messages"])
            text = "Decision: accept" if has_answers else "Why is it right?"
            answer = {
                "id": "1", "object": "chat.completion", "created": 1, "model": body["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }  # fmt: skip
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    running = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/v1", requested_models
    finally:
        running.shutdown()
        running.server_close()


def run_tests(check: SoftAssertions, version: str, dist: Path, place: Path, tests: Sequence[str]) -> None:
    """Run tests in the unpacked sdist, with the locked versions of packages."""
    python = place / "bin" / "python"
    with tarfile.open(find_file(dist, "*.tar.gz")) as tar:
        tar.extractall(place / "sdist", filter="data")
    (source,) = (place / "sdist").iterdir()
    call(python, "-m", "pip", "install", "--quiet", "--constraint", LOCK, f"{find_file(dist, '*.whl')}[dev]")
    ignored = [*(f"--ignore={path}" for path in CONSUMER_TESTS), f"--deselect={CHECKOUT_TEST}"]
    summary = call(python, "-m", "pytest", "-q", *ignored, *tests, cwd=source).strip().rpartition("\n")[2]
    check("passed" in summary and "skipped" not in summary, f"Python {version}, tests of the sdist: {summary}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="build | install", help="default: both")
    parser.add_argument("--dist", type=Path, metavar="DIR", help="of the wheel and the sdist; default: a temporary one")
    parser.add_argument("--sbom", type=Path, metavar="FILE")
    parser.add_argument("--tag", help="the tag of the version to release")
    parser.add_argument("--python", nargs="+", default=CLAIMED_PYTHONS, choices=CLAIMED_PYTHONS, metavar="VERSION")
    parser.add_argument("--tests", nargs="*", default=["tests"], metavar="PATH", help="without a PATH: no tests")
    args = parser.parse_args()
    args.steps = args.steps or ["build", "install"]
    if unknown := set(args.steps) - {"build", "install"}:
        parser.error(f"unknown step: {', '.join(unknown)}")
    return args


def main() -> int:
    args = parse_arguments()
    check = SoftAssertions()
    with temporary_folder() as here:
        dist = (args.dist or here / "dist").resolve()
        tools = install_tools(here / "tools")
        if "build" in args.steps:
            build(check, dist, tools, args.tag)
            write_sbom(check, args.sbom or here / "nip-run.cdx.json", dist, tools, here / "locked")
        if "install" in args.steps:
            for version in args.python:
                (here / version).mkdir()
                try:
                    place = install(check, version, dist, tools / "uv", here / version)
                    if args.tests:
                        run_tests(check, version, dist, place, args.tests)
                except RuntimeError as error:
                    check(False, f"Python {version}: {error}")
                shutil.rmtree(here / version)
    return check.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
