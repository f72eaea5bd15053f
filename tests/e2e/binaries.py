"""Finds Kubernetes' own programs: by KUBEBUILDER_ASSETS, else where `make controlplane` keeps them;
and tools of others.

Knows folders and names only; starts nothing and never builds.
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
    """The program of that version, or None where there is none.

    KUBEBUILDER_ASSETS is the folder of etcd, kube-apiserver and kubectl by envtest's convention; it
    often has no kube-scheduler, so each program is looked for by itself. A program in it counts as
    that release: the files do not say.
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
    """The program; skips the test where there is none, and says how to get the program."""
    program_result = program(name, version)
    if program_result is None:
        pytest.skip(
            f"no {name} {version}: `make controlplane VERSION={version}` builds it with Go, or"
            " KUBEBUILDER_ASSETS names a folder that has it"
        )
    return program_result


def tool(name: str) -> Path:
    """A tool such as helm: on PATH, else as `make NAME` builds it; skips the test where none is."""
    which_result = shutil.which(name)
    if which_result:
        return Path(which_result)
    command = [str(_BUILD_TOOL), name, "--built"]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.access(f"{built}/{name}", os.X_OK):
        pytest.skip(f"no {name}: `make {name}` builds it with Go")
    return Path(built) / name
