"""Requests in a wrong unit of GPU memory, and the texts for their authors."""

import json
import re
from pathlib import Path

import pytest

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import APART, SPLIT, WISHES, wanted_cards
from gpushare.wire.objects import PODS
from gpushare.wire.request_mistakes import ANNOTATIONS, RESOURCES, mistake_of, without_request
from gpushare.wire.whole_card import WHOLE_CARD
from tests.unit.extender.kit import pod_json, read_pod

_MIB = "aliyun.com/gpu-mem: 8192 GiB are asked of one device, and the largest has 16;"
_BYTES = "if bytes (a suffix such as Mi) are meant, write"


def told(amount: str, unit: str = "GiB", largest: int = 16, count: str = "1") -> str:
    """The text about a pod that asks for this amount."""
    pod = pod_json("web", amount, annotations={ALIYUN.count: count})
    return mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, unit, lambda: largest)


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("5Gi", "'5Gi' is out of range (0..2147483647): the unit is GiB already (unless --unit"),
        ("5Gi", "says otherwise): write 5"),
        ("8192", f"{_MIB} the unit is GiB already: if MiB are meant, write 8"),
        ("512", "if MiB are meant, write 1"),
        ("12345", "if MiB are meant, write 13"),
        ("512Mi", f"{_BYTES} 1"),
        ("2047Mi", f"{_BYTES} 2"),
    ],
)
def test_an_amount_in_another_unit_is_told_with_what_to_write(amount: str, words: str) -> None:
    assert words in told(amount)


@pytest.mark.parametrize(
    ("amount", "words"),
    [("8192", "are asked of one device, and no card has 1000 GiB"), ("1024", "write 1")],
)
def test_where_no_device_is_known_it_is_what_no_card_has(amount: str, words: str) -> None:
    assert words in told(amount, largest=0)


def test_a_percentage_with_a_suffix_of_bytes_is_not_told_to_be_in_gib() -> None:
    text = said_of({"aliyun.com/gpu-mem": "4", "aliyun.com/gpu-core.percentage": "5Gi"})
    assert text.startswith("aliyun.com/gpu-core.percentage: '5Gi' is out of range"), text
    assert "GiB" not in text


def test_a_count_of_devices_is_asked_for_as_a_whole() -> None:
    assert told("65536", count="4").endswith("if MiB are meant, write 64")
    pod = pod_json("web", "40000", annotations={SPLIT: "30000+10000"})
    text = mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB", lambda: 16)
    assert text.endswith("if MiB are meant, write 40")
    assert told("10", count="3").endswith("(aliyun.com/gpu-count): write 9 or 12, or another count")
    assert told("2", count="3").endswith("write 3, or another count")


def test_a_count_among_the_resources_is_told_to_be_an_annotation() -> None:
    pod = pod_json("web", "8")
    pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-count"] = "2"
    text = mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB", lambda: 16)
    assert text.startswith("aliyun.com/gpu-count is among the resources of a container")
    assert "pods wait where it is used up though devices have room" in text
    assert text.endswith("this one gets 1; write aliyun.com/gpu-count as an annotation, not there")


def said_of(limits: dict[str, str], env: list[str] | None = None) -> str:
    pod = pod_json("web", "0")
    (container,) = pod["spec"]["containers"]
    container["resources"]["limits"] = limits
    container["env"] = [{"name": name, "value": "all"} for name in env or ()]
    return mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB", lambda: 16)


def test_a_pod_without_fellows_has_none_to_stay_apart_from() -> None:
    body = pod_json("web", 4, annotations={APART: "required"})
    text = mistake_of(read_pod(body), ALIYUN, "GiB")
    assert text.startswith("gpushare.io/apart has no effect: the pod has no controller")
    owner = {"kind": "Job", "name": "train", "uid": "u-1", "controller": True}
    body["metadata"]["ownerReferences"] = [owner]
    assert mistake_of(read_pod(body), ALIYUN, "GiB") == ""


def test_a_count_alone_gets_no_device_and_is_told() -> None:
    text = said_of({ALIYUN.count: "1"})
    assert "so it gets no device, and may see all cards of its node: write aliyun.com" in text


