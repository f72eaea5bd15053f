"""Sources of the node's GPUs: NVML, or a file on nodes without a GPU of NVIDIA's.

Knows NVML (a library of the driver: any call may answer any error at any time, or hang) and the
file's format. Each read returns the present state; health.py decides what follows for pods.

Tested in `tests/integration/test_device_plugin.py` and `tests/integration/test_nvml_errors.py`.
"""

import contextlib
import ctypes
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import pynvml  # type: ignore[import-untyped]  # it has no annotations

from gpushare.core.model import ALL_CORES
from gpushare.device_plugin.cards import DetectedGpu, Fault, Problem
from gpushare.device_plugin.options import FILE_FORMAT
from gpushare.errors import SettingsError
from gpushare.logline import Line
from gpushare.wire.inventory import MAX_DEVICES

log = logging.getLogger("gpushare.devices")

SM_WINDOW_SECONDS = 10.0
"""Age of the oldest sample of the SMs that counts."""

_LONGEST_FILE = 1 << 20
"""Bytes of a devices file that are read; a longer one is cut off, and so is no JSON."""

_UNINITIALIZED = (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_NOT_HAD = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
)
"""The answers of a driver or a card without the feature."""

_REFUSED = (*_NOT_HAD, pynvml.NVML_ERROR_NO_PERMISSION)
"""Permanent answers: of cards without dedicated memory, of vGPU guests, of MIG cards.
"""

_NO_MIG_ANSWER = (pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN)

_FABRIC_STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "has not started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "is being set up",
}

_OF_CARD = {
    pynvml.NVML_ERROR_GPU_IS_LOST: Problem(Fault.LOST, "NVML says that it is lost"),
    pynvml.NVML_ERROR_RESET_REQUIRED: Problem(Fault.RECOVERY, "needs a reset, as NVML says"),
}
"""NVML's errors that are about the card, whatever the question."""

_RESERVED_STEP_MIB = 64
"""Reserved memory is rounded up to this step: equal cards have as many units, now and later."""
_RETRY_ROUNDS = 6
"""After this number of waits, cards without a registered event set are tried again."""


class GpuSource(Protocol):
    """A source of GPUs; one thread calls `read`, another `xids`."""

    @property
    def unwatched(self) -> Mapping[str, str]:
        """Why the errors of a card cannot be waited for, by uuid; other cards are left out."""
        ...

    def read(self) -> Sequence[DetectedGpu]:
        """Return all GPUs, those with a problem too. Raises SettingsError."""
        ...

    def xids(self, seconds: float) -> Sequence[tuple[str, int]]:
        """Return (uuid, number) of the errors that the driver reports within these seconds."""
        ...


class _FileGpu(msgspec.Struct, forbid_unknown_fields=True):
    """A GPU in a devices file."""

    uuid: str
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_DEVICES)]
    mib: Annotated[int, msgspec.Meta(gt=0, le=2**31 - 1)] = msgspec.field(name="memoryMiB")
    model: str = ""
    healthy: bool = True


class _DevicesFile(msgspec.Struct):
    """A devices file."""

    devices: list[_FileGpu]


class FileSource:
    """GPUs by a file, which is read again each time; a malformed file changes nothing."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._last: Sequence[DetectedGpu] = ()
        self._last_error = ""
        self.unwatched: Mapping[str, str] = {}
        """No card: a file reports no errors."""

    def read(self) -> Sequence[DetectedGpu]:
        """Return the GPUs in the file. Raises SettingsError if no read has succeeded yet."""
        try:
            self._last = self._parsed()
        except SettingsError as error:
            if not self._last:
                raise
            if str(error) != self._last_error:
                log.warning(Line("devices not read, they stay as they were", error=error))
            self._last_error = str(error)
        else:
            self._last_error = ""
        return self._last

    def xids(self, seconds: float) -> Sequence[tuple[str, int]]:
        """Return no error, after these seconds."""
        time.sleep(seconds)
        return ()

    def _parsed(self) -> Sequence[DetectedGpu]:
        try:
            with self._path.open("rb") as file:
                document = msgspec.json.decode(file.read(_LONGEST_FILE), type=_DevicesFile)
        except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
            raise SettingsError(
                f"devices-file: {self._path} cannot be read: {error}; its form is {FILE_FORMAT}"
            ) from error
        sick = Problem(Fault.FILE, "the devices file says that it is not healthy")
        return [
            DetectedGpu(
                gpu.uuid, gpu.index, gpu.mib, gpu.model, problem=None if gpu.healthy else sick
            )
            for gpu in document.devices
        ]


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a card, in bytes."""

    total: int
    used: int
    """By all processes together."""
    by_process: Mapping[int, int | None]
    """By pid, None if not told."""


