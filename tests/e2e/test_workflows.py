"""actionlint accepts the workflows. `make actionlint` builds it; no control plane is needed."""

import subprocess
from pathlib import Path

from tests.e2e.binaries import tool

ROOT = Path(__file__).parents[2]


def test_actionlint_accepts_the_workflows() -> None:
    workflows = sorted((ROOT / ".github/workflows").glob("*.yaml"))
    assert workflows
    # Without shellcheck and pyflakes, which other machines may have on PATH.
    command: list[str | Path] = [tool("actionlint"), "-shellcheck=", "-pyflakes=", *workflows]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_actionlint_refuses_a_broken_workflow(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    text = (ROOT / ".github/workflows/ci.yaml").read_text(encoding="utf-8")
    broken.write_text(text.replace("runs-on:", "runs-off:"), encoding="utf-8")
    command: list[str | Path] = [tool("actionlint"), "-shellcheck=", "-pyflakes=", broken]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert '"runs-on" section is missing' in done.stdout
