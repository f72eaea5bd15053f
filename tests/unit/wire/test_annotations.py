"""A placement is read only if it adds up to the request; a written placement reads back."""

import json
from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.model import MAX_UNITS, Allocation, Request, Shares
from gpushare.errors import SettingsError
from gpushare.wire.annotations import (
    ALIYUN,
    LARGEST_ANNOTATIONS,
    MAX_INDEX,
    MOST_GIVEN,
    Names,
    device_uuids,
    distinct,
    placement,
    strict_number,
)
from gpushare.wire.binding import encode
from gpushare.wire.given_annotation import write_given
from gpushare.wire.objects import Metadata, Pod
from gpushare.wire.pods import lacks_room

IDX = ALIYUN.idx
MAP = ALIYUN.allocation
UUIDS = ALIYUN.uuids


def asks(*containers: int, devices: int = 1, peak: int = 0) -> Request:
    """A request of these containers, or of `peak` units where an init container needs more."""
    total = max(sum(containers), peak)
    shares = tuple((index, units) for index, units in enumerate(containers) if units)
    return Request(units=total // devices, devices=devices if total else 0, containers=shares)


def grants(document: object) -> dict[str, str]:
    return {MAP: json.dumps(document)}


def test_the_names_of_the_original_are_the_originals() -> None:
    assert ALIYUN.resource == "aliyun.com/gpu-mem"
    assert ALIYUN.count == "aliyun.com/gpu-count"
    assert (ALIYUN.idx, ALIYUN.dev, ALIYUN.pod, ALIYUN.assigned, ALIYUN.assume_time) == (
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_DEV",
        "ALIYUN_COM_GPU_MEM_POD",
        "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    )
    assert ALIYUN.allocation == "scheduler.framework.gpushare.allocation"
    assert ALIYUN.uuids == "gpushare.io/device-uuids"
    assert ALIYUN.inventory == "gpushare.io/devices"
    assert ALIYUN.unhealthy == "unhealthy-gpu-"
    assert ALIYUN.policy == "gpushare.io/policy"


def test_another_resource_has_names_of_its_own() -> None:
    npu = Names.for_resource("example.com/npu-mem")
    assert npu.count == "example.com/npu-count"
    assert npu.idx == "EXAMPLE_COM_NPU_MEM_IDX"
    assert Names.for_resource("example.com/fpga").count == "example.com/fpga-count"
    own_name = {
        npu.idx,
        npu.dev,
        npu.pod,
        npu.assigned,
        npu.assume_time,
        npu.allocation,
        npu.inventory,
    }
    own_name.add(npu.uuids)
    theirs = {ALIYUN.idx, ALIYUN.dev, ALIYUN.pod, ALIYUN.assigned, ALIYUN.assume_time}
    assert not own_name & (theirs | {ALIYUN.allocation, ALIYUN.inventory})
    assert all(len(name.rpartition("/")[2]) <= 63 for name in own_name)


@pytest.mark.parametrize("name", ["", "gpu", "a/b/c", "/x", "x/", "A.com/x", "a.com/" + "x" * 60])
def test_a_name_that_cannot_name_annotations_is_refused(name: str) -> None:
    with pytest.raises(SettingsError):
        Names.for_resource(name)


@pytest.mark.parametrize(
    ("annotations", "request_", "shares"),
    [
        ({IDX: "0"}, asks(4), ((0, 4),)),
        ({IDX: "3,0"}, asks(8, devices=2), ((0, 4), (3, 4))),
        ({IDX: "7"}, asks(4, 4), ((7, 8),)),
        ({IDX: "1"}, asks(8, devices=2), ((1, 8),)),
        (grants({"0": {"1": 4}, "1": {"3": 4}}) | {IDX: "1,3"}, asks(4, 4), ((1, 4), (3, 4))),
        (grants({"0": {"1": 3, "3": 1}}) | {IDX: "3,1"}, asks(4), ((1, 3), (3, 1))),
        (grants({"0": {"1": 3, "2": 1}}), asks(4), ((1, 3), (2, 1))),
        (grants({"1": {"1": 3, "0": 0}, "2": {}}), asks(0, 3), ((1, 3),)),
        # An init container needs 8 where the containers need 4: the map alone cannot say where.
        (grants({"0": {"2": 4}}), asks(4, peak=8), ((2, 8),)),
        (grants({"0": {"0": 4}}) | {IDX: "0,3"}, asks(4, devices=2, peak=8), ((0, 4), (3, 4))),
        ({IDX: "5"} | grants({}), asks(peak=6), ((5, 6),)),
        # A map that does not agree with the limits is as good as none.
        (grants({"0": {"1": 5}}) | {IDX: "2"}, asks(4), ((2, 4),)),
        (grants({"0": {"1": 4}}) | {IDX: "2"}, asks(4, 4), ((2, 8),)),
    ],
)
def test_placements_that_add_up_are_read(
    annotations: dict[str, str], request_: Request, shares: Shares
) -> None:
    assert placement(annotations, request_, ALIYUN) == shares


@pytest.mark.parametrize(
    ("annotations", "request_", "shares"),
    [
        (grants({"0": {"1": 12}}) | {IDX: "0"}, asks(12), ((0, 12), (1, 12))),
        (grants({"0": {"1": 4}, "1": {"3": 4}}) | {IDX: "0"}, asks(4, 4), ((0, 8), (1, 4), (3, 4))),
        (grants({"0": {"0": 8}}) | {IDX: "0,1"}, asks(8), ((0, 8), (1, 4))),
        (grants({"0": {"0": 4}}) | {IDX: "1"}, asks(4, peak=8), ((0, 8), (1, 8))),
        (grants({"0": {"0": 9}}) | {IDX: "0,1"}, asks(9, peak=12), ((0, 9), (1, 6))),
        # The meaning of IDX is unclear: 5 units on 2 devices.
        (grants({"0": {"2": 5}}) | {IDX: "0,1"}, asks(5), None),
    ],
)
def test_of_annotations_that_contradict_each_other_either_may_be_true(
    annotations: dict[str, str], request_: Request, shares: Shares | None
) -> None:
    assert placement(annotations, request_, ALIYUN) == shares


@pytest.mark.parametrize("note", [{ALIYUN.dev: "1", ALIYUN.pod: "1"}, {ALIYUN.pod: "x"}])
def test_what_is_noted_of_sizes_changes_nothing(note: dict[str, str]) -> None:
    assert placement(note | {IDX: "1"}, asks(4), ALIYUN) == ((1, 4),)


@pytest.mark.parametrize(
    ("notes", "uuids"),
    [
        ({IDX: "0"}, ()),
        ({IDX: "0", UUIDS: ""}, ()),
        ({IDX: "0,3", UUIDS: "GPU-a,GPU-d"}, ("GPU-a", "GPU-d")),
        ({IDX: "3,0", UUIDS: "GPU-d,GPU-a"}, ("GPU-a", "GPU-d")),
        ({IDX: "0,3", UUIDS: ",GPU-d"}, ("", "GPU-d")),
        ({IDX: "0,3", UUIDS: ","}, ("", "")),
        ({IDX: "0,3", UUIDS: "GPU-a"}, None),
        ({IDX: "0,3", UUIDS: "GPU-a,GPU-a"}, None),
        ({IDX: "0,3", UUIDS: "GPU-a, GPU-d"}, None),
        ({IDX: "x", UUIDS: "GPU-a"}, None),
        ({IDX: "0", UUIDS: "G" * 129}, None),
        ({IDX: "0", UUIDS: "G," * 10_000}, None),
    ],
)
def test_uuids_stand_beside_the_indices(
    notes: dict[str, str], uuids: tuple[str, ...] | None
) -> None:
    assert device_uuids(notes, ((0, 4), (3, 4))[: len(notes[IDX])], ALIYUN) == uuids


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {IDX: ""},
        {IDX: "-1"},
        {IDX: " 0"},
        {IDX: "0,"},
        {IDX: "0, 1"},
        {IDX: "0,0"},
        {IDX: "0,1,2"},
        {IDX: "1_0"},
        {IDX: "\u0661"},
        {IDX: "2147483648"},
        {IDX: "12345678901"},
        {IDX: "no-gpu"},
        {IDX: "0," * 600 + "1"},
        grants([]),
        grants({"0": 4}),
        grants({"0": {"0": "4"}}),
        grants({"0": {"0": 4.0}}),
        grants({"0": {"0": True}}),
        grants({"0": {"0": -4, "1": 8}}),
        grants({"x": {"0": 4}}),
        grants({"0": {"-1": 4}}),
        grants({"0": {"0": 2, "00": 2}}),
        {MAP: '{"0":{"0":4},"0":{"1":4}}'},
        {MAP: '{"0":{"0":NaN}}'},
        {MAP: '{"0":{"0":' + "9" * 5000 + "}}"},
        {MAP: "[" * 50_000},
        {MAP: "{"},
        {MAP: " " * 70_000 + "{}"},
        grants({"0": {"1": 1, "2": 1, "3": 1}}) | {IDX: "0,1,2"},
    ],
)
def test_placements_that_make_no_sense_are_none(annotations: dict[str, str]) -> None:
    assert placement(annotations, asks(4), ALIYUN) is None