@pytest.mark.parametrize("whole", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g"])
def test_a_pod_asks_one_device_plug_in_alone(whole: str) -> None:
    text = said_of({ALIYUN.resource: "4", whole: "2"})
    assert text.startswith(f"{whole} is asked for beside aliyun.com/gpu-mem")
    assert said_of({whole: "2"}) == ""


@pytest.mark.parametrize("name", ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_a_variable_that_wins_over_the_device_plug_in_is_told(name: str) -> None:
    assert f" sets {name} itself, which wins over" in said_of({ALIYUN.resource: "4"}, ["A", name])
    assert said_of({}, [name]) == ""
    assert said_of({ALIYUN.resource: "4"}, ["NVIDIA_DRIVER_CAPABILITIES"]) == ""


@pytest.mark.parametrize(
    ("cores", "count", "value", "words"),
    [
        ("100", "1", "true", ""),
        ("200", "2", "true", ""),
        ("30", "1", "false", ""),
        ("30", "1", "true", f"it asks for 30 percent of each; write {ALIYUN.cores}: 100 to have"),
        ("100", "2", "true", f"it asks for 50 percent of each; write {ALIYUN.cores}: 200 to have"),
        ("0", "1", "true", "is ignored, as the pod shares its devices with others"),
        ("100", "1", "yes", "'yes' is neither 'true' nor 'false', and is ignored"),
    ],
)
def test_whole_cards_are_for_pods_that_have_them_alone(
    cores: str, count: str, value: str, words: str
) -> None:
    notes = {WHOLE_CARD: value, ALIYUN.count: count}
    pod = pod_json("web", 2, annotations=notes, limits={ALIYUN.cores: cores})
    text = mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB")
    assert words in text
    assert bool(text) == bool(words)


def test_a_whole_card_without_the_annotation_tells_its_program_of_one_unit() -> None:
    limits = {ALIYUN.cores: "100"}
    text = mistake_of(read_pod(pod_json("web", 1, limits=limits)), ALIYUN, "GiB")
    assert 'write the annotation gpushare.io/whole-card: "true" to give it all memory' in text
    for units, value, cores in ((1, "true", 100), (1, "false", 100), (8, None, 100), (1, None, 50)):
        notes = {} if value is None else {WHOLE_CARD: value}
        pod = pod_json("web", units, annotations=notes, limits={ALIYUN.cores: cores})
        assert mistake_of(read_pod(pod), ALIYUN, "GiB") == ""


def test_a_card_alone_with_a_percentage_needs_no_annotation() -> None:
    pod = pod_json("web", 1, limits={ALIYUN.cores: "100", ALIYUN.share: "100"})
    assert mistake_of(read_pod(pod), ALIYUN, "GiB") == ""


def test_a_privileged_container_sees_all_cards() -> None:
    pod = pod_json("web", 4)
    (container,) = pod["spec"]["containers"]
    container |= {"name": "main", "securityContext": {"privileged": True}}
    text = mistake_of(read_pod(pod), ALIYUN, "GiB")
    assert text.startswith("container main is privileged, so it sees all cards of its node")
    container["securityContext"]["privileged"] = False
    assert mistake_of(read_pod(pod), ALIYUN, "GiB") == ""


def test_a_misspelt_annotation_beside_the_request_is_told() -> None:
    pod = pod_json("web", 4, annotations={"gpushare.io/polcy": "binpack"})
    assert mistake_of(read_pod(pod), ALIYUN, "GiB").endswith("gpushare.io/policy is probably meant")


@pytest.mark.parametrize(
    ("resources", "annotations", "words"),
    [
        (["nvidia.com/gpumem", "nvidia.com/gpu"], [], "nvidia.com/gpumem is HAMi's"),
        ([], ["gpu-fraction"], "gpu-fraction is KAI's"),
        (["tke.cloud.tencent.com/qgpu-memory"], [], "is qGPU's"),
        (["nvidia.com/gpu"], [], "for a part of a card write aliyun.com/gpu-mem"),
        (["aliyun.com/gpu-memory"], [], "aliyun.com/gpu-mem is probably meant"),
        (["cpu", "example.com/nic"], ["prometheus.io/scrape"], ""),
    ],
)
def test_a_pod_that_asks_for_nothing_of_ours_is_told_why(
    resources: list[str], annotations: list[str], words: str
) -> None:
    text = without_request(resources, annotations, ALIYUN)
    assert words in text
    assert bool(text) == bool(words)


@pytest.mark.parametrize("amount", ["1", "16", "17", "255"])
def test_an_amount_that_may_be_meant_so_is_no_mistake(amount: str) -> None:
    assert told(amount) == ""


def test_a_cluster_that_counts_in_mib_or_in_chunks_is_told_in_its_own_unit() -> None:
    assert told("8192", unit="MiB", largest=16384) == ""
    assert told("8192", unit="MiB", largest=0) == ""
    assert told("20480", unit="256MiB", largest=64).endswith("if MiB are meant, write 80")
    assert told("512Mi", unit="MiB", largest=16384).endswith(f"{_BYTES} 512")


def test_annotations_that_leave_no_room_for_ours_are_told() -> None:
    full = {"notes": "x" * (256 * 1024 - len("notes"))}
    pod = pod_json("web", 4, annotations=full)
    text = mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB")
    assert "its annotations have 262144 bytes" in text
    assert "create the pod with smaller ones" in text


def test_half_an_amount_is_told_as_it_is() -> None:
    assert told("500m").endswith("'500m' is not a whole number")


@pytest.mark.parametrize("amount", ["-5Gi", "1e30", "9999999999"])
def test_an_amount_that_cannot_be_any_unit_is_told_as_it_is(amount: str) -> None:
    assert told(amount).endswith("is out of range (0..2147483647)")


_ROW = re.compile(r"^\| `([^`]+)` \| (?:`([^`]+)`|not there|not needed) \|", re.MULTILINE)
_PAGE = dict(_ROW.findall((Path(__file__).parents[3] / "docs/dialects.md").read_text("utf-8")))
"""Our name by that of another product, "" for none, as docs/dialects.md says."""


@pytest.mark.parametrize("name", [*RESOURCES, *ANNOTATIONS])
def test_another_products_name_is_told_with_ours_as_the_page_says(name: str) -> None:
    notes = {name: "1"} if name in ANNOTATIONS else {}
    limits = {name: 1} if name in RESOURCES else {}
    pod = pod_json("web", 8, annotations=notes, limits=limits)
    text = mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB", lambda: 16)
    assert text.startswith(f"{name} is ")
    our_name = _PAGE[name]
    meaning = (RESOURCES | ANNOTATIONS)[name]
    assert f"write {our_name}" in text if our_name else text.endswith(meaning.difference)
    assert our_name == (getattr(ALIYUN, meaning.field_name) if meaning.field_name else "")


def test_all_foreign_names_of_a_pod_are_told_at_once() -> None:
    limits = {"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
    pod = pod_json("web", 8, limits=limits, annotations={"nvidia.com/numa-bind": "true"})
    text = mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB", lambda: 16)
    assert text.count("is HAMi's") == 3


def test_the_page_has_hamis_wishes_which_are_read() -> None:
    for our_name, theirs in WISHES.items():
        assert _PAGE[theirs] == our_name
        value = "GPU-a" if "uuid" in theirs else "A100"
        assert wanted_cards({theirs: value}) == wanted_cards({our_name: value}) != wanted_cards({})


def test_the_page_says_what_acks_names_are_here() -> None:
    for name in (ALIYUN.resource, ALIYUN.count, ALIYUN.cores):
        assert _PAGE[name] == name
    assert _PAGE["hami.io/gpu-scheduler-policy"] == ALIYUN.policy


CORES = "aliyun.com/gpu-core.percentage"


@pytest.mark.parametrize(
    ("memory", "cores", "words"),
    [
        ("8", "130", f"{CORES}: 130 are asked of one device, which has 100 (percent): write 100"),
        ("8", "-5", f"{CORES}: '-5' is out of range"),
        ("8", "0.5", f"{CORES}: '0.5' is not a whole number"),
        ("8", "many", f"{CORES}: 'many' is"),
        ("0", "30", f"{CORES}: cores are asked for without aliyun.com/gpu-mem in the same"),
    ],
)
def test_cores_that_cannot_be_had_are_told(memory: str, cores: str, words: str) -> None:
    text = said_of({ALIYUN.resource: memory, CORES: cores})
    assert text.startswith(words)
    assert "\n" not in text


def test_cores_in_a_container_without_memory_are_told() -> None:
    pod = pod_json("web", "8")
    pod["spec"]["containers"].append({"resources": {"limits": {CORES: "30"}}})
    text = mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB")
    assert text.startswith(f"{CORES}: cores are asked for without aliyun.com/gpu-mem in the same")


def test_two_names_of_one_wish_that_differ_are_told() -> None:
    notes = {"gpushare.io/use-models": "A100", "nvidia.com/use-gputype": "H100"}
    pod = pod_json("web", "8", annotations=notes)
    text = mistake_of(PODS.decode(json.dumps(pod).encode()), ALIYUN, "GiB")
    assert text == (
        "gpushare.io/use-models and nvidia.com/use-gputype mean the same and differ: leave out one"
        " of them"
    )


SHARE = "aliyun.com/gpu-mem.percentage"


@pytest.mark.parametrize(
    ("main", "other", "init", "words"),
    [
        ({"gpu-mem": 1, "gpu-mem.percentage": 50}, {"gpu-mem": 50}, {}, "in proportion"),
        (
            {"gpu-mem": 2, "gpu-mem.percentage": 20},
            {"gpu-mem": 1, "gpu-mem.percentage": 20},
            {},
            "in proportion",
        ),
        ({"gpu-mem": 1, "gpu-mem.percentage": 50}, {}, {"gpu-mem": 9}, "sidecar or init container"),
        ({"gpu-mem": 1, "gpu-mem.percentage": 50}, {}, {"gpu-mem.percentage": 9}, SHARE),
        (
            {"gpu-mem": 2, "gpu-mem.percentage": 40},
            {"gpu-mem": 1, "gpu-mem.percentage": 20},
            {},
            "",
        ),
        ({"gpu-mem": 1, "gpu-mem.percentage": 50}, {}, {}, ""),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_containers_have_no_more_percent_than_the_pod_is_charged(
    main: dict[str, int], other: dict[str, int], init: dict[str, int], words: str, count: int
) -> None:
    """The device plug-in gives each container the larger of its units and percents."""

    def container(amounts: dict[str, int]) -> dict[str, object]:
        limits = {f"aliyun.com/{name}": str(value * count) for name, value in amounts.items()}
        return {"name": "c", "image": "x", "resources": {"limits": limits}}

    body = {
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "web",
            "annotations": {ALIYUN.count: str(count)},
        },
        "spec": {
            "containers": [container(main), container(other)],
            "initContainers": [{**container(init), "restartPolicy": "Always"}],
        },
    }
    text = mistake_of(read_pod(body), ALIYUN, "GiB", lambda: 16)
    assert words in text if words else not text
