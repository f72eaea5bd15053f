"""Any call of NVML may answer any of its errors at any time, for one GPU or for all, and come back.

The real binding asks a library in place of the driver's (stand_in_nvml.c). The node has two GPUs
that are well, and one for each way of not being well.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]  # it has no annotations
import pytest

from gpushare.device_plugin.cards import Fault, Problem
from gpushare.device_plugin.devices import NvmlSource
from gpushare.device_plugin.health import DEAD_SECONDS, POLL_SECONDS, SILENCE_SECONDS, Health
from gpushare.errors import SettingsError

SOURCE = Path(__file__).parents[1] / "unit" / "device_plugin" / "stand_in_nvml.c"
COMPILER = shutil.which("cc")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler for the stand-in of NVML")

FUNCTIONS: dict[str, object] = vars(pynvml)["_nvmlGetFunctionPointer_cache"]
"""Those of the library that were called, by name."""

ERRORS = sorted(
    value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and value
)
TIMEOUT, LOST, RESET_REQUIRED, UNKNOWN = 10, 15, 16, 999
NOT_SUPPORTED, NO_PERMISSION = 3, 4
NOT_HAD = {NOT_SUPPORTED, 13, 25, 26}
"""Not supported, function not found, version mismatch, deprecated: the driver has no such thing."""
TOLD_APART = sorted({1, NO_PERMISSION, 9, TIMEOUT, LOST, RESET_REQUIRED, UNKNOWN, *NOT_HAD})
"""Errors that mean something to the plug-in; 1 and 9: uninitialized, driver not loaded. All others
behave alike, so one case for all GPUs at once is enough.
"""

OF_NODE = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlEventSetCreate", "nvmlEventSetFree")
ESSENTIAL = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo",
)
MIG_MODE = "nvmlDeviceGetMigMode"
RESERVED = "nvmlDeviceGetMemoryInfo_v2"
FABRIC = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo")
OF_STATE = ("nvmlDeviceGetFieldValues", "field", "nvmlDeviceGetRemappedRows")
WHERE_TOLD = ("nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", RESERVED, *FABRIC, *OF_STATE)
OF_WATCH = (
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlEventSetCreate",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetWait_v2",
)
OF_INSTANCES = ("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex")
HARMLESS = ("nvmlDeviceGetPciInfo_v3", "nvmlEventSetFree", *OF_INSTANCES)
CALLS = sorted({*OF_NODE, *ESSENTIAL, MIG_MODE, *WHERE_TOLD, *OF_WATCH, *HARMLESS})

WELL = ["GPU-a", "GPU-b"]
NEEDY, MIG, REMAP, FALLEN = "GPU-needs-reset", "GPU-mig", "GPU-remap-failed", "GPU-fell-off"
BAD = [NEEDY, MIG, REMAP, FALLEN]
NODE = [
    *(f"{uuid} 16384 {int(uuid == MIG)} 0" for uuid in (*WELL, *BAD)),
    *(f"reserved {uuid} 400" for uuid in (*WELL, *BAD)),
    *(f"recovery {uuid} {int(uuid == NEEDY)}" for uuid in (*WELL, *BAD)),
    *(f"remaps {uuid} 0 {int(uuid == REMAP)}" for uuid in (*WELL, *BAD)),
]
TARGETS = {"one": ["GPU-a"], "bad": BAD, "all": ["*"]}
RETRIES = 8
"""So many waits suffice to have the errors of all GPUs again."""


class NvmlDriver:
    """The stand-in, and the plug-in's view of the cards; `now` is the view's clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.numbers = count()
        self.says()

    def says(self, *lines: str, node: list[str] = NODE) -> None:
        # Thousands of times: a new file is written faster than one takes another one's place.
        file = self.folder / f"nvml-{next(self.numbers)}"
        file.write_text("".join(f"{line}\n" for line in [*node, *lines]))
        os.environ["STAND_IN_NVML"] = str(file)

    def start(self) -> None:
        self.source = NvmlSource(topology=True)
        self.health = Health(self.source, "GiB", None, recover=300, clock=lambda: self.now)

    def look(self, times: int = 1) -> None:
        """Do the work of the plug-in's threads, so many times."""
        for _ in range(times):
            self.now += POLL_SECONDS
            self.health.check_silence()
            self.health.refresh()
            self.health.watch(0.0)

    def new_xid(self, uuid: str, number: int) -> str:
        """A line that no wait has reported yet."""
        return f"xid {uuid} {number} {next(self.numbers)}-{id(self)}"

    def healthy(self) -> set[str]:
        return {card.uuid for card in self.health.cards().all if card.healthy}

    def fault(self, uuid: str) -> Fault | None:
        card = self.health.cards().by_uuid(uuid)
        assert card is not None
        return card.problem.fault if card.problem else None


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    target = tmp_path_factory.mktemp("nvml") / "stand-in.so"
    command = [str(COMPILER), "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    before = pynvml.nvmlLib
    pynvml.nvmlLib = ctypes.CDLL(str(target))
    FUNCTIONS.clear()
    yield pynvml.nvmlLib
    pynvml.nvmlLib = before
    FUNCTIONS.clear()


@pytest.fixture
def driver(library: ctypes.CDLL, tmp_path: Path) -> Iterator[NvmlDriver]:
    driver = NvmlDriver(tmp_path)
    yield driver
    driver.says()
    library.nvmlShutdown()
    del os.environ["STAND_IN_NVML"]
    shutil.rmtree(tmp_path)


def test_no_call_is_left_out(driver: NvmlDriver) -> None:
    driver.start()
    driver.look(2)
    driver.says(*(f"answer nvmlEventSetWait_v2 {UNKNOWN} {uuid}" for uuid in WELL))
    driver.look()
    request = set(FUNCTIONS)
    assert request | {"field"} == set(CALLS)
    assert len(ERRORS) > 25


@dataclass(frozen=True)
class NvmlCase:
    """An error that a call answers, the GPUs, and since when."""

    call: str
    error: int
    named: Sequence[str]
    at_start: bool

    def hits(self, uuid: str) -> bool:
        return uuid in self.named or "*" in self.named

    @property
    def lines(self) -> list[str]:
        return [f"answer {self.call} {self.error} {uuid}" for uuid in self.named]

    @property
    def closes(self) -> bool:
        """Whether healthy GPUs count as unhealthy while the error lasts."""
        if self.call == MIG_MODE:
            # A refusal later changes nothing: the last answer counts.
            later = () if self.at_start else (NO_PERMISSION, UNKNOWN)
            return self.error not in {*NOT_HAD, *later}
        if self.call in WHERE_TOLD:
            return self.error in (LOST, RESET_REQUIRED)
        return self.call in ESSENTIAL

    def hides(self, uuid: str) -> bool:
        """Whether no successful read shows the fault of this GPU."""
        if not self.hits(uuid):
            return False
        if uuid == MIG:  # the call answers that there is no such mode
            return self.call == MIG_MODE and self.error in NOT_HAD
        if uuid == FALLEN:
            return self.at_start and self.call in OF_WATCH
        return self.at_start and self.call in OF_STATE and not self.closes

    @property
    def unwatches(self) -> bool:
        """Whether errors of the GPUs cannot be seen, though the driver has errors."""
        request = self.call == "nvmlEventSetWait_v2" or (self.at_start and self.call in OF_WATCH)
        return request and self.error not in {*NOT_HAD, TIMEOUT}

    def units(self, uuid: str) -> int:
        """The units of a GPU that are given out in the end."""
        bare = self.call == RESERVED and self.error not in (LOST, RESET_REQUIRED)
        return 16 if self.at_start and bare and self.hits(uuid) else 15


@pytest.mark.parametrize("at_start", [True, False], ids=["at the start", "later"])
@pytest.mark.parametrize(
    ("call", "target"),
    [(call, name) for call in CALLS for name in TARGETS if name == "all" or call not in OF_NODE],
)
def test_an_error_closes_what_it_is_about_as_long_as_it_lasts(
    driver: NvmlDriver, call: str, target: str, at_start: bool
) -> None:
    for error in ERRORS if target == "all" else TOLD_APART:
        driver.says()
        case = NvmlCase(call, error, TARGETS[target], at_start)
        fell_off = driver.new_xid(FALLEN, 79)
        if begun(driver, case, fell_off):
            driver.says(*case.lines, fell_off)
            driver.look(3)
            check_during(driver, case)
            driver.says(fell_off)
            driver.look(RETRIES)
            check_after(driver, case)
        driver.says()
        pynvml.nvmlLib.nvmlShutdown()


def begun(driver: NvmlDriver, case: NvmlCase, fell_off: str) -> bool:
    """Start; return whether that works. If not, the process ends with one line, and starts anew."""
    driver.says(*(case.lines if case.at_start else ()), fell_off)
    try:
        driver.start()
    except SettingsError:
        assert case.at_start, case
        assert case.call in ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2"), case
        return False
    if not case.at_start:
        driver.look()
        assert driver.healthy() == set(WELL), case
    return True


def check_during(driver: NvmlDriver, case: NvmlCase) -> None:
    healthy, health = driver.healthy(), driver.health
    assert healthy.intersection(WELL) == {
        uuid for uuid in WELL if not (case.closes and case.hits(uuid))
    }, case
    assert not {uuid for uuid in healthy.intersection(BAD) if not case.hides(uuid)}, case
    assert all(card.unit_count for card in health.cards().all if card.healthy), case
    assert health.live() == "", case
    unseen = healthy.intersection(health.unwatched())
    # A card whose errors could never be waited for does not make the plug-in unready.
    unready = bool(unseen) and not case.at_start
    assert bool(health.ready()) == unready, (case, health.ready())
    if case.unwatches:
        assert unseen == set(filter(case.hits, healthy)), case


def check_after(driver: NvmlDriver, case: NvmlCase) -> None:
    healthy, health = driver.healthy(), driver.health
    # A card that was lost, or said that it needed a reset, and is back, has had a reset.
    reset = case.error in (LOST, RESET_REQUIRED) and case.hits(FALLEN)
    assert set(WELL) <= healthy <= {*WELL, *([FALLEN] if reset else ())}, case
    cards = health.cards()
    assert [card.unit_count for card in cards.all] == [
        case.units(uuid) for uuid in (*WELL, *BAD)
    ], case
    assert (health.live(), health.ready(), health.unwatched()) == ("", "", {}), case
    assert cards.uncounted == (), case
    for uuid in WELL:
        driver.says(driver.new_xid(uuid, 48))
        driver.look()
        assert driver.fault(uuid) is Fault.XID, case


# -- faults of drivers ----------------------------------------------------------------------------


@pytest.mark.parametrize("away", [10.0, 2 * DEAD_SECONDS])
def test_a_driver_that_was_loaded_anew_is_used_again(driver: NvmlDriver, away: float) -> None:
    driver.says(driver.new_xid(FALLEN, 79))
    driver.start()
    driver.look(2)
    assert driver.fault(FALLEN) is Fault.XID
    driver.says("loads 0")
    driver.now += away
    driver.look(2)
    assert bool(driver.health.live()) == (away > DEAD_SECONDS)
    assert bool(driver.healthy()) == (away < SILENCE_SECONDS)
    driver.says("loads 2")
    driver.look(2)
    assert driver.healthy() == {*WELL, FALLEN}  # whatever the fault was, the card was reset
    assert (driver.health.live(), driver.health.ready()) == ("", "")
    driver.says("loads 2", driver.new_xid("GPU-b", 48))
    driver.look()
    assert driver.fault("GPU-b") is Fault.XID


@pytest.mark.parametrize("error", [4, 17, UNKNOWN])
def test_where_no_gpu_can_be_read_for_minutes_the_process_is_to_be_started_anew(
    driver: NvmlDriver, error: int
) -> None:
    """The device files are gone: after a reload of systemd the container's cgroup has none."""
    driver.start()
    driver.says(f"answer nvmlDeviceGetHandleByIndex_v2 {error} *")
    driver.look(int(DEAD_SECONDS / POLL_SECONDS))
    assert driver.healthy() == set()
    assert driver.health.live() == ""
    driver.look()
    assert "NVML does not tell its uuid: " in driver.health.live()


def test_a_lost_gpu_keeps_no_other_ones_errors_from_being_seen(driver: NvmlDriver) -> None:
    driver.start()
    driver.look()
    lost = [line.removesuffix("0") + "15" if "GPU-a 16384" in line else line for line in NODE]
    driver.says(node=lost)
    driver.look(3)
    assert driver.fault("GPU-a") is Fault.LOST
    assert driver.health.ready() == ""
    fatal = driver.new_xid("GPU-b", 48)
    driver.says(fatal, node=lost)
    driver.look()
    assert driver.fault("GPU-b") is Fault.XID
    driver.says(fatal)
    driver.look(RETRIES)
    assert driver.fault("GPU-a") is None
    driver.says(fatal, driver.new_xid("GPU-a", 94))
    driver.look()
    assert driver.fault("GPU-a") is Fault.XID


def test_what_is_kept_of_the_memory_is_read(driver: NvmlDriver) -> None:
    driver.says(node=["GPU-t4 15360 -1 0", "reserved GPU-t4 450"])
    driver.start()
    assert [card.unit_count for card in driver.health.cards().all] == [14]


def test_equal_cards_that_keep_a_little_more_or_less_have_as_many_units(driver: NvmlDriver) -> None:
    kept_items = [f"reserved GPU-{index} {450 + 4 * index}" for index in range(4)]
    driver.says(node=[*(f"GPU-{index} 15360 -1 0" for index in range(4)), *kept_items])
    driver.source = NvmlSource()
    health = Health(driver.source, "MiB", None, recover=300)
    assert {card.unit_count for card in health.cards().all} == {15360 - 512}


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo"])
def test_figures_of_memory_that_cannot_be_read_are_an_error_and_no_more(
    driver: NvmlDriver, call: str
) -> None:
    driver.start()
    for error in ERRORS:
        driver.says(f"answer {call} {error} *")
        with pytest.raises(SettingsError):
            driver.source.memory("GPU-a")
    driver.says()
    assert driver.source.memory("GPU-a").total == 2**34


# -- platforms that answer otherwise --------------------------------------------------------------


REFUSALS = [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN]
UNIFIED = ["GPU-unified 0 -1 0"]
TWO = [line for line in NODE if any(uuid in line.split() for uuid in WELL)]


def sizes(driver: NvmlDriver) -> list[int]:
    return [card.unit_count for card in driver.health.cards().all]


def start_with(driver: NvmlDriver, **settings: Any) -> None:
    driver.source = NvmlSource(**settings)
    driver.health = Health(driver.source, "GiB", None, recover=300, clock=lambda: driver.now)


@pytest.mark.parametrize("error", REFUSALS)
def test_a_card_whose_memory_nvml_does_not_tell_has_the_size_of_the_setting(
    driver: NvmlDriver, error: int
) -> None:
    """GB10, Thor and Orin have no memory of their own; NVML then answers NOT_SUPPORTED."""
    refusals = f"answer nvmlDeviceGetMemoryInfo {error} GPU-unified"
    driver.says(refusals, f"process GPU-unified 7 {5 << 30}", node=UNIFIED)
    start_with(driver, memory_mib={"STAND-in": 114688})
    driver.look(2)
    assert (sizes(driver), driver.healthy()) == ([112], {"GPU-unified"})
    figures = driver.source.memory("GPU-unified")
    assert (figures.total, figures.used) == (112 << 30, 5 << 30)


@pytest.mark.parametrize("error", REFUSALS)
def test_without_a_size_the_card_is_closed_and_no_restart_is_asked_for(
    driver: NvmlDriver, error: int
) -> None:
    driver.says(f"answer nvmlDeviceGetMemoryInfo {error} GPU-unified", node=UNIFIED)
    start_with(driver, memory_mib={"Another": 1024})
    driver.look(int(2 * DEAD_SECONDS / POLL_SECONDS))
    assert driver.health.live() == ""
    assert driver.fault("GPU-unified") is (Fault.UNREADABLE if error == UNKNOWN else Fault.SIZE)
    (card,) = driver.health.cards().all
    assert ("--memory-mib" in str(card.problem)) == (error != UNKNOWN)


def test_a_node_of_mig_cards_alone_says_that_and_asks_for_no_restart(driver: NvmlDriver) -> None:
    """NVML refuses the memory of such a card to whoever may not monitor MIG."""
    driver.says(f"answer nvmlDeviceGetMemoryInfo {NO_PERMISSION} *", node=["GPU-mig 0 1 0"])
    driver.start()
    driver.look(int(2 * DEAD_SECONDS / POLL_SECONDS))
    assert driver.fault(MIG) is Fault.MIG
    assert (driver.health.live(), driver.health.ready()) == ("", "")


@pytest.mark.parametrize("error", REFUSALS)
def test_a_vgpu_guest_whose_errors_are_refused_is_ready(driver: NvmlDriver, error: int) -> None:
    driver.says(f"answer nvmlDeviceRegisterEvents {error} *")
    driver.start()
    driver.look(2)
    assert set(WELL) <= driver.healthy()
    assert driver.health.ready() == ""
    assert bool(driver.health.unwatched()) == (error != NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("state", "status", "text"),
    [
        (1, 0, "its NVLink fabric has not started"),
        (2, 0, "its NVLink fabric is being set up"),
        (3, UNKNOWN, "its NVLink fabric has failed: Unknown Error"),
    ],
)
@pytest.mark.parametrize("old_driver", [False, True])
def test_a_card_whose_fabric_is_not_up_is_closed_until_it_is(
    driver: NvmlDriver, state: int, status: int, text: str, old_driver: bool
) -> None:
    old = ["answer nvmlDeviceGetGpuFabricInfoV 13 *"] * old_driver
    driver.says(f"fabric GPU-a {state} {status}", "fabric GPU-b 3 0", *old, node=TWO)
    driver.start()
    driver.look()
    assert driver.healthy() == {"GPU-b"}
    card = driver.health.cards().by_uuid("GPU-a")
    assert card is not None
    assert card.problem == Problem(Fault.FABRIC, text)
    assert sizes(driver)[0] == 15
    driver.look(int(2 * DEAD_SECONDS / POLL_SECONDS))
    assert driver.health.live() == ""
    driver.says("fabric GPU-a 3 0", "fabric GPU-b 0 0", *old, node=TWO)
    driver.look()
    assert driver.healthy() == set(WELL)


def test_the_fabric_does_not_count_where_that_is_said(driver: NvmlDriver) -> None:
    driver.says("fabric GPU-a 1 0", node=TWO)
    start_with(driver, needs_fabric=False)
    assert driver.healthy() == set(WELL)


# -- MIG instances --------------------------------------------------------------------------------


CUT = [
    "GPU-whole 16384 0 0",
    "GPU-cut 0 1 0",
    "instance MIG-a GPU-cut 4864",
    "instance MIG-b GPU-cut 9856",
    "recovery GPU-cut 0",
]
PARTS = ["MIG-a", "MIG-b"]


def test_each_mig_instance_is_a_device_with_its_uuid_its_memory_and_its_profile(
    driver: NvmlDriver,
) -> None:
    driver.says("reserved MIG-a 200", "answer nvmlDeviceGetMemoryInfo 4 GPU-cut", node=CUT)
    driver.start()
    driver.look(2)
    cards = driver.health.cards().all
    assert [(card.uuid, card.index, card.unit_count, card.model) for card in cards] == [
        ("GPU-whole", 0, 16, "Stand-in"),
        ("MIG-a", 1, 4, "Stand-in MIG 1g.5gb"),
        ("MIG-b", 2, 9, "Stand-in MIG 1g.10gb"),
    ]
    assert driver.healthy() == {"GPU-whole", *PARTS}
    assert (driver.health.live(), driver.health.ready()) == ("", "")
    assert driver.source.memory("MIG-b").total == 9856 << 20


def test_an_instance_is_as_well_as_its_gpu(driver: NvmlDriver) -> None:
    driver.says(node=CUT)
    driver.start()
    driver.look()
    driver.says(driver.new_xid("GPU-cut", 94), node=CUT)
    driver.look()
    assert [driver.fault(uuid) for uuid in PARTS] == [Fault.XID] * 2
    assert driver.healthy() == {"GPU-whole"}
    driver.now += 300
    driver.look()
    needs = [line.replace("recovery GPU-cut 0", "recovery GPU-cut 1") for line in CUT]
    driver.says(node=needs)
    driver.look()
    assert [driver.fault(uuid) for uuid in PARTS] == [Fault.RECOVERY] * 2
    driver.says(node=CUT)
    driver.look()
    assert driver.healthy() == {"GPU-whole", *PARTS}


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
    ],
)
@pytest.mark.parametrize("error", [LOST, UNKNOWN])
def test_instances_keep_their_places_while_their_gpu_cannot_be_read(
    driver: NvmlDriver, call: str, error: int
) -> None:
    driver.says(node=CUT)
    driver.start()
    driver.look()
    driver.says(f"answer {call} {error} GPU-cut", node=CUT)
    driver.look(3)
    assert driver.healthy() == {"GPU-whole"}
    expected = Fault.LOST if error == LOST else Fault.UNREADABLE
    assert [driver.fault(uuid) for uuid in PARTS] == [expected] * 2
    driver.says(node=CUT)
    driver.look()
    assert driver.healthy() == {"GPU-whole", *PARTS}
    assert sizes(driver) == [16, 4, 9]


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetName", *ESSENTIAL[-1:]])
def test_an_instance_that_cannot_be_read_closes_itself_alone(driver: NvmlDriver, call: str) -> None:
    driver.says(node=CUT)
    driver.start()
    driver.says(f"answer {call} {UNKNOWN} MIG-a", node=CUT)
    driver.look(2)
    assert driver.healthy() == {"GPU-whole", "MIG-b"}
    driver.says(node=CUT)
    driver.look()
    assert driver.healthy() == {"GPU-whole", *PARTS}


def test_instances_that_come_and_go_are_told(driver: NvmlDriver) -> None:
    driver.says(node=CUT)
    driver.start()
    driver.says(node=[line.replace("MIG-a", "MIG-c") for line in CUT])
    driver.look()
    assert driver.fault("MIG-a") is Fault.GONE
    assert driver.health.cards().uncounted == ("MIG-c",)
    # The GPU that was given out as a whole is cut.
    driver.says("instance MIG-d GPU-whole 4864", node=["GPU-whole 0 1 0", *CUT[1:]])
    driver.look()
    assert driver.fault("GPU-whole") is Fault.MIG
    assert driver.healthy() == {*PARTS}
    assert driver.health.cards().uncounted == ("MIG-d",)


def test_errors_of_a_gpu_that_are_not_seen_are_told_of_its_instances(driver: NvmlDriver) -> None:
    driver.says(node=CUT)
    driver.start()
    driver.look()
    driver.says(f"answer nvmlEventSetWait_v2 {UNKNOWN} GPU-cut", node=CUT)
    driver.look()
    assert set(driver.health.unwatched()) >= {*PARTS}
    assert "errors of MIG-a are not seen" in driver.health.ready()
