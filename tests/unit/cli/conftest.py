"""A kubectl for tests, and the command with this kubectl."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.cli.inspect import main
from tests.unit.cli.fake_kubectl import FakeKubectl

Inspect = Callable[..., tuple[int, str, str]]


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