def test_a_surplus_that_does_not_divide_is_no_placement() -> None:
    assert placement(grants({"0": {"0": 2, "1": 2}}), asks(4, peak=7), ALIYUN) is None


def test_a_pod_without_gpu_has_no_placement() -> None:
    assert placement({IDX: "0"}, Request(cpu=100), ALIYUN) is None


def test_a_decision_is_written_as_the_original_writes_it() -> None:
    annotations = encode(
        Allocation("n", ((1, 7),), ("GPU-b",)),
        asks(2, 0, 5),
        16,
        "1760000000000000001",
        ALIYUN,
    )
    assert annotations == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "7",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1760000000000000001",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":2},"2":{"1":5}}',
        "gpushare.io/device-uuids": "GPU-b",
    }


def test_cores_are_written_where_their_memory_is() -> None:
    one = replace(asks(2, 0, 5), percents=compute(70), percent_containers=(((0, 20), (2, 50)),))
    annotations = encode(Allocation("n", ((1, 7),)), one, 16, "0", ALIYUN)
    assert annotations[ALIYUN.core_allocation] == '{"0":{"1":20},"2":{"1":50}}'
    two = replace(
        asks(2, 6, devices=2), percents=compute(20), percent_containers=(((0, 10), (1, 30)),)
    )
    annotations = encode(Allocation("n", ((0, 4), (3, 4))), two, 16, "0", ALIYUN)
    assert json.loads(annotations[MAP]) == {"0": {"0": 2}, "1": {"0": 2, "3": 4}}
    assert json.loads(annotations[ALIYUN.core_allocation]) == {
        "0": {"0": 10},
        "1": {"0": 10, "3": 20},
    }


