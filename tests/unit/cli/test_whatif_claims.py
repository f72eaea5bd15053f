"""`gpushare whatif` of pods with claims: on a driver's devices, beside those by annotation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.cli.whatif import main
from tests.unit.cli.fake_kubectl import FakeKubectl, inventory, node, pending, pod
from tests.unit.cli.test_inspect_claims import claim, slice_on
from tests.unit.cli.whatif_codes import exit_code
from tests.unit.wire.dra.objects import DRIVER, device, exactly, stepped

Json = dict[str, Any]
DocumentOf = Callable[..., Json]
CLASS = "gpushare.io"
TOO_FEW = "no devices for its claims"


def user(
    name: str, *claims: str, node: str = "", cpu: str = "1", template: str = "", **spec: Any
) -> Json:
    """A pod in `team` with these claims, or with one that was made of a template."""
    has = [{"name": f"c{at}", "resourceClaimName": item} for at, item in enumerate(claims)]
    if template:
        has = [{"name": "c0", "resourceClaimTemplateName": template}]
    changes = [{"name": "c0", "resourceClaimName": claims[0]}] if template and claims else []
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {
            "resourceClaims": has,
            "containers": [{"resources": {"requests": {"cpu": cpu}}}],
            **({"nodeName": node} if node else {}),
            **spec,
        },
        "status": {"phase": "Running" if node else "Pending", "resourceClaimStatuses": changes},
    }


def deployment(name: str, replicas: int, pod: Json, **meta: Any) -> Json:
    template = {"metadata": {}, "spec": pod["spec"]}
    return {
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "team", **meta},
        "spec": {"replicas": replicas, "template": template},
    }


def template(name: str, memory: str, **more: Any) -> Json:
    asks = {"name": "gpu", "exactly": exactly(memory, **more)}
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"spec": {"devices": {"requests": [asks]}}},
    }


@pytest.fixture
def document_of(capsys: pytest.CaptureFixture[str]) -> DocumentOf:
    """Return a function that runs the command and returns the document."""

    def run(*words: str) -> Json:
        code = main([*words, "-o", "json"])
        out, err = capsys.readouterr()
        answer: Json = json.loads(out)
        assert (code, err) == (exit_code(answer), "")
        return answer

    return run


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def run(*words: str) -> list[str]:
        assert main([*words]) in (0, 1)
        out, err = capsys.readouterr()
        assert err == ""
        return out.splitlines()

    return run


@pytest.fixture
def wrong(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a wrong command line and returns the error."""

    def run(*words: str) -> str:
        code = main([*words])
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    return run


def manifest(tmp_path: Path, *documents: Json) -> str:
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


SLICES = (slice_on("n1", device(1, 80), device(2, 24)), slice_on("n2", device(3, 24)))


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> FakeKubectl:
    """A node by annotation; two of the driver, with a claim of 10 on the card of 80."""
    kubectl.cluster(
        [node("a", inventory=inventory(16)), node("n1", 0), node("n2", 0)],
        [user("runs", "small", node="n1")],
        page=500,
        slices=SLICES,
        claims=[claim("small", 10, ("n1", "gpu-1"))],
    )
    return kubectl


def fits(document: Json, part: str = "pods") -> list[tuple[str, int, Json]]:
    return [
        (item["name"], item["fit"], {on["node"]: on["pods"] for on in item["on"]})
        for item in document[part]
    ]


@pytest.mark.usefixtures("cluster")
def test_pods_by_claims_are_placed_on_the_drivers_cards(
    document_of: DocumentOf, tmp_path: Path
) -> None:
    file = manifest(
        tmp_path,
        template("large", "20Gi"),
        deployment("web", 3, user("x", template="large")),
        template("two", "10Gi", count=2),
        deployment("pairs", 3, user("x", template="two")),
    )
    answer = document_of("--pods", file)
    assert (answer["resource"], answer["before"]) == (
        CLASS,
        {"nodes": 2, "devices": 3, "total": 128, "free": 118},
    )
    assert fits(answer) == [
        ("deployment/web", 3, {"n1": 2, "n2": 1}),
        ("deployment/pairs", 2, {"n1": 2}),
    ]
    assert answer["pods"][1]["reasons"] == [{"reason": TOO_FEW, "nodes": 2}]
    assert answer["after"]["free"] == 118 - 60 - 40


