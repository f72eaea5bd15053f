"""Cards in units: the original's ids, sizes, and lists too large for the kubelet."""

import re

import pytest

from gpushare.device_plugin.cards import (
    LONGEST_MESSAGE,
    NVIDIA_IDS,
    ORIGINAL_IDS,
    Card,
    DetectedGpu,
    Fault,
    Problem,
    device_id,
    form_of,
    make_cards,
    message_size,
    number_of,
    starts_of_ids,
    uuid_of,
)
from gpushare.device_plugin.server import devices_message
from gpushare.errors import SettingsError
from gpushare.wire.inventory import decode_inventory, encode_inventory

HOT = Problem(Fault.UNREADABLE, "hot")
UUID = "GPU-8f7b5c8e-1b0c-4c56-a7d2-0123456789ab"


def found(*mibs: int) -> list[DetectedGpu]:
    return [DetectedGpu(f"GPU-{index}", index, mib) for index, mib in enumerate(mibs)]


def test_ids_are_the_originals() -> None:
    assert device_id(UUID, 0) == f"{UUID}-_-0"
    assert uuid_of(f"{UUID}-_-15") == UUID


def test_ids_may_have_nvidias_form_and_both_are_read() -> None:
    assert device_id(UUID, 0, NVIDIA_IDS) == f"{UUID}::0"
    for between in (NVIDIA_IDS, ORIGINAL_IDS):
        device = device_id(UUID, 15, between)
        assert (uuid_of(device), number_of(device)) == (UUID, 15)
        assert device.startswith(starts_of_ids([UUID]))
        assert not device.startswith(starts_of_ids([UUID[:-1]]))


@pytest.mark.parametrize(
    ("ids", "form"),
    [
        ((), ""),
        (("other",), ""),
        (("a::0", "b::1"), NVIDIA_IDS),
        (("a::0", "b-_-1"), ORIGINAL_IDS),
        (("a-_-0",), ORIGINAL_IDS),
    ],
)
def test_the_originals_form_is_kept_while_a_pod_has_such_ids(
    ids: tuple[str, ...], form: str
) -> None:
    assert form_of(ids) == form


@pytest.mark.parametrize("text", ["", "GPU-0", "GPU-0-_-", "GPU-0-_-x", "GPU-0-_-01", "-_-1"])
def test_what_is_no_id_of_a_unit_has_no_card(text: str) -> None:
    assert uuid_of(text) == ""


def test_dcgm_exporter_finds_the_card_of_a_unit_by_its_id() -> None:
    """With --kubernetes-virtual-gpus, dcgm-exporter 4.x takes the text before "::" for the uuid and
    the text after it for the label `vgpu`, unless the id has "/vgpu" or is that of a MIG profile of
    GKE (internal/pkg/transformation/kubernetes.go: getSharedGPU, toDeviceToSharingPods).
    """
    for uuid in (UUID, "MIG-1b0c2d3e-77aa-5c1d-9b1f-0d1e2f3a4b5c"):
        for number in (0, 15, 1023):
            unit = device_id(uuid, number, NVIDIA_IDS)
            assert "/vgpu" not in unit
            assert not re.match(r"nvidia[0-9]+/gi", unit)
            assert unit.split("::") == [uuid, str(number)]


@pytest.mark.parametrize(
    ("unit", "reserve", "units"),
    [("GiB", 0, 15), ("GiB", 512, 14), ("256MiB", 0, 60), ("MiB", 100, 15260), ("GiB", 20000, 0)],
)
def test_each_card_has_its_own_memory_in_whole_units(unit: str, reserve: int, units: int) -> None:
    cards = make_cards(found(15360, 2 * 15360 + 2 * reserve), unit, reserve)
    assert cards.all[0].unit_count == units
    assert cards.all[1].unit_count >= units


@pytest.mark.parametrize(("reserve", "units"), [(None, 14), (0, 15), (1100, 13)])
def test_what_the_driver_keeps_is_not_given_out_unless_that_is_asked_for(
    reserve: int | None, units: int
) -> None:
    t4 = DetectedGpu(UUID, 0, 15360, "T4", reserved_mib=450)
    assert make_cards([t4], "GiB", reserve).all[0].unit_count == units


def test_a_card_of_less_than_a_unit_is_not_healthy() -> None:
    (card,) = make_cards([DetectedGpu(UUID, 0, 1100, reserved_mib=100)], "GiB", None).all
    assert (card.unit_count, card.healthy) == (0, False)
    assert str(card.problem) == "has 1100 MiB, of which 100 are reserved: less than a unit"


def test_a_list_that_the_kubelet_would_not_take_is_refused_with_a_unit_that_fits() -> None:
    eight = [DetectedGpu(f"{UUID[:-1]}{index}", index, 141 * 1024) for index in range(8)]
    with pytest.raises(SettingsError, match=r"takes 4194304; take 64MiB"):
        make_cards(eight, "MiB", 0)
    cards = make_cards(eight, "64MiB", 0)
    for ids in (NVIDIA_IDS, ORIGINAL_IDS):
        message = devices_message(cards, ids).ByteSize()
        assert message <= message_size(cards.all) <= LONGEST_MESSAGE


def test_the_size_of_the_list_is_never_more_than_reckoned() -> None:
    for problem in (None, Problem(Fault.LOST, "lost")):
        for numa in (None, 0, 2**31):
            card = Card(UUID, 0, 1000, "x", numa, problem)
            cards = make_cards([DetectedGpu(UUID, 0, 1000 * 1024)], "GiB", 0)
            message = devices_message(type(cards)("GiB", (card,))).ByteSize()
            assert message <= message_size([card])


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        ([], "there is no GPU"),
        ([DetectedGpu("GPU-0", 1, 1024)], "must have the indices 0, 1"),
        (
            [DetectedGpu("GPU-0", 0, 1024), DetectedGpu("GPU-0", 1, 1024)],
            "another one has the uuid",
        ),
        ([DetectedGpu("GPU 0", 0, 1024)], "no uuid of a GPU"),
        ([DetectedGpu("a-_-b", 0, 1024)], "no uuid of a GPU"),
        ([DetectedGpu("a::b", 0, 1024)], "no uuid of a GPU"),
        ([DetectedGpu(f"GPU-{n}", n, 1024) for n in range(65)], "64 at most"),
    ],
)
def test_gpus_that_cannot_be_told_apart_are_refused(gpus: list[DetectedGpu], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        make_cards(gpus, "GiB", 0)


@pytest.mark.parametrize("unit", ["", "gib", "0MiB", "1.5GiB", "-1MiB"])
def test_a_unit_that_is_none_is_refused(unit: str) -> None:
    with pytest.raises(SettingsError, match="memory-unit"):
        make_cards(found(1024), unit, 0)


def test_the_inventory_says_what_there_is_and_how_it_is_served() -> None:
    cards = make_cards(
        [DetectedGpu("GPU-0", 0, 16384, "T4"), DetectedGpu("GPU-1", 1, 8192, "P4", problem=HOT)],
        "GiB",
        0,
    )
    inventory = decode_inventory(encode_inventory(cards.inventory()))
    assert [
        (item.uuid, item.mem, item.model, item.healthy, item.problem) for item in inventory.devices
    ] == [("GPU-0", 16, "T4", True, ""), ("GPU-1", 8, "P4", False, "hot")]
    assert (inventory.unit, inventory.marks_assigned, inventory.serves_by_identity) == (
        "GiB",
        True,
        True,
    )
