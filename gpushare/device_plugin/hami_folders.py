"""The folders on the node for the containers that HAMi-core limits, one for each container.

A container may write anything into its own folder, so a process removes it, however long it takes.
"""

import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpushare.device_plugin.container import hami_core_folder
from gpushare.device_plugin.identity import CheckpointEntry
from gpushare.device_plugin.pods import Pods
from gpushare.errors import RequestRefused
from gpushare.logline import Line

log = logging.getLogger("gpushare.device_plugin")

_MOST_REMOVALS = 64
"""Folders that one process removes."""
_LOOKS = 10
"""Looks in a row that must find the pod unknown: containers of a pod that was deleted by force may
run for a while."""


class ContainerFolders:
    """Makes and removes the folders. hami_core: the folder on the node that has libvgpu.so."""

    def __init__(self, hami_core: str, pods: Pods) -> None:
        self._hami_core = hami_core
        self._pods = pods
        # By folder of an unknown pod, the looks in a row.
        self._unowned: dict[Path, int] = {}
        self._tried: set[Path] = set()
        self._removal: subprocess.Popen[bytes] | None = None
        self._looks_of_removal = 0

    @property
    def removing(self) -> bool:
        """Whether a removal goes on."""
        return self._removal is not None and self._removal.poll() is None

    def make(self, uid: str, container: str) -> None:
        """Make the folder of a container. Raises RequestRefused."""
        folder = Path(hami_core_folder(self._hami_core, uid, container))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)  # any user of a container may write there
        except OSError as error:
            raise RequestRefused(f"hami-core: {folder} cannot be made: {error}") from error

    def look(self, record: Sequence[CheckpointEntry]) -> None:
        """Remove the folders of pods that were unknown to both the watch and the kubelet's record
        at the last _LOOKS looks.
        """
        parent = Path(hami_core_folder(self._hami_core, "", "")).parent
        try:
            # Before the pods are read: a folder is made for a pod that the pods have.
            folders = [folder for folder in parent.iterdir() if "_" in folder.name]
        except OSError:
            return  # no container had one so far
        uids = {pod.ref.uid for pod in self._pods.now()[0].values()}
        uids |= {entry.uid for entry in record}
        self._unowned = {
            path: self._unowned.get(path, 0) + 1
            for path in folders
            if path.name.partition("_")[0] not in uids
        }
        self._tried &= self._unowned.keys()
        candidates = [path for path, looks in self._unowned.items() if looks >= _LOOKS]
        if self.removing:
            self._looks_of_removal += 1
            if self._looks_of_removal % _LOOKS == 0:
                log.warning(Line("a removal of folders goes on", looks=self._looks_of_removal))
            return
        if not candidates:
            return
        self._looks_of_removal = 0
        if self._tried:
            log.warning(Line("folders of pods that are gone stay", number=len(self._tried)))
        # Those that could not be removed come last, so that they keep no others waiting.
        order = sorted(candidates, key=lambda path: (path in self._tried, path))
        removals = order[:_MOST_REMOVALS]
        self._tried.update(removals)
        command = ["rm", "-rf", "--one-file-system", "--", *map(str, removals)]
        try:
            self._removal = subprocess.Popen(  # noqa: S603 -- names of folders, after "--"
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            log.warning(Line("folders of pods that are gone are not removed", error=error))