class NvmlSource:
    """GPUs by NVML. topology: whether NUMA nodes are told to the kubelet.

    root: the folder with the node's /sys. memory_mib: MiB by model, where NVML does not tell.
    needs_fabric: whether a card counts as unhealthy while the NVLink fabric is not up.
    """

    def __init__(
        self,
        *,
        topology: bool = False,
        root: Path = Path("/"),
        memory_mib: Mapping[str, int] | None = None,
        needs_fabric: bool = True,
    ) -> None:
        """Load the library. Raises SettingsError if there is none, or no driver."""
        self._topology = topology
        self._memory_mib = {model.lower(): mib for model, mib in (memory_mib or {}).items()}
        self._needs_fabric = needs_fabric
        self._mig_modes: dict[str, bool] = {}
        self._instances: dict[int, Sequence[DetectedGpu]] = {}
        """The last MIG instances that could be read, by NVML's number of the GPU."""
        self._set_sizes: dict[str, int] = {}
        """MiB by uuid, of cards with memory by `memory_mib`."""
        self._pci = root / "sys/bus/pci/devices"
        self._life = self._loads = 0
        self._unloaded = False
        self._watch = _DeviceWatch()
        self._initialize()

    @property
    def unwatched(self) -> Mapping[str, str]:
        """Why the errors of a card are not waited for, by uuid."""
        return self._watch.failing

    def read(self) -> Sequence[DetectedGpu]:
        """Return all GPUs, MIG instances in the place of theirs.

        Raises SettingsError if NVML does not tell how many there are.

        NVML is initialized again after NVML_ERROR_UNINITIALIZED: the driver may have been loaded
        anew.
        """
        try:
            try:
                number = pynvml.nvmlDeviceGetCount()
            except pynvml.NVMLError as error:
                if error.value not in _UNINITIALIZED:
                    raise
                self._initialize()
                number = pynvml.nvmlDeviceGetCount()
                log.warning("NVML was not initialized any more, and is again")
        except pynvml.NVMLError as error:
            raise SettingsError(f"NVML does not tell how many GPUs there are: {error}") from error
        gpus = [gpu for index in range(number) for gpu in self._with_instances(index)]
        return [replace(gpu, index=place) for place, gpu in enumerate(gpus)]

    def driver_major(self) -> int:
        """Return the major version of the driver, 0 if unknown."""
        try:
            return int(str(pynvml.nvmlSystemGetDriverVersion()).partition(".")[0])
        except (pynvml.NVMLError, ValueError):
            return 0

    def memory(self, uuid: str) -> CardMemory:
        """Return the used memory of a card, in all and by process. Raises SettingsError.

        A process counts once: a process that also draws, or is a client of MPS, is in several
        lists. Pids are of this process's own namespace; others are not listed. The calls are _v3 by
        name: with an older driver pynvml's newest form fails, and not with an NVMLError.
        """
        total, used = self._set_sizes.get(uuid, 0) << 20, None
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            with _untold(None if total else ()):
                info = pynvml.nvmlDeviceGetMemoryInfo(handle)
                total, used = int(info.total), int(info.used)
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        except pynvml.NVMLError as error:
            raise SettingsError(f"NVML does not tell what uses {uuid}: {error}") from error
        for list_processes in (
            pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        ):
            with contextlib.suppress(pynvml.NVMLError):  # a driver without such a list
                processes = [*processes, *list_processes(handle)]
        by_process: dict[int, int | None] = {}
        for process in processes:
            largest_size = by_process.get(process.pid)
            size = process.usedGpuMemory
            by_process[process.pid] = (
                max(largest_size or 0, size) if size is not None else largest_size
            )
        if used is None:
            used = sum(size or 0 for size in by_process.values())
        return CardMemory(total, used, by_process)

    def sm_percents(self, uuid: str) -> Mapping[int, int] | None:
        """Return the newest sample of each process: percent of the card's SMs by pid.

        Processes without a sample in the last SM_WINDOW_SECONDS are left out. None if NVML has no
        samples of the card, as of MIG instances (nvmlDeviceGetProcessUtilization).
        """
        since = int((time.time() - SM_WINDOW_SECONDS) * 1e6)
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
        except pynvml.NVMLError as error:
            # The binding raises NVML_SUCCESS for an empty list.
            is_idle = error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)
            return {} if is_idle else None
        newest = {
            sample.pid: int(sample.smUtil)
            for sample in sorted(samples, key=lambda sample: int(sample.timeStamp))
            if sample.timeStamp >= since
        }
        return {pid: percent for pid, percent in newest.items() if percent <= ALL_CORES}

    def limit(self, uuid: str, cgroup: Path) -> tuple[int, int]:
        """Return (the limit of a cgroup on a card, the used memory), in bytes.

        2**64 - 1 means no limit. Drivers have this call from R615 on
        (nvmlDeviceGetMemoryLimits_v1). Raises SettingsError.
        """
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
        limits.nameSpace = str(cgroup).encode()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
        except pynvml.NVMLError as error:
            raise SettingsError(f"NVML tells no limit of {cgroup} on {uuid}: {error}") from error
        return int(limits.hardLimit), int(limits.currentUsed)

    def xids(self, seconds: float) -> Sequence[tuple[str, int]]:
        """Return the critical errors that come within these seconds.

        A card without an event set does not disturb the other cards. Raises SettingsError if NVML
        does not tell the number of GPUs.
        """
        watch = self._watch
        if watch.life != self._life:  # handles from before are not valid any more
            watch = self._watch = _DeviceWatch(self._life)
        try:
            if watch.rounds % _RETRY_ROUNDS == 0:
                watch.add(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise SettingsError(f"NVML reports no errors of GPUs: {error}") from error
        watch.rounds += 1
        return watch.wait(seconds, lambda: watch.life == self._life)

    def _initialize(self) -> None:
        """Have the library connect to the driver. Raises SettingsError."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._unloaded |= error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
            raise SettingsError(
                f"NVML cannot be used: {error}; is NVIDIA's driver on this node, and is the"
                " container started with the nvidia runtime? On a node without a GPU give"
                " --devices-file"
            ) from error
        self._life += 1
        self._loads += self._unloaded
        self._unloaded = False

    def _with_instances(self, index: int) -> Sequence[DetectedGpu]:
        """Return a GPU, or its MIG instances; the last known instances if the GPU is unreadable."""
        gpu = self._card(index)
        if gpu.problem is None:
            self._instances.pop(index, None)
        elif gpu.problem.fault is Fault.MIG:
            try:
                self._instances[index] = self._read_instances(index, gpu)
            except pynvml.NVMLError as error:
                text = f"NVML does not tell the MIG instances of {gpu.uuid}: {error}"
                untold = Problem(Fault.UNREADABLE, text)
                gpu = replace(gpu, problem=_OF_CARD.get(error.value, untold))
        instances = self._instances.get(index, ())
        if gpu.problem and gpu.problem.fault is not Fault.MIG:
            instances = [
                replace(instance, uuid=instance.uuid if gpu.uuid else "", problem=gpu.problem)
                for instance in instances
            ]
        return instances or [gpu]

    def _read_instances(self, index: int, gpu: DetectedGpu) -> Sequence[DetectedGpu]:
        """Return the MIG instances of a GPU, with the state of the GPU. Raises NVMLError."""
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        instances = []
        for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            uuid, reserved = "", 0
            try:
                instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except pynvml.NVMLError_NotFound:
                continue
            try:
                uuid = str(pynvml.nvmlDeviceGetUUID(instance))
                model = str(pynvml.nvmlDeviceGetName(instance))
                memory = int(pynvml.nvmlDeviceGetMemoryInfo(instance).total) // 2**20
                with _untold():
                    info = pynvml.nvmlDeviceGetMemoryInfo(instance, version=pynvml.nvmlMemory_v2)
                    reserved = _rounded_mib(info.reserved)
            except pynvml.NVMLError as error:
                text = f"NVML does not tell of MIG instance {number}: {error}"
                problem = _OF_CARD.get(error.value, Problem(Fault.UNREADABLE, text))
                instances.append(DetectedGpu(uuid, index, 0, problem=problem, parent=gpu.uuid))
                continue
            instances.append(
                replace(
                    gpu,
                    uuid=uuid,
                    memory_mib=memory,
                    model=model,
                    problem=None,
                    reserved_mib=reserved,
                    minor=None,
                    parent=gpu.uuid,
                )
            )
        return instances

    def _card(self, index: int) -> DetectedGpu:
        """Return a GPU with NVML's answers.

        The MIG mode is asked first: of a card in that mode NVML may refuse to tell the memory.
        """
        uuid, model, question = "", "", "uuid"
        problem: Problem | None = None
        memory, reserved = 0, 0
        minor, recovery, remaps = None, None, None
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            with _untold():
                model = str(pynvml.nvmlDeviceGetName(handle))
            with _untold():
                minor = int(pynvml.nvmlDeviceGetMinorNumber(handle))
            question = "MIG mode"
            if self._is_in_mig_mode(uuid, handle):
                problem = Problem(Fault.MIG, "is in MIG mode, and has no instance")
                with _untold():
                    memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20
            else:
                question = "memory"
                memory, problem = self._memory_of(handle, uuid, model)
            with _untold():
                info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
                reserved = _rounded_mib(info.reserved)
            question = "state"
            with _untold():
                needs = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
                (field_value,) = pynvml.nvmlDeviceGetFieldValues(handle, needs)
                if field_value.nvmlReturn != pynvml.NVML_SUCCESS:
                    raise pynvml.NVMLError(field_value.nvmlReturn)
                recovery = int(field_value.value.uiVal)
            with _untold():
                remaps = pynvml.nvmlDeviceGetRemappedRows(handle)
            problem = problem or self._fabric_problem(handle)
        except pynvml.NVMLError as error:
            untold = Problem(Fault.UNREADABLE, f"NVML does not tell its {question}: {error}")
            return DetectedGpu(uuid, index, 0, problem=_OF_CARD.get(error.value, untold))
        return DetectedGpu(
            uuid=uuid,
            index=index,
            memory_mib=memory,
            model=model,
            numa=self._numa(handle),
            problem=problem,
            reserved_mib=reserved,
            recovery=recovery,
            remap_pending=bool(remaps[2]) if remaps else None,
            remap_failed=bool(remaps[3]) if remaps else None,
            loads=self._loads,
            minor=minor,
        )

    def _is_in_mig_mode(self, uuid: str, handle: Any) -> bool:  # noqa: ANN401 -- a handle of the library
        """Return whether a card is in MIG mode; a card without that mode is not.

        Where NVML refuses to tell, the last answer counts. Raises NVMLError without one.
        """
        try:
            mode, _ = pynvml.nvmlDeviceGetMigMode(handle)
        except pynvml.NVMLError as error:
            if error.value in _NOT_HAD:
                return False
            if error.value in _NO_MIG_ANSWER and uuid in self._mig_modes:
                return self._mig_modes[uuid]
            raise
        self._mig_modes[uuid] = mode == pynvml.NVML_DEVICE_MIG_ENABLE
        return self._mig_modes[uuid]

    def _memory_of(
        self,
        handle: Any,  # noqa: ANN401 -- a handle of the library
        uuid: str,
        model: str,
    ) -> tuple[int, Problem | None]:
        """Return (MiB of a card, 0 if unknown; the problem of an unknown size). May raise
        NVMLError.
        """
        size = self._memory_mib.get(model.lower(), 0)
        try:
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20
        except pynvml.NVMLError as error:
            if error.value in _OF_CARD or not (size or error.value in _REFUSED):
                raise
            if not size:
                text = f"NVML does not tell its memory: {error}; give it by --memory-mib"
                return 0, Problem(Fault.SIZE, text)
            self._set_sizes[uuid] = size
            return size, None
        if memory:
            return memory, None
        return 0, Problem(Fault.UNREADABLE, "NVML says that it has no memory")

    def _fabric_problem(self, handle: Any) -> Problem | None:  # noqa: ANN401 -- a handle of the library
        """Return the problem of a card with an NVLink fabric that is not up: CUDA fails with error
        802.

        Cards without a fabric, and drivers without these calls, have none. Raises NVMLError.
        """
        if not self._needs_fabric:
            return None
        for call, info in (
            (pynvml.nvmlDeviceGetGpuFabricInfoV, pynvml.c_nvmlGpuFabricInfo_v2_t()),
            (pynvml.nvmlDeviceGetGpuFabricInfo, pynvml.c_nvmlGpuFabricInfo_t()),
        ):
            with _untold():
                call(handle, ctypes.byref(info))
                if info.state in _FABRIC_STATES:
                    return Problem(Fault.FABRIC, f"its NVLink fabric {_FABRIC_STATES[info.state]}")
                # Only of a fabric that is complete the status counts.
                if info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status:
                    error = pynvml.NVMLError(info.status)
                    return Problem(Fault.FABRIC, f"its NVLink fabric has failed: {error}")
                return None
        return None

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


def _rounded_mib(size: int) -> int:
    """Return bytes as MiB, rounded up to whole steps of _RESERVED_STEP_MIB."""
    return -(-int(size) // (_RESERVED_STEP_MIB * 2**20)) * _RESERVED_STEP_MIB


@dataclass(slots=True, eq=False)
class _DeviceWatch:
    """The errors of the cards, one event set for each card: so one failing set leaves the others.

    A real driver answers the wait with GPU_IS_LOST at once while a lost card is in the set.
    """

    life: int = 0
    """The number of NVML's initializations at the beginning."""
    rounds: int = 0
    failing: Mapping[str, str] = field(default_factory=dict)
    """Why the errors of a card are not waited for, by uuid."""
    _sets: dict[str, Any] = field(default_factory=dict)

    def add(self, count: int) -> None:
        """Register the unregistered cards as far as possible."""
        failing = {}
        for index in range(count):
            uuid = f"of index {index}"
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = str(pynvml.nvmlDeviceGetUUID(handle))
                if uuid not in self._sets:
                    self._register(uuid, handle)
            except pynvml.NVMLError as error:
                if error.value not in _NOT_HAD:
                    failing[uuid] = str(error)
        self.failing = failing

    def wait(self, seconds: float, valid: Callable[[], bool]) -> Sequence[tuple[str, int]]:
        """Return the (uuid, number) of errors that come within these seconds.

        valid: returns whether NVML has not been initialized again since.
        """
        errors = []
        if not self._sets:
            time.sleep(seconds)
        part = int(seconds * 1000) // max(1, len(self._sets))
        for uuid, events in list(self._sets.items()):
            if not valid():
                break
            try:
                errors.append((uuid, int(pynvml.nvmlEventSetWait_v2(events, part).eventData)))
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError as error:
                self.failing = {**self.failing, uuid: str(error)}
                del self._sets[uuid]
                if error.value not in _UNINITIALIZED:
                    self._free(events)
        return errors

    def _register(self, uuid: str, handle: Any) -> None:  # noqa: ANN401 -- a handle of the library
        """Wait for the errors of a card from now on. Raises NVMLError."""
        kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        if not pynvml.nvmlEventTypeXidCriticalError & kinds:
            return
        events = pynvml.nvmlEventSetCreate()
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError:
            self._free(events)
            raise
        self._sets[uuid] = events

    def _free(self, events: Any) -> None:  # noqa: ANN401 -- a handle of the library
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(events)


@contextlib.contextmanager
def _untold(only: Collection[int] | None = None) -> Iterator[None]:
    """Go on without an answer after the errors `only` of NVML. Raises NVMLError after others.

    Without `only` any error is accepted except the errors of `_OF_CARD`: old drivers answer missing
    features with different errors.
    """
    try:
        yield
    except pynvml.NVMLError as error:
        of_card = error.value in _OF_CARD
        if of_card if only is None else error.value not in only:
            raise