@pytest.mark.usefixtures("cluster")
def test_pods_of_both_kinds_count_in_one_plan_each_on_its_nodes(
    lines: Callable[..., list[str]], document_of: DocumentOf, tmp_path: Path
) -> None:
    asks = pod("mixed", "", 16)
    asks["kind"] = "Pod"
    del asks["spec"]["nodeName"], asks["status"]
    file = manifest(
        tmp_path, asks, template("t", "24Gi"), deployment("w", 9, user("x", template="t"))
    )
    answer = document_of("--pods", file)
    assert (answer["resource"], fits(answer)) == (
        "aliyun.com/gpu-mem",
        [("pod/mixed", 1, {"a": 1})],
    )
    (cards,) = answer["others"]
    assert (cards["resource"], fits(cards)) == (CLASS, [("deployment/w", 4, {"n1": 3, "n2": 1})])
    text = lines("--pods", file)
    assert "Now:      16 GiB of 16 GiB free on 1 device of 1 node (aliyun.com/gpu-mem)" in text
    assert (
        f"Now:      118 GiB of 128 GiB free on 3 devices of 2 nodes ({CLASS} of {DRIVER})" in text
    )
    assert f"Pods:     deployment/w: 4 of 9 fit (1 on n2, 3 on n1); then: 2 {TOO_FEW}" in text


@pytest.mark.usefixtures("cluster")
def test_words_are_of_claims_if_the_resource_says_so(
    document_of: DocumentOf, wrong: Callable[..., str]
) -> None:
    answer = document_of("--resource", CLASS, "--pods", "24GiB", "--gang", "8GiB on 2 x 2")
    assert fits(answer) == [("24GiB", 4, {"n1": 3, "n2": 1})]
    assert "others" not in answer
    assert (answer["gangs"][0]["fits"], answer["after"]["free"]) == (False, 118 - 96)
    assert "no part of the compute" in wrong("--resource", CLASS, "--pods", "8GiB + 30%")


def test_where_nothing_is_shared_by_annotation_words_are_of_claims(
    kubectl: FakeKubectl, document_of: DocumentOf, wrong: Callable[..., str]
) -> None:
    kubectl.cluster([node("n1", 0)], [], page=500, slices=SLICES[:1], claims=[])
    answer = document_of("--pods", "24GiB x 12", "--add", "2:n1")
    assert fits(answer) == [("24GiB x 12", 12, {"n1": 4, "new-1": 4, "new-2": 4})]
    assert answer["after"]["free"] == 3 * 104 - 12 * 24
    text = wrong("--pods", "1GiB", "--add", "1:1x48GiB")
    assert "nodes for claims are named by a node with the same devices, as 3:gpu-a" in text


def test_pods_with_claims_in_words_tolerate_the_taints_of_gpu_nodes(
    kubectl: FakeKubectl, document_of: DocumentOf
) -> None:
    tainted = node("n1", 0)
    tainted["spec"] = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    slices = (slice_on("n1", device(1, 24)),)
    kubectl.cluster([tainted], [], page=500, slices=slices, claims=[])
    assert fits(document_of("--pods", "20GiB")) == [("20GiB", 1, {"n1": 1})]
    assert fits(document_of("--pods", "20GiB", "--tolerate", "none")) == [("20GiB", 0, {})]


