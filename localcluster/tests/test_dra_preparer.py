"""The variables for containers of a claim, unchanged until the end of the last pod."""

import json
from pathlib import Path

import pytest

from gpushare.errors import GpuShareError
from gpushare_localcluster.dra.preparer import KIND, ClaimRef, Preparer
from tests.support.claims_api import (
    DRIVER,
    NODE,
    UID,
    ClaimsApi,
    Json,
    cards,
    result,
)

REF = ClaimRef("default", "c", UID)
CDI = f"{KIND}={UID}-gpu"


class Driver:
    """A preparer whose GPUs can change; each call may be by a new process of it."""

    def __init__(self, folder: Path) -> None:
        self.api, self.cdi = ClaimsApi(), folder / "cdi"
        self.cards = cards(80, 24)

    @property
    def preparer(self) -> Preparer:
        return Preparer(self.api, DRIVER, self.cdi, lambda: self.cards)

    def told(self) -> dict[str, dict[str, str]]:
        """The variables of each CDI device, as a runtime reads them."""
        outcome = {}
        for file in self.cdi.glob("*.json"):
            document: Json = json.loads(file.read_text())
            for item in document["devices"]:
                env = dict(line.split("=", 1) for line in item["containerEdits"]["env"])
                outcome[f"{document['kind']}={item['name']}"] = env
        return outcome

    def visible(self) -> dict[str, tuple[str, str]]:
        """The GPUs and the limit in MiB of each CDI device."""
        return {
            name: (env["NVIDIA_VISIBLE_DEVICES"], env["NVIDIA_GPU_MEMORY_LIMIT"])
            for name, env in self.told().items()
        }


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_a_container_is_told_its_gpu_and_its_amount_as_the_device_plugin_tells_it(
    driver: Driver,
) -> None:
    driver.api.claim(result(1, "10Gi"))
    (outcome,) = driver.preparer.prepare(REF)
    assert (outcome.request, outcome.pool, outcome.device) == ("gpu", NODE, "gpu-1")
    assert (outcome.share, outcome.cdi) == ("share-1", (CDI,))
    assert driver.told() == {
        CDI: {
            "NVIDIA_VISIBLE_DEVICES": "GPU-1",
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "10",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "10",
            "ALIYUN_COM_GPU_MEM_DEV": "24",
            "NVIDIA_GPU_MEMORY_LIMIT": "10240",
            "NVIDIA_GPU_MEMORY_REQUEST": "0",
        }
    }


def test_the_file_is_what_runtimes_read(driver: Driver) -> None:
    driver.api.claim(result(1))
    driver.preparer.prepare(REF)
    (file,) = driver.cdi.iterdir()
    document = json.loads(file.read_text())
    assert document.keys() == {"cdiVersion", "kind", "annotations", "devices"}
    assert document["cdiVersion"] == "0.6.0"
    assert [item.keys() for item in document["devices"]] == [{"name", "containerEdits"}]


def test_the_gpus_of_a_request_are_in_one_cdi_device(driver: Driver) -> None:
    driver.api.claim(result(0, "4Gi"), result(1, "4Gi"), result(1, "2Gi", request="b/x"))
    outcome = driver.preparer.prepare(REF)
    assert [(item.request, item.device, item.cdi) for item in outcome] == [
        ("gpu", "gpu-0", (CDI,)),
        ("gpu", "gpu-1", ()),
        ("b", "gpu-1", (f"{KIND}={UID}-b",)),
    ]
    assert driver.visible() == {
        CDI: ("GPU-0,GPU-1", "4096"),
        f"{KIND}={UID}-b": ("GPU-1", "2048"),
    }


def test_who_names_no_amount_has_the_whole_gpu(driver: Driver) -> None:
    driver.api.claim(result(1, consumedCapacity=None))
    driver.preparer.prepare(REF)
    assert driver.visible() == {CDI: ("GPU-1", "24576")}


def test_a_claim_that_is_prepared_again_stays_on_its_gpu_whatever_its_name_means_now(
    driver: Driver,
) -> None:
    driver.api.claim(result(1))
    first = driver.preparer.prepare(REF)
    driver.cards = cards(80, 24, first=7)
    assert driver.preparer.prepare(REF) == first
    assert driver.visible() == {CDI: ("GPU-1", "10240")}


def test_a_claim_that_was_allocated_anew_is_not_taken_for_the_old_one(driver: Driver) -> None:
    driver.api.claim(result(1))
    driver.preparer.prepare(REF)
    driver.api.claim(result(1, "20Gi", shareID="another"))
    driver.preparer.prepare(REF)
    assert driver.visible() == {CDI: ("GPU-1", "20480")}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"annotations": []}'])
def test_a_file_that_is_broken_is_written_again(driver: Driver, text: str) -> None:
    driver.api.claim(result(1))
    driver.preparer.prepare(REF)
    (file,) = driver.cdi.iterdir()
    file.write_text(text)
    driver.preparer.prepare(REF)
    assert driver.visible() == {CDI: ("GPU-1", "10240")}


def test_what_is_unprepared_is_gone_and_may_be_so_again(driver: Driver) -> None:
    driver.api.claim(result(1))
    driver.preparer.prepare(REF)
    # The claim itself may be gone by then, and the API server away.
    driver.api.down = True
    driver.preparer.unprepare(REF)
    driver.preparer.unprepare(REF)
    assert list(driver.cdi.iterdir()) == []


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([], "has no device of gpu.example.com"),
        ([result(1, driver="gpu.nvidia.com")], "has no device of gpu.example.com"),
        ([result(2)], "gpu-2: is not there any more"),
        ([result(0), result(1, "25Gi")], "gpu-1 has 24 units of 1024 MiB, and the claim 25"),
        ([result(1, "1Mi")], "and the claim 0"),
        ([result(1, "many")], "gpu-1: "),
        ([result(1, adminAccess=True)], "administrator"),
    ],
)
def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(
    driver: Driver, results: list[Json], reason: str
) -> None:
    driver.api.claim(*results)
    with pytest.raises(GpuShareError, match=reason):
        driver.preparer.prepare(REF)
    assert driver.told() == {}


def test_a_gpu_that_is_not_well_is_given_to_nobody_new(driver: Driver) -> None:
    driver.cards = cards(80, 24, sick=1)
    driver.api.claim(result(1))
    with pytest.raises(GpuShareError, match="gpu-1: is not well"):
        driver.preparer.prepare(REF)


def test_a_claim_made_anew_under_its_name_is_not_taken_for_the_old_one(driver: Driver) -> None:
    driver.api.claim(result(1), uid=UID.replace("0", "9"))
    with pytest.raises(GpuShareError, match="is another one by now"):
        driver.preparer.prepare(REF)


@pytest.mark.parametrize(
    "ref",
    [
        ClaimRef("default", "c", "../../etc/passwd"),
        ClaimRef("default", "../c", UID),
        ClaimRef("a/b", "c", UID),
    ],
)
def test_names_that_would_reach_another_file_or_object_are_refused(
    driver: Driver, ref: ClaimRef
) -> None:
    with pytest.raises(GpuShareError):
        driver.preparer.prepare(ref)
    assert driver.api.sent == []


def test_a_folder_that_cannot_be_written_is_said(driver: Driver) -> None:
    driver.cdi.write_text("no folder")
    driver.api.claim(result(1))
    with pytest.raises(GpuShareError, match="cannot be written"):
        driver.preparer.prepare(REF)
    with pytest.raises(GpuShareError, match="cannot be removed"):
        driver.preparer.unprepare(REF)
