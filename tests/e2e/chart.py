"""The Helm chart as a real helm renders and installs it.

Knows helm's command line; test_chart.py has the checks.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.binaries import tool

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "config" / "helm" / "gpushare"
_TIMEOUT = 120.0


def call(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run helm, which finds nothing of this user's."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [tool("helm"), *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": home},
        )


def template(
    *values: str, version: str = "1.37.0", namespace: str = "kube-system", more: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """Render the chart with these values (NAME=VALUE) for that version of Kubernetes."""
    settings = [part for value in values for part in ("--set", value)]
    path = ("--namespace", namespace, "--kube-version", version)
    return call("template", "gpushare", CHART, *path, *settings, *more)


def rendered(*values: str, version: str = "1.37.0", more: Sequence[str] = ()) -> list[Json]:
    """Return the documents, without tests."""
    finished = template(*values, version=version, more=("--skip-tests", *more))
    assert finished.returncode == 0, finished.stderr
    return [document for document in yaml.safe_load_all(finished.stdout) if document]
