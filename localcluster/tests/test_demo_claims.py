"""Plans of nodes with a DRA driver, and the books that the demo makes of slices and claims."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpushare_localcluster.demo.manifests import (
    NIC_DRIVER,
    Json,
    claim_books,
    class_document,
    given,
    held_by_claims,
    node_document,
    pod_document,
    slice_documents,
    template_document,
)
from gpushare_localcluster.demo.plan import NodePlan, PodPlan, ScenarioError, several
from gpushare_localcluster.demo.scenario import load_scenario

NODE = NodePlan(name="n", gpu_memory=(80, 24), driver="gpu.example.com")
POD = PodPlan("p", 40, 2, claim="gpushare.io")


def claim(pods: tuple[str, ...], *cards: str, gib: int = 10) -> Json:
    results = [
        {
            "driver": NODE.driver,
            "pool": "n",
            "device": card,
            "consumedCapacity": {"memory": str(gib * 2**30)},
        }
        for card in cards
    ]
    reserved = [{"resource": "pods", "name": name, "uid": name} for name in pods]
    return {"status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}}


def test_what_a_driver_has_is_in_its_slice_and_not_on_the_node() -> None:
    node = node_document(NODE, 0)
    assert set(node["status"]["allocatable"]) == {"cpu", "memory", "pods"}
    assert "annotations" not in node["metadata"]
    (document,) = slice_documents(NODE)
    devices = document["spec"]["devices"]
    sizes = [device["capacity"]["memory"]["value"] for device in devices]
    assert sizes == ["80Gi", "24Gi"]
    assert len({device["attributes"]["uuid"]["string"] for device in devices}) == 2


def test_a_pod_has_by_its_claim_what_it_would_have_by_its_limits() -> None:
    pod = pod_document(POD)
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "p"}]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    assert "limits" not in pod["spec"]["containers"][0]["resources"]
    assert "annotations" not in pod["metadata"]
    (request,) = template_document(POD, "default")["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "gpushare.io",
        "count": 2,
        "capacity": {"requests": {"memory": "20Gi"}},
    }


def test_a_class_selects_the_devices_of_a_driver() -> None:
    result = [class_document(name)["spec"]["selectors"] for name in ("gpushare.io", "x.com")]
    assert result == [
        [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
        [{"cel": {"expression": "device.driver == 'x.com'"}}],
    ]


def test_a_network_card_has_a_slice_of_its_own_and_counts_as_no_gpu() -> None:
    with_nic = replace(NODE, nic=True)
    gpus, nic = slice_documents(with_nic)
    assert (gpus["spec"]["driver"], nic["spec"]["driver"]) == (NODE.driver, NIC_DRIVER)
    devices = template_document(replace(POD, nic=True), "default")["spec"]["spec"]["devices"]
    assert [item["exactly"]["deviceClassName"] for item in devices["requests"]] == [
        "gpushare.io",
        NIC_DRIVER,
    ]
    both = claim(("a",), "gpu-0")
    results = both["status"]["allocation"]["devices"]["results"]
    results.append({"driver": NIC_DRIVER, "pool": "n", "device": "nic-0"})
    (node,) = claim_books([gpus, nic], [both])
    assert [item["usedGPU"] for item in node["devs"]] == [10, 0]
    assert given(both) == {0: 10}


def test_equal_pods_are_spread_over_a_label_of_nodes() -> None:
    pod = replace(POD, labels={"app": "a"}, spread_over="zone")
    (constraint,) = pod_document(pod)["spec"]["topologySpreadConstraints"]
    assert constraint == {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }


def test_the_books_have_each_card_with_the_pods_of_its_claims() -> None:
    claims = [claim(("a",), "gpu-0"), claim(("b", "c"), "gpu-0", "gpu-1", gib=4), {"status": {}}]
    books = claim_books(slice_documents(NODE), claims)
    (node,) = books
    assert (node["name"], node["totalGPU"]) == ("n", 104)
    assert [(item["usedGPU"], item["totalGPU"]) for item in node["devs"]] == [(14, 80), (4, 24)]
    assert node["devs"][1]["pods"] == [{"name": "b, c", "usedGPU": 4}]
    assert given(claims[1]) == {0: 4, 1: 4}
    assert given(claims[2]) == {}
    assert held_by_claims(books) == {"a": (0,), "b": (0, 1), "c": (0, 1)}


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        ("claim: other.com, gpuMem: 4", "no device class 'other.com' is in this scenario"),
        ("claim: x.com", "needs gpuMem, which gpuCount divides"),
        ("claim: x.com, gpuMem: 5, gpuCount: 2", "needs gpuMem, which gpuCount divides"),
        ("claim: x.com, gpuMem: 4, policy: fgd", "a claim goes without gpuCores"),
        ("claim: x.com, containers: [4]", "a claim goes without gpuCores"),
        ("gpuMem: 4, nic: true", "goes with claim alone"),
        ("gpuMem: 4, spreadOver: zone", "needs labels"),
    ],
)
def test_a_claim_that_cannot_be_is_told_with_its_line(
    tmp_path: Path, pod: str, sentence: str
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"nodes: [{{name: n, driver: x.com}}]\nsteps:\n- apply: {{name: p, {pod}}}\n")
    with pytest.raises(ScenarioError, match=f"s.yaml:3: .*{sentence}"):
        load_scenario(file)


def test_a_scenario_says_whose_the_devices_are(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    nodes = "[{name: n, driver: x.com, gpuMemory: [80, 24]}, {name: m}]"
    file.write_text(f"nodes: {nodes}\nsteps:\n- apply: {{name: p, gpuMem: 4, claim: x.com}}\n")
    scenario = load_scenario(file)
    assert [node.driver for node in scenario.nodes] == ["x.com", ""]
    assert scenario.has_claims
    (step,) = scenario.steps
    assert [pod.claim for pod in several(step.apply)] == ["x.com"]
