"""Which container a process is in, and where the cgroup of a container is.

Knows the node's /proc and /sys/fs/cgroup, and how kubelets and runtimes name cgroups: with systemd
kubepods.slice/kubepods-podUID.slice/cri-containerd-ID.scope, with cgroupfs kubepods/podUID/ID. A
container may make cgroups of its own below these, but not beside them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

_CONTAINER = re.compile(
    r"[/-]pod[0-9a-f][-_0-9a-f]{31,35}(?:\.slice)?/(?:[^/\s]*-)?([0-9a-f]{64})(?:\.scope)?(?:/|\s|$)"
)
_LONGEST = 1 << 16
_MOST_FOLDERS = 10_000


def container_of(path: str) -> str:
    """Return the id of the container in the path of a cgroup, or in the text of /proc/PID/cgroup.

    "" if there is none. The first one counts: a container may run others in cgroups below its own.
    """
    match = _CONTAINER.search(path)
    return match[1] if match else ""


class Cgroups:
    """The cgroups of the node. root: where its /proc and /sys are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._cgroup = root / "sys/fs/cgroup"

    def container(self, pid: int) -> str:
        """Return the id of the container of a process; "" if it is in none, or has ended."""
        try:
            with (self._proc / str(pid) / "cgroup").open("rb") as file:
                return container_of(file.read(_LONGEST).decode("ascii", "replace"))
        except OSError:
            return ""

    def folders(self) -> Mapping[str, Path]:
        """Return the cgroups of containers that can be seen, by the container's id."""
        folders: dict[str, Path] = {}
        todo = [self._cgroup]
        for _ in range(_MOST_FOLDERS):
            if not todo:
                break
            folder = todo.pop()
            for inner in _folders(folder):
                path = f"/{inner.relative_to(self._cgroup)}"
                container = container_of(path)
                if container:
                    folders[container] = inner
                elif "kubepods" in path or path.startswith("/kubelet"):
                    todo.append(inner)
        return folders


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it has ended meanwhile
        return []