def test_a_pod_by_annotation_is_never_on_a_node_of_the_driver(
    kubectl: FakeKubectl, document_of: DocumentOf
) -> None:
    """`both` has a device plug-in and slices: kube-scheduler allocates its devices."""
    kubectl.cluster(
        [node("both", inventory=inventory(16)), node("n1", 0), node("a", inventory=inventory(16))],
        [],
        page=500,
        slices=[slice_on("both", device(9)), *SLICES[:1]],
        claims=[],
    )
    answer = document_of("--pods", "8GiB")
    assert fits(answer) == [("8GiB", 2, {"a": 2})]
    answer = document_of("--resource", CLASS, "--pods", "24GiB x 9")
    assert fits(answer) == [("24GiB x 9", 7, {"n1": 4, "both": 3})]


def test_a_claim_takes_of_each_node_the_amount_that_its_driver_rounds_up_to(
    kubectl: FakeKubectl, document_of: DocumentOf, tmp_path: Path
) -> None:
    """n1 rounds up to 40, n2 to whole GiB."""
    slices = [slice_on("n1", stepped(1, 80, 40)), slice_on("n2", stepped(2, 24, 1))]
    kubectl.cluster([node("n1", 0), node("n2", 0)], [], page=500, slices=slices, claims=[])
    file = manifest(
        tmp_path, template("t", "7Gi"), deployment("w", 9, user("x", template="t", cpu="0"))
    )
    for words in (("--pods", file), ("--resource", CLASS, "--pods", "7GiB x 9")):
        answer = document_of(*words)
        assert fits(answer)[0][1:] == (5, {"n1": 2, "n2": 3})
        assert answer["pods"][0]["units"] == 7
        assert (answer["before"]["free"], answer["after"]["free"]) == (104, 3)
        assert answer["pods"][0]["reasons"] == [{"reason": TOO_FEW, "nodes": 2}]


def test_claims_of_any_form_are_placed_as_kube_scheduler_would(
    kubectl: FakeKubectl, document_of: DocumentOf, tmp_path: Path
) -> None:
    slices = [
        slice_on("n1", device(1, allowMultipleAllocations=False), device(2, 24)),
        slice_on("n2", device(3, 24, taints=[{"key": "t", "effect": "NoSchedule"}])),
    ]
    kubectl.cluster([node("n1", 0), node("n2", 0)], [], page=500, slices=slices, claims=[])
    selector = {"cel": {"expression": "device.attributes['gpu.example.com'].minor == 1"}}
    first = {"name": "large", "deviceClassName": CLASS, "selectors": [selector]}
    second = {
        "name": "small",
        "deviceClassName": CLASS,
        "capacity": {"requests": {"memory": "9Gi"}},
    }
    choice = template("choice", "1Gi")
    choice["spec"]["spec"]["devices"]["requests"] = [
        {"name": "g", "firstAvailable": [first, second]}
    ]
    tolerates = template("tolerates", "9Gi", tolerations=[{"key": "t", "operator": "Exists"}])
    file = manifest(
        tmp_path,
        choice,
        deployment("choice", 4, user("x", template="choice", cpu="0")),
        tolerates,
        deployment("tolerates", 3, user("x", template="tolerates", cpu="0")),
    )
    answer = document_of("--pods", file)
    assert fits(answer) == [
        ("deployment/choice", 3, {"n1": 3}),
        ("deployment/tolerates", 2, {"n2": 2}),
    ]


def test_cpu_and_node_selectors_keep_pods_with_claims_out(
    kubectl: FakeKubectl, document_of: DocumentOf, tmp_path: Path
) -> None:
    """Nodes have 8 cores; a pod without a device takes 5 of them on n1."""
    busy = user("busy", node="n1", cpu="5")
    busy["spec"]["resourceClaims"] = []
    kubectl.cluster([node("n1", 0), node("n2", 0)], [busy], page=500, slices=SLICES, claims=[])
    picky = user("x", template="t", nodeSelector={"pool": "x"})
    file = manifest(
        tmp_path,
        template("t", "1Gi"),
        deployment("hungry", 9, user("x", template="t", cpu="3")),
        deployment("picky", 1, picky),
    )
    hungry, none = fits(document_of("--pods", file))
    assert hungry == ("deployment/hungry", 3, {"n1": 1, "n2": 2})
    assert none[1] == 0


