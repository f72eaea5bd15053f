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

import pynvml  # type: ignore[import-untyped]  # it has no annotations
import pytest

from gpushare.device_plugin.cards import Fault
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
NOT_HAD = {3, 13, 25, 26}
"""Not supported, function not found, version mismatch, deprecated: the driver has no such thing."""
TOLD_APART = sorted({1, 9, TIMEOUT, LOST, RESET_REQUIRED, UNKNOWN, *NOT_HAD})
"""Errors that mean something to the plug-in; 1 and 9: uninitialized, driver not loaded. All others
are alike to it, so that it suffices if all GPUs answer them at once.
"""

OF_NODE = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlEventSetCreate", "nvmlEventSetFree")
ESSENTIAL = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
)
WHERE_HAD = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode")
WHERE_TOLD = ("nvmlDeviceGetFieldValues", "field", "nvmlDeviceGetRemappedRows")
OF_WATCH = (
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlEventSetCreate",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetWait_v2",
)
HARMLESS = ("nvmlDeviceGetPciInfo_v3", "nvmlEventSetFree")
CALLS = sorted({*OF_NODE, *ESSENTIAL, *WHERE_HAD, *WHERE_TOLD, *OF_WATCH, *HARMLESS})

WELL = ["GPU-a", "GPU-b"]
NEEDY, MIG, REMAP, FALLEN = "GPU-needs-reset", "GPU-mig", "GPU-remap-failed", "GPU-fell-off"
BAD = [NEEDY, MIG, REMAP, FALLEN]
NODE = [
    *(f"{uuid} 16384 {int(uuid == MIG)} 0" for uuid in (*WELL, *BAD)),
    *(f"reserved {uuid} 400" for uuid in (*WELL, *BAD)),
    *(f"recovery {uuid} {int(uuid == NEEDY)}" for uuid in (*WELL, *BAD)),
    *(f"remaps {uuid} 0 {int(uuid == REMAP)}" for uuid in (*WELL, *BAD)),
]
FELL_OFF = f"xid {FALLEN} 79"
TARGETS = {"one": ["GPU-a"], "bad": BAD, "all": ["*"]}
RETRIES = 8
"""So many waits suffice to have the errors of all GPUs again."""


