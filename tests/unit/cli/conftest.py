"""A kubectl for tests, and the command with this kubectl."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli.documents import dumped
from gpushare.cli.inspect import main
from tests.support.documents import check
from tests.unit.cli.fake_kubectl import FakeKubectl

Inspect = Callable[..., tuple[int, str, str]]


PRINTERS = ("cost_report", "defrag", "explain", "inspect", "own_pods", "whatif")
"""The modules that print documents."""


def checked(document: Mapping[str, Any], form: str) -> str:
    """Return what is printed, and hold the document against its schema."""
    check(document)
    return dumped(document, form)


@pytest.fixture(autouse=True)
def documents_are_as_their_schema_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document that any test has printed."""
    for name in PRINTERS:
        monkeypatch.setattr(import_module(f"gpushare.cli.{name}"), "dumped", checked)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    fake = FakeKubectl(tmp_path / "kubectl")
    monkeypatch.setenv("KUBECTL", str(fake.path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return fake


@pytest.fixture
def inspect(kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]) -> Inspect:
    """Runs the command: (exit code, stdout, stderr)."""

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words)
        except SystemExit as end:
            code = int(str(end.code))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
