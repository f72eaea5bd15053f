"""A pytest plugin (`-p tests.e2e.versions --versions FILE`): the page of tested versions.

Knows the programs that tests report, and the versions that programs print; no result is written by
hand. The page has a section for each release; a run writes its own section, only if every test ran
and none failed.
"""

import functools
import os
import re
import subprocess
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

from tests.e2e import notes
from tests.e2e.binaries import RELEASE

OF = "versions"
"""The notes that are kept for the page."""
LOCAL = "the local cluster"
_HEAD = """\
# What was run with what

For operators who ask whether gpushare was run with their release of Kubernetes.

Written by `make e2e VERSION=...` and `make e2e-all`, a section for each release, when all of its
tests have passed ([how to run them](local-cluster.md#on-the-real-thing)). The versions are what the
programs say of themselves. A kube-scheduler's file is as `gpushare scheduler-config` prints it for
that release, or as `config/extender` installs it.
"""
_COLUMNS = ("tests", "API server", "kube-scheduler", "its file", "kubectl")


@dataclass(frozen=True, order=True)
class Run:
    """One line of the page; "" where there is none of that kind."""

    suite: str
    server: str
    scheduler: str = ""
    file: str = ""
    kubectl: str = ""


def record(
    server: str, *, scheduler: Path | None = None, file: str = "", kubectl: Path | None = None
) -> None:
    """Record that the running test uses these programs. server: a version, or LOCAL."""
    suite = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    if not suite:
        return
    folder, _, name = suite.rpartition("/")
    run = Run(
        suite=suite if folder == "tests/contract" else folder or name,
        server=server,
        scheduler=version_of(scheduler, "--version") if scheduler else "",
        file=file,
        kubectl=version_of(kubectl, "version", "--client") if kubectl else "",
    )
    notes.note(OF, *astuple(run))


@functools.cache
def version_of(program: Path, *command: str) -> str:
    """The version that the program prints: `1.37.0`."""
    output = subprocess.run([program, *command], capture_output=True, text=True, check=True).stdout
    (result, *_) = re.findall(r"v(\d+\.\d+\.\d+)", output)
    return str(result)


def written(page: str, release: str, runs: set[Run]) -> str:
    """The page with the section of this release made anew; sections go from new to old."""
    sections = dict(re.findall(r"^## Kubernetes ([\d.]+)\n\n(.*?)(?=\n## |\Z)", page, re.M | re.S))
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *(astuple(run) for run in sorted(runs))]
    sections[release] = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    order = sorted(sections, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    parts = (f"\n## Kubernetes {name}\n\n{sections[name].strip()}\n" for name in order)
    return _HEAD + "".join(parts)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--versions", type=Path, help="the page to write what was run with what to")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    page: Path | None = config.getoption("--versions")
    if page is None:
        return
    noted = notes.of_whole_run(OF, exitstatus)
    if noted is None:
        terminalreporter.line(f"{page} stays as it is: not all tests have passed")
        return
    before = page.read_text() if page.exists() else ""
    page.write_text(written(before, RELEASE, {Run(*map(str, cells)) for cells in noted}))
    terminalreporter.line(f"{page} says what Kubernetes {RELEASE} was run with")