def test_of_a_pod_that_is_split_by_container_each_has_its_own_device() -> None:
    requested = replace(
        asks(10, 0, 30, 10, devices=2),
        devices=3,
        units=30,
        split=(30, 10, 10),
        percents=compute(20),
    )
    requested = replace(requested, percent_containers=(((0, 20), (2, 20), (3, 20)),))
    annotations = encode(Allocation("n", ((0, 10), (3, 30), (5, 10))), requested, 16, "0", ALIYUN)
    assert json.loads(annotations[MAP]) == {"0": {"0": 10}, "2": {"3": 30}, "3": {"5": 10}}
    assert json.loads(annotations[ALIYUN.core_allocation]) == {
        "0": {"0": 20},
        "2": {"3": 20},
        "3": {"5": 20},
    }
    assert placement(annotations, requested, ALIYUN) == ((0, 10), (3, 30), (5, 10))


def test_nobody_knows_where_the_parts_are_of_a_split_pod_without_its_map() -> None:
    requested = replace(asks(40), devices=2, units=30, split=(30, 10))
    annotations = encode(Allocation("n", ((1, 10), (2, 30))), requested, 16, "0", ALIYUN)
    assert placement({IDX: "1,2"}, requested, ALIYUN) is None
    assert placement(annotations | {IDX: "2,3"}, requested, ALIYUN) is None
    assert placement(annotations | {MAP: "{}"}, requested, ALIYUN) is None


def test_a_container_of_a_split_pod_fills_its_devices() -> None:
    requested = replace(asks(40), devices=2, units=30, split=(30, 10))
    annotations = encode(Allocation("n", ((1, 10), (2, 30))), requested, 16, "0", ALIYUN)
    assert json.loads(annotations[MAP]) == {"0": {"1": 10, "2": 30}}
    assert placement(annotations, requested, ALIYUN) == ((1, 10), (2, 30))


def test_containers_fill_the_devices_in_order() -> None:
    annotations = encode(Allocation("n", ((0, 4), (3, 4))), asks(3, 5, devices=2), 16, "0", ALIYUN)
    assert annotations[IDX] == "0,3"
    assert json.loads(annotations[MAP]) == {"0": {"0": 3}, "1": {"0": 1, "3": 4}}


def test_a_pod_whose_init_container_alone_asks_has_an_empty_map_in_place_of_its_owners() -> None:
    annotations = encode(Allocation("n", ((2, 6),)), asks(peak=6), 16, "0", ALIYUN)
    assert annotations[MAP] == "{}"
    assert placement({MAP: '{"0":{"1":6}}'} | annotations, asks(peak=6), ALIYUN) == ((2, 6),)


@st.composite
def decisions(draw: st.DrawFn) -> tuple[Request, Allocation]:
    devices = sorted(draw(st.sets(st.integers(0, 63), min_size=1, max_size=8)))
    containers = draw(st.lists(st.integers(0, 50), max_size=5))
    total = max(sum(containers) + draw(st.integers(0, 20)), 1)
    total += -total % len(devices)
    left_over = total - sum(containers)
    if draw(st.booleans()):
        containers.append(left_over)
    request = asks(*containers, devices=len(devices), peak=total)
    uuids = draw(st.sampled_from([(), tuple(f"GPU-{device}" for device in devices)]))
    shares = tuple((device, request.units) for device in devices)
    return request, Allocation("n", shares, uuids)


