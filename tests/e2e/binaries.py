"""Finds the programs of Kubernetes, in KUBEBUILDER_ASSETS or the cache of `make controlplane`, and
other tools.

Knows folders and names only; starts and builds nothing.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NEWEST = "1.37.0"
"""The release that our own cluster is like."""
RELEASE = os.environ.get("KUBERNETES_VERSION", NEWEST)
"""The release that is tested with."""
OLDEST = "1.30.14"
"""The oldest release that is supported."""
OLD_SCHEDULER = "1.22.17"
"""The last kube-scheduler that reads a Policy file; later ones only read configurations."""

_BUILD = Path(__file__).parent / "controlplane" / "build.sh"
_BUILD_TOOL = Path(__file__).parent / "tools" / "build.sh"


def program(name: str, version: str = RELEASE) -> Path | None:
    """The program of that version, or None.

    KUBEBUILDER_ASSETS is the folder of etcd, kube-apiserver and kubectl by envtest's convention.
    The folder often lacks a kube-scheduler, so each program is searched separately. Programs in it
    count as that release, since the files have no version.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [Path(assets)] if assets and version == RELEASE else []
    command = [str(_BUILD), "--built", version]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for folder in (*folders, Path(built.strip())):
        if os.access(folder / name, os.X_OK):
            return folder / name
    return None


def needed(name: str, version: str = RELEASE) -> Path:
    """The program; skips the test where there is none, and says how to get it."""
    result = program(name, version)
    if result is None:
        pytest.skip(
            f"no {name} {version}: `make controlplane VERSION={version}` builds it with Go, or"
            " KUBEBUILDER_ASSETS names a folder that has it"
        )
    return result


def tool(name: str) -> Path:
    """A tool such as helm: on PATH, else as `make NAME` builds it; skips the test where none is."""
    result = shutil.which(name)
    if result:
        return Path(result)
    command = [str(_BUILD_TOOL), name, "--built"]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.access(f"{built}/{name}", os.X_OK):
        pytest.skip(f"no {name}: `make {name}` builds it with Go")
    return Path(built) / name