def test_pods_that_wait_take_their_cards_first_and_gated_ones_none(
    kubectl: FakeKubectl, document_of: DocumentOf
) -> None:
    kubectl.cluster(
        [node("n2", 0)],
        [
            user("late", "l", priority=7),
            user("later", "l2"),
            user("gated", "g", schedulingGates=[{"name": "x"}]),
            user("has", "given"),
            user("lost", "nobody"),
            user("foreign", "f"),
        ],
        page=500,
        slices=SLICES[1:],
        claims=[
            claim("l", 12),
            claim("g", 4),
            claim("given", 4, ("n2", "gpu-3")),
            claim("l2", 2),
            claim("f", 1, deviceClassName="other"),
        ],
    )
    answer = document_of("--pods", "4GiB")
    assert fits(answer, "waiting") == [("team/late", 1, {"n2": 1}), ("team/later", 1, {"n2": 1})]
    assert (answer["gated"], fits(answer)) == (1, [("4GiB", 1, {"n2": 1})])
    note = next(
        item for item in answer["notes"] if item.startswith("pods with claims are left out")
    )
    assert "team/lost: there is no claim team/nobody" in note
    assert "team/foreign: there is no DeviceClass other" in note


def test_pods_of_a_node_that_goes_take_their_claims_along(
    kubectl: FakeKubectl, lines: Callable[..., list[str]], document_of: DocumentOf
) -> None:
    """`two` has two claims, which have to be on one node; `one` and `other` share theirs."""
    kubectl.cluster(
        [node("n1", 0), node("n2", 0), node("n3", 0)],
        [
            user("two", "x", "y", node="n1"),
            user("one", "shared", node="n1"),
            user("other", "shared", node="n1"),
        ],
        page=500,
        slices=[*SLICES, slice_on("n3", device(4, 8))],
        claims=[
            claim("x", 16, ("n1", "gpu-1")),
            claim("y", 8, ("n1", "gpu-1")),
            claim("shared", 6, ("n1", "gpu-2")),
        ],
    )
    answer = document_of("--without", "n1")
    assert fits(answer, "moved") == [
        ("team/one (2 pods that share a claim)", 1, {"n3": 1}),
        ("team/two", 1, {"n2": 1}),
    ]
    assert (answer["moved"][1]["units"], answer["moved"][1]["split"]) == (16, [16, 8])
    assert answer["before"]["free"] - answer["after"]["free"] == 80 + 24
    text = lines("--without", "n1", "--without", "n2")
    assert "Without:  n1, n2: 1 of 2 pods fit elsewhere" in text


def test_the_memory_of_all_claims_of_a_pod_is_told(
    kubectl: FakeKubectl, document_of: DocumentOf
) -> None:
    small = claim("small", 5)
    small["spec"]["devices"]["requests"].append({"name": "more", "exactly": exactly("3Gi")})
    claims = [claim("large", 20), small]
    pods = [user("waits", "small", "large")]
    kubectl.cluster([node("n1", 0)], pods, page=500, slices=SLICES[:1], claims=claims)
    (answer,) = document_of("--resource", CLASS, "--pods", "1GiB")["waiting"]
    assert (answer["units"], answer["devices"], answer["split"]) == (20, 3, [20, 5, 3])


def test_what_a_node_lacks_for_all_claims_of_a_pod_is_said(
    kubectl: FakeKubectl, document_of: DocumentOf, tmp_path: Path
) -> None:
    kubectl.cluster([node("n2", 0)], [], page=500, slices=SLICES[1:], claims=[])
    both = user("x", "c1", "c2")
    claims = [claim("c1", 20), claim("c2", 20)]
    file = manifest(
        tmp_path, *({"kind": "ResourceClaim", **item} for item in claims), {"kind": "Pod", **both}
    )
    (result,) = document_of("--pods", file)["pods"]
    assert result["reasons"] == [{"reason": TOO_FEW, "nodes": 1}]


