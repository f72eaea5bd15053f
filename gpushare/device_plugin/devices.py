"""Where the GPUs of the node are read from: NVML, or a file on nodes without a GPU of NVIDIA's.

Knows NVML (a library of the driver, which may be absent, or hang) and the file's format. Each read
returns what there is at that moment; what that means for pods is decided elsewhere.

Tested in `tests/integration/test_device_plugin.py`.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pynvml  # type: ignore[import-untyped]  # it has no annotations

from gpushare.device_plugin.cards import DetectedGpu
from gpushare.errors import SettingsError
from gpushare.wire.inventory import MAX_DEVICES

FILE_FORMAT = (
    '{"devices": [{"uuid": "GPU-...", "index": 0, "memoryMiB": 16384, "model": "...",'
    ' "healthy": true}]}'
)
"""What a devices file holds; `model` and `healthy` may be left out."""

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that a program causes and that leave the card well, by NVIDIA's list of them."""

_MOST_MIB = 2**31 - 1
_LONGEST_FILE = 1 << 20
"""Characters of a devices file that are read; a longer one is cut off, and so is no JSON."""
_KEYS = {"uuid", "index", "memoryMiB", "model", "healthy"}


class Source(Protocol):
    """A source of GPUs; one thread calls `read`, another `xids`."""

    def read(self) -> Sequence[DetectedGpu]:
        """Return all GPUs, those with a problem too. Raises SettingsError."""
        ...

    def xids(self, seconds: float) -> Iterator[tuple[str, int]]:
        """Return (uuid, number) of the errors that the driver reports within these seconds."""
        ...


class FileSource:
    """GPUs by a file, which is read again each time."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self) -> Sequence[DetectedGpu]:
        """Return what the file says. Raises SettingsError."""
        try:
            with self._path.open(encoding="utf-8") as file:
                document: Any = json.loads(file.read(_LONGEST_FILE))
        except (OSError, ValueError, RecursionError) as error:
            raise SettingsError(f"devices-file: {self._path} cannot be read: {error}") from error
        if not isinstance(document, dict) or not isinstance(document.get("devices"), list):
            raise SettingsError(f"devices-file: {self._path} is not of the form {FILE_FORMAT}")
        return [
            self._device(item, f"devices-file: {self._path}: devices[{number}]")
            for number, item in enumerate(document["devices"])
        ]

    def xids(self, seconds: float) -> Iterator[tuple[str, int]]:
        """Return no error, after these seconds."""
        time.sleep(seconds)
        return iter(())

    def _device(self, item: Any, where: str) -> DetectedGpu:  # noqa: ANN401 -- parsed JSON
        if not isinstance(item, dict) or not item.keys() <= _KEYS:
            raise SettingsError(f"{where} must be an object with {', '.join(sorted(_KEYS))}")
        uuid, model = item.get("uuid"), item.get("model", "")
        index, memory = item.get("index"), item.get("memoryMiB")
        healthy = item.get("healthy", True)
        if not isinstance(uuid, str) or not isinstance(model, str):
            raise SettingsError(f"{where}: uuid and model must be text")
        if type(index) is not int or not 0 <= index < MAX_DEVICES:
            raise SettingsError(f"{where}.index must be a whole number from 0 to {MAX_DEVICES - 1}")
        if type(memory) is not int or not 0 < memory <= _MOST_MIB:
            raise SettingsError(f"{where}.memoryMiB must be a whole number from 1 to {_MOST_MIB}")
        if type(healthy) is not bool:
            raise SettingsError(f"{where}.healthy must be true or false")
        problem = "" if healthy else "the devices file says that it is not healthy"
        return DetectedGpu(uuid, index, memory, model, problem=problem)


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a card, in bytes. used: of all of it; by_process: by pid, None if not told."""

    total: int
    used: int
    by_process: Mapping[int, int | None]