def _written_most(request: Request, allocation: Allocation, stamp: str) -> dict[str, str]:
    """All annotations of the pod over its life, each at the largest size."""
    cards = {f"{number:03}" + "u" * 125: MAX_UNITS for number in range(MOST_GIVEN)}
    binding = encode(allocation, request, MAX_UNITS, stamp, ALIYUN)
    return {**binding, **write_given(cards, ALIYUN)}


def _bytes(annotations: dict[str, str]) -> int:
    return sum(len(text.encode()) for pair in annotations.items() for text in pair)


@pytest.mark.parametrize("containers", [1, 3, 700])
@pytest.mark.parametrize("devices", [1, 64])
def test_whatever_passes_the_check_has_room_for_all_that_is_ever_written(
    containers: int, devices: int
) -> None:
    units = 7 * containers
    item = tuple((n, 7 * devices) for n in range(containers))
    request = Request(
        units, devices, containers=item, percents=compute(100), percent_containers=(item,)
    )
    shares = tuple((index, units) for index in range(MAX_INDEX - devices + 1, MAX_INDEX + 1))
    uuids = tuple(f"{number:03}" + "u" * 125 for number in range(devices))
    allocation = Allocation("n", shares, uuids)
    annotations = _written_most(request, allocation, str(2**63))
    filler = {"é" * 10: "", ALIYUN.policy: "binpack"}
    room = LARGEST_ANNOTATIONS - _bytes(filler)
    sizes = range(room)
    error = bisect_left(
        sizes,
        True,
        key=lambda size: not _has_room({**filler, "é" * 10: "x" * size}, request),
    )
    largest = error - 1
    assert _bytes({**filler, "é" * 10: "x" * largest, **annotations}) <= LARGEST_ANNOTATIONS
    assert largest > room - 2 * _bytes(annotations) - 1024  # and not far less is refused


def test_annotations_of_ours_that_a_user_wrote_count_as_what_replaces_them() -> None:
    users = {ALIYUN.allocation: "x" * (LARGEST_ANNOTATIONS - len(ALIYUN.allocation))}
    assert _has_room(users, Request(4, 1, containers=((0, 4),)))


def _has_room(annotations: dict[str, str], request: Request) -> bool:
    return not lacks_room(Pod(Metadata(annotations=annotations)), request, ALIYUN)


@given(decisions(), st.integers(0, 2**63))
def test_what_is_written_reads_back(decision: tuple[Request, Allocation], stamp: str) -> None:
    request, allocation = decision
    annotations = encode(allocation, request, 80, stamp, ALIYUN)
    assert placement(annotations, request, ALIYUN) == allocation.shares
    assert device_uuids(annotations, allocation.shares, ALIYUN) == allocation.uuids
    del annotations[IDX]
    if sum(units for _, units in request.containers) == request.total:
        assert placement(annotations, request, ALIYUN) == allocation.shares


@given(
    st.dictionaries(st.sampled_from([IDX, MAP]), st.text(max_size=40)),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_any_annotation_gives_at_least_all_of_the_request_or_nothing(
    annotations: dict[str, str], containers: list[int]
) -> None:
    request = asks(*containers)
    shares = placement(annotations, request, ALIYUN)
    assert shares is None or sum(units for _, units in shares) >= request.total


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 5) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("0123x"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON, st.integers(1, 5))
def test_any_map_gives_all_of_the_request_or_nothing(document: object, units: int) -> None:
    shares = placement(grants(document), asks(units), ALIYUN)
    assert shares is None or sum(share for _, share in shares) == units


def test_strict_numbers_are_ascii_digits_within_the_limit() -> None:
    assert strict_number("007") == 7
    assert strict_number("64", 64) == 64
    assert strict_number("65", 64) is None
    assert [strict_number(text) for text in ("", "+7", "7 ", "\u0667", "7\n")] == [None] * 5


@pytest.mark.parametrize(
    ("one", "second", "name"),
    [
        ("x/npu-mem", "x/npu.mem", "X_NPU_MEM_IDX"),
        ("x/gpu-mem", "x/gpu", "x/gpu-core.percentage"),
        ("x.y/npu", "x-y/npu", "X_Y_NPU_IDX"),
    ],
)
def test_two_resources_of_one_name_in_objects_are_refused(one: str, second: str, name: str) -> None:
    names = [Names.for_resource(resource) for resource in ("aliyun.com/gpu-mem", one, second)]
    with pytest.raises(SettingsError) as error:
        distinct(names)
    for part in (one, second, name):
        assert part in str(error.value)
    distinct(names[:2])