def test_more_nodes_are_counted_for_pods_by_annotation_alone(
    kubectl: FakeKubectl, document_of: DocumentOf, wrong: Callable[..., str]
) -> None:
    kubectl.cluster(
        [node("a", inventory=inventory(16)), node("n2", 0)],
        [pending(f"p{n}", 16) for n in range(3)] + [user("c", "c")],
        page=500,
        slices=SLICES[1:],
        claims=[claim("c", 20)],
    )
    answer = document_of("--need")
    assert (answer["needed"], answer["shapes"][0]["name"]) == (2, "like a")
    assert "others" not in answer
    assert "pods with claims do not count for --need" in answer["notes"]
    for words in (("--resource", CLASS), ("--shape", "n2")):
        assert "--need counts nodes for pods by annotation" in wrong("--need", *words)


def test_a_table_has_no_devices_for_claims(
    document_of: DocumentOf, wrong: Callable[..., str], tmp_path: Path
) -> None:
    table = tmp_path / "nodes.csv"
    table.write_text("name,cpu_milli,memory_mib,gpu,units,model\nn,8000,1024,2,24,A10\n")
    file = manifest(tmp_path, template("t", "20Gi"), deployment("w", 3, user("x", template="t")))
    words = ("--nodes", str(table), "--pods", file)
    assert "--resource gpushare.io: a table has no ResourceSlices" in wrong(
        *words, "--resource", CLASS
    )
    assert "asks by claims, which do not count here: a table has no ResourceSlices" in wrong(*words)


@pytest.mark.usefixtures("cluster")
def test_what_cannot_be_counted_is_said_in_one_line(
    kubectl: FakeKubectl, wrong: Callable[..., str], tmp_path: Path
) -> None:
    def of(*documents: Json) -> str:
        return wrong("--pods", manifest(tmp_path, *documents))

    has = {"kind": "Pod", **user("has", "small")}
    assert "Pod has: all its claims have devices already, so it needs none" in of(has)
    assert "there is no claim team/gone" in of({"kind": "Pod", **user("p", "gone")})
    assert "there is no ResourceClaimTemplate team/gone" in of(
        deployment("p", 1, user("p", template="gone"))
    )
    second = template("other", "1Gi", deviceClassName="other")
    alien = {"kind": "Pod", **user("p", template="other")}
    assert "there is no DeviceClass other" in of(second, alien)
    assert "has no pods" in of(second)
    broken = template("t", "1Gi") | {"spec": {"spec": "x"}}
    assert "ResourceClaimTemplate t: " in of(broken, alien)
    both = {"kind": "Pod", **user("p", template="t")}
    asks = {"kind": "Pod", **pod("q", "", 4)}
    gang = manifest(tmp_path, template("t", "1Gi"), both, asks)
    assert "some pods ask by annotation and some by claims" in wrong("--gang", gang)
    kubectl.cluster([node("a")], [], page=500)
    assert "asks by claims, which do not count here: no ResourceSlice has a device" in of(has)
    assert "--resource gpushare.io: no ResourceSlice" in wrong("--resource", CLASS, "--need")


def test_of_two_drivers_one_has_to_be_named(
    kubectl: FakeKubectl, document_of: DocumentOf, wrong: Callable[..., str]
) -> None:
    second = slice_on("n2", device(3, 40))
    second["spec"]["driver"] = "gpu.other.com"
    kubectl.cluster(
        [node("a"), node("n1", 0), node("n2", 0)],
        [],
        page=500,
        slices=[SLICES[0], second],
        claims=[],
    )
    assert (
        "of the drivers gpu.example.com and gpu.other.com one has to be named by --claims"
        in wrong("--resource", CLASS, "--pods", "1GiB")
    )
    answer = document_of("--pods", "1GiB x 2")
    assert any("one has to be named by --claims" in note for note in answer["notes"])
    names = ("--resource", CLASS, "--pods", "40GiB", "--claims", "gpu.other.com")
    assert fits(document_of(*names)) == [("40GiB", 1, {"n2": 1})]
    assert "no slice of nobody has a device with memory" in wrong(
        "--pods", "1GiB", "--claims", "nobody"
    )