class NvmlSource:
    """GPUs by NVML. topology: whether NUMA nodes are told to the kubelet.

    root: where the node's /sys is.
    """

    def __init__(self, *, topology: bool = False, root: Path = Path("/")) -> None:
        """Load the library. Raises SettingsError if there is none, or no driver."""
        self._topology = topology
        self._pci = root / "sys/bus/pci/devices"
        self._events: Any = None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise SettingsError(
                f"NVML cannot be used: {error}; is NVIDIA's driver on this node, and is the"
                " container started with the nvidia runtime? On a node without a GPU give"
                " --devices-file"
            ) from error

    def read(self) -> Sequence[DetectedGpu]:
        """Return all GPUs. Raises SettingsError if NVML does not tell how many there are."""
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise SettingsError(f"NVML does not tell how many GPUs there are: {error}") from error
        return [self._card(index) for index in range(count)]

    def driver_major(self) -> int:
        """Return the first number of the driver's version, 0 if it cannot be told."""
        try:
            return int(str(pynvml.nvmlSystemGetDriverVersion()).partition(".")[0])
        except (pynvml.NVMLError, ValueError):
            return 0

    def memory(self, uuid: str) -> CardMemory:
        """Return what is used of a card, and by which processes. Raises SettingsError.

        A process counts once: it is in more than one list if it also draws, or is a client of
        MPS. Pids are of this process's own namespace; others are not listed. The calls are _v3 by
        name: with an older driver pynvml's newest form fails, and not with an NVMLError.
        """
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            info = pynvml.nvmlDeviceGetMemoryInfo(handle)
            listed = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        except pynvml.NVMLError as error:
            raise SettingsError(f"NVML does not tell what uses {uuid}: {error}") from error
        for more in (
            pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        ):
            with contextlib.suppress(pynvml.NVMLError):  # a driver without such a list
                listed = [*listed, *more(handle)]
        by_process: dict[int, int | None] = {}
        for each in listed:
            most = by_process.get(each.pid)
            told = each.usedGpuMemory
            by_process[each.pid] = max(most or 0, told) if told is not None else most
        return CardMemory(int(info.total), int(info.used), by_process)

    def limit(self, uuid: str, cgroup: Path) -> tuple[int, int]:
        """Return (the limit of a cgroup on a card, what it uses), in bytes.

        Without a limit it is 2**64 - 1. Drivers have this from R615 on
        (nvmlDeviceGetMemoryLimits_v1). Raises SettingsError.
        """
        asked = pynvml.c_nvmlGetMemoryLimits_v1_t()
        asked.nameSpace = str(cgroup).encode()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, asked)
        except pynvml.NVMLError as error:
            raise SettingsError(f"NVML tells no limit of {cgroup} on {uuid}: {error}") from error
        return int(asked.hardLimit), int(asked.currentUsed)

    def xids(self, seconds: float) -> Iterator[tuple[str, int]]:
        """Return the critical errors that come within these seconds. Raises SettingsError."""
        try:
            if self._events is None:
                self._events = self._subscribed()
            data = pynvml.nvmlEventSetWait_v2(self._events, int(seconds * 1000))
            yield str(pynvml.nvmlDeviceGetUUID(data.device)), int(data.eventData)
        except pynvml.NVMLError_Timeout:
            return
        except pynvml.NVMLError as error:
            raise SettingsError(f"NVML reports no errors of GPUs: {error}") from error

    def _subscribed(self) -> Any:  # noqa: ANN401 -- a handle of the library
        events = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            wanted = pynvml.nvmlEventTypeXidCriticalError & kinds
            if wanted:
                pynvml.nvmlDeviceRegisterEvents(handle, wanted, events)
        return events

    def _card(self, index: int) -> DetectedGpu:
        """Return a GPU; without a uuid from NVML it gets a name by its index."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            return DetectedGpu(
                f"lost-{index}", index, 0, problem=f"NVML does not tell its uuid: {error}"
            )
        try:
            model = str(pynvml.nvmlDeviceGetName(handle))
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20
            problem = "is in MIG mode, which is not shared by memory" if _mig(handle) else ""
            return DetectedGpu(uuid, index, memory, model, self._numa(handle), problem)
        except pynvml.NVMLError as error:
            return DetectedGpu(uuid, index, 0, problem=f"NVML does not tell its memory: {error}")

    def _numa(self, handle: Any) -> int | None:  # noqa: ANN401 -- a handle of the library
        """Return the NUMA node that the card's slot is at.

        NVML's own number (nvmlDeviceGetNumaNodeId) is of cards that are NUMA nodes themselves.
        """
        if not self._topology:
            return None
        try:
            slot = str(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()
            # NVML writes the domain with eight digits, Linux with four.
            node = int((self._pci / slot[-12:] / "numa_node").read_text(encoding="ascii"))
        except (pynvml.NVMLError, OSError, ValueError):
            return None
        return node if node >= 0 else None


def _mig(handle: Any) -> bool:  # noqa: ANN401 -- a handle of the library
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # a card that has no such mode
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