class Driver:
    """The stand-in, and the plug-in's view of it; `now` is the view's clock."""

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
        """Do what the plug-in's threads do, so many times."""
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
def driver(library: ctypes.CDLL, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.says()
    library.nvmlShutdown()
    del os.environ["STAND_IN_NVML"]
    shutil.rmtree(tmp_path)


def test_no_call_is_left_out(driver: Driver) -> None:
    driver.start()
    driver.look(2)
    driver.says(*(f"answer nvmlEventSetWait_v2 {UNKNOWN} {uuid}" for uuid in WELL))
    driver.look()
    asked = set(FUNCTIONS)
    assert asked | {"field"} == set(CALLS)
    assert len(ERRORS) > 25


@dataclass(frozen=True)
class Case:
    """An error that a call answers, of which GPUs, and since when."""

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
        """Whether GPUs that are well count as unhealthy while it lasts."""
        if self.call in WHERE_HAD:
            return self.error not in NOT_HAD
        if self.call in WHERE_TOLD:
            return self.error in (LOST, RESET_REQUIRED)
        return self.call in ESSENTIAL

    def hides(self, uuid: str) -> bool:
        """Whether nothing that was ever read says what is wrong with this GPU."""
        if not self.hits(uuid):
            return False
        if uuid == MIG:  # it is told that it has no such mode
            return self.call == "nvmlDeviceGetMigMode" and self.error in NOT_HAD
        if uuid == FALLEN:
            return self.at_start and self.call in OF_WATCH
        return self.at_start and self.call in WHERE_TOLD and not self.closes

    @property
    def unwatches(self) -> bool:
        """Whether errors of the GPUs cannot be seen, though the driver has them."""
        asked = self.call == "nvmlEventSetWait_v2" or (self.at_start and self.call in OF_WATCH)
        return asked and self.error not in {*NOT_HAD, TIMEOUT}

    def units(self, uuid: str) -> int:
        """What is given out of a GPU at last."""
        bare = self.call == "nvmlDeviceGetMemoryInfo_v2" and self.error in NOT_HAD
        return 16 if self.at_start and bare and self.hits(uuid) else 15


@pytest.mark.parametrize("at_start", [True, False], ids=["at the start", "later"])
@pytest.mark.parametrize(
    ("call", "target"),
    [(call, name) for call in CALLS for name in TARGETS if name == "all" or call not in OF_NODE],
)
def test_an_error_closes_what_it_is_about_as_long_as_it_lasts(
    driver: Driver, call: str, target: str, at_start: bool
) -> None:
    for error in ERRORS if target == "all" else TOLD_APART:
        driver.says()
        case = Case(call, error, TARGETS[target], at_start)
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


def begun(driver: Driver, case: Case, fell_off: str) -> bool:
    """Start; return whether it can. If not, it ends with one line, and is started anew."""
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


def check_during(driver: Driver, case: Case) -> None:
    healthy, health = driver.healthy(), driver.health
    assert healthy.intersection(WELL) == {
        uuid for uuid in WELL if not (case.closes and case.hits(uuid))
    }, case
    assert not {uuid for uuid in healthy.intersection(BAD) if not case.hides(uuid)}, case
    assert all(card.unit_count for card in health.cards().all if card.healthy), case
    assert health.live() == "", case
    unseen = healthy.intersection(health.unwatched())
    assert bool(health.ready()) == bool(unseen), (case, health.ready())
    if case.unwatches:
        assert unseen == set(filter(case.hits, healthy)), case


def check_after(driver: Driver, case: Case) -> None:
    healthy, health = driver.healthy(), driver.health
    # What was lost, or said itself that it needed a reset, and is back, has had one.
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


# -- what happens to drivers ----------------------------------------------------------------------


@pytest.mark.parametrize("away", [10.0, 2 * DEAD_SECONDS])
def test_a_driver_that_was_loaded_anew_is_used_again(driver: Driver, away: float) -> None:
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
    assert driver.healthy() == {*WELL, FALLEN}  # whatever was wrong with it, it was reset
    assert (driver.health.live(), driver.health.ready()) == ("", "")
    driver.says("loads 2", driver.new_xid("GPU-b", 48))
    driver.look()
    assert driver.fault("GPU-b") is Fault.XID


@pytest.mark.parametrize("error", [4, 17, UNKNOWN])
def test_where_no_gpu_can_be_read_for_minutes_the_process_is_to_be_started_anew(
    driver: Driver, error: int
) -> None:
    """The device files are gone: after a reload of systemd the container's cgroup has none."""
    driver.start()
    driver.says(f"answer nvmlDeviceGetHandleByIndex_v2 {error} *")
    driver.look(int(DEAD_SECONDS / POLL_SECONDS))
    assert driver.healthy() == set()
    assert driver.health.live() == ""
    driver.look()
    assert "NVML does not tell its uuid: " in driver.health.live()


def test_a_lost_gpu_keeps_no_other_ones_errors_from_being_seen(driver: Driver) -> None:
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


def test_what_is_kept_of_the_memory_is_read(driver: Driver) -> None:
    driver.says(node=["GPU-t4 15360 -1 0", "reserved GPU-t4 450"])
    driver.start()
    assert [card.unit_count for card in driver.health.cards().all] == [14]


def test_equal_cards_that_keep_a_little_more_or_less_have_as_many_units(driver: Driver) -> None:
    kept = [f"reserved GPU-{index} {450 + 4 * index}" for index in range(4)]
    driver.says(node=[*(f"GPU-{index} 15360 -1 0" for index in range(4)), *kept])
    driver.source = NvmlSource()
    health = Health(driver.source, "MiB", None, recover=300)
    assert {card.unit_count for card in health.cards().all} == {15360 - 512}


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo"])
def test_figures_of_memory_that_cannot_be_read_are_an_error_and_no_more(
    driver: Driver, call: str
) -> None:
    driver.start()
    for error in ERRORS:
        driver.says(f"answer {call} {error} *")
        with pytest.raises(SettingsError):
            driver.source.memory("GPU-a")
    driver.says()
    assert driver.source.memory("GPU-a").total == 2**34
