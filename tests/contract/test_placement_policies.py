"""The policies that reserve placements for the extender: refused and permitted requests.

The expressions run in an interpreter of CEL; tests/e2e has their evaluation by kube-apiserver.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.model import Allocation, Request
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from tests.contract.admission import Call, policies, refusals
from tests.contract.manifests import EXTENDER, one, rendered

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH to render with"),
]

Json = dict[str, Any]

MEM = ALIYUN.resource
ASKED = Request(4, 1, containers=((0, 4),), percents=compute(30), percent_containers=(((0, 30),),))
WRITTEN = (*encode(Allocation("n", ((0, 4),)), ASKED, 16, "1", ALIYUN),)
OURS = tuple(sorted({*WRITTEN, ALIYUN.given}))
PLUGIN = "system:serviceaccount:kube-system:gpushare-device-plugin"
EXTENDERS = ("system:serviceaccount:kube-system:gpushare-extender", "gpushare-extender")
MARKS = (ALIYUN.assigned, ALIYUN.assume_time, ALIYUN.given)
NODES = ("system:nodes", "system:authenticated")
NODE_NAME = "authentication.kubernetes.io/node-name"
MIRROR = "kubernetes.io/config.mirror"


def pod(units: int = 4, node: str = "", /, **annotations: str) -> Json:
    limits = {"limits": {MEM: str(units)}} if units else {}
    spec: Json = {"containers": [{"name": "main", "image": "x", "resources": limits}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": spec}


def refused(call: Call, *parts: str) -> bool:
    """Whether exactly one message refuses the call; it must contain these parts."""
    reasons = refusals("placements", call)
    assert len(reasons) <= 1, reasons
    assert all(part in reasons[0] for part in parts) if reasons else True, reasons
    return bool(reasons)


# -- new pods -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("units", [0, 4])
def test_a_new_pod_brings_none_of_our_annotations(name: str, units: int) -> None:
    assert refused(Call("CREATE", pod(units, **{name: "0"})), f"leave out the annotation {name}:")


@pytest.mark.parametrize("user", ["admin", PLUGIN, *EXTENDERS])
def test_whoever_creates_it(user: str) -> None:
    assert refused(Call("CREATE", pod(**{ALIYUN.idx: "0"}), user=user, groups=("system:masters",)))


def _asking(path: str, amount: str, containers: str) -> Json:
    body = pod(0, "n1")
    asks = {"name": "c", "resources": {path: {MEM: amount}}}
    body["spec"][containers] = [*body["spec"].get(containers, ()), asks]
    return body


@pytest.mark.parametrize("path", ["limits", "requests"])
@pytest.mark.parametrize("containers", ["containers", "initContainers"])
@pytest.mark.parametrize("amount", ["1", "0"])
def test_a_new_pod_that_asks_for_gpu_memory_names_no_node(
    path: str, containers: str, amount: str
) -> None:
    assert refused(Call("CREATE", _asking(path, amount, containers)), "leave out spec.nodeName")


def test_a_mirror_is_taken_from_a_node_alone() -> None:
    mirror = pod(4, "n1", **{MIRROR: "h", ALIYUN.idx: "0"})
    assert not refused(Call("CREATE", mirror, user="system:node:n1", groups=NODES))
    assert refusals("placements", Call("CREATE", mirror))
    plain = pod(4, "n1")
    assert refused(Call("CREATE", plain, user="system:node:n1", groups=NODES))


@pytest.mark.parametrize(
    "body",
    [
        pod(4),
        pod(0),
        pod(0, "n1"),
        pod(4, **{ALIYUN.count: "2", "gpushare.io/policy": "spread", "note": "x"}),
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}},
        {"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}},
        {"metadata": {}, "spec": {"nodeName": "", "containers": [{"name": "c", "resources": {}}]}},
    ],
)
def test_what_users_may_write_passes(body: Json) -> None:
    assert not refused(Call("CREATE", body))


# -- edits --------------------------------------------------------------------------------------


def _put(name: str, annotations: Json) -> None:
    annotations[name] = "1"


def edit(change: Callable[[Json], object], **more: Any) -> Call:
    """An update of a pod that the extender has bound to n1."""
    before = pod(4, "n1", **dict.fromkeys(OURS, "0"), note="x")
    after = pod(4, "n1", **before["metadata"]["annotations"])
    change(after["metadata"]["annotations"])
    return Call("UPDATE", after, before, **more)


@pytest.mark.parametrize("resource", ["pods", "pods/status", "pods/resize", "pods/to-come"])
@pytest.mark.parametrize("name", OURS)
def test_nobody_changes_an_annotation_of_ours(name: str, resource: str) -> None:
    for change in (
        lambda annotations: annotations.update({name: "1"}),
        lambda annotations: annotations.pop(name),
    ):
        for user in ("tenant", *EXTENDERS, "system:node:n1"):
            call = edit(change, resource=resource, user=user, groups=NODES)
            assert refused(call, f"leave the annotation {name} as it is")


@pytest.mark.parametrize("name", OURS)
def test_nobody_adds_one(name: str) -> None:
    before, after = pod(4), pod(4, **{name: "0"})
    for user in ("tenant", PLUGIN):
        call = Call("UPDATE", after, before, user=user)
        assert refusals("placements", call)
        del before["metadata"]["annotations"]
        assert refusals("placements", call)
        before = pod(4)


def test_the_plug_in_marks_pods_of_its_own_node_and_changes_nothing_else() -> None:
    def marked(annotations: Json) -> None:
        annotations.update(dict.fromkeys(MARKS, "1"))

    on_node = {NODE_NAME: ["n1"]}
    assert not refused(edit(marked, user=PLUGIN, extra=on_node))
    assert not refused(edit(marked, user=PLUGIN, resource="pods/status", extra=on_node))
    # Before 1.30 a token does not name the node of its pod.
    assert not refused(edit(marked, user=PLUGIN))
    assert not refused(edit(marked, user=PLUGIN, extra={"other": ["x"]}))
    assert refused(edit(marked, user=PLUGIN, extra={NODE_NAME: ["n2"]}), "of its own node")
    assert refused(edit(marked), "device plug-in alone")
    for name in set(OURS) - set(MARKS):
        call = edit(partial(_put, name), user=PLUGIN)
        assert refused(replace(call, extra=on_node), "which devices the pod has")


def test_all_else_of_a_bound_pod_may_change() -> None:
    assert not refused(
        edit(lambda annotations: annotations.update({"note": "y", ALIYUN.count: "2"}))
    )
    assert not refused(edit(lambda annotations: annotations.pop("note")))
    bare: Json = {"metadata": {"name": "p"}, "spec": {}}
    assert not refused(Call("UPDATE", bare, bare))
    assert not refused(Call("UPDATE", pod(0, note="x"), bare))


# -- bindings, static pods ----------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("name", OURS)
def test_a_binding_with_a_placement_comes_from_the_extender_alone(name: str, resource: str) -> None:
    binding = {"metadata": {"name": "p", "annotations": {name: "0"}}, "target": {"name": "n"}}
    for user in ("system:kube-scheduler", "admin", PLUGIN):
        assert refused(Call("CREATE", binding, resource=resource, user=user), "extender of gpush")
    for user in EXTENDERS:
        assert not refused(Call("CREATE", binding, resource=resource, user=user))


@pytest.mark.parametrize("metadata", [{}, {"annotations": {}}, {"annotations": {"note": "x"}}])
def test_another_binding_may_be_anybodys(metadata: Json) -> None:
    assert not refused(Call("CREATE", {"metadata": metadata}, resource="pods/binding"))


def test_the_mirror_of_a_static_pod_is_deleted_by_its_node_or_the_controllers_alone() -> None:
    mirror = pod(4, "n1", **{MIRROR: "h"})
    assert refused(Call("DELETE", None, mirror), "take the pod's file away")
    assert refused(Call("DELETE", None, mirror, user="admin", groups=("system:masters",)))
    assert not refused(Call("DELETE", None, mirror, user="system:node:n1", groups=NODES))
    for controller in (
        "system:kube-controller-manager",
        "system:serviceaccount:kube-system:pod-garbage-collector",
    ):
        assert not refused(Call("DELETE", None, mirror, user=controller))
    assert not refused(Call("DELETE", None, pod(0, "n1", **{MIRROR: "h"})))
    assert not refused(Call("DELETE", None, pod(4, "n1")))
    assert not refused(Call("DELETE", None, {"metadata": {}, "spec": {}}))


# -- all of them --------------------------------------------------------------------------------


def test_every_list_of_names_has_exactly_what_a_binding_writes() -> None:
    assert len(policies("placements")) == 4
    for spec in policies("placements"):
        for item in (*spec["matchConditions"], *spec.get("variables", ())):
            quoted = set(item["expression"].split("'")[1::2])
            if ALIYUN.idx in quoted:
                assert quoted & {*OURS, ALIYUN.inventory} == set(OURS), item["name"]


def test_what_cannot_be_evaluated_is_refused_and_each_binding_denies() -> None:
    for spec in policies("placements"):
        assert spec["failurePolicy"] == "Fail"
        assert "paramKind" not in spec
    names = [item["metadata"]["name"] for item in rendered("placements")]
    for name in set(names):
        binding = one("placements", "ValidatingAdmissionPolicyBinding", name)
        assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}


def test_the_patch_that_is_shown_changes_the_accounts_of_plug_ins() -> None:
    text = (EXTENDER / "placements" / "kustomization.yaml").read_text()
    (policy,) = re.findall(r"#\s+- target: {kind: ValidatingAdmissionPolicy, name: (\S+)}", text)
    (index,) = re.findall(r"#\s+path: /spec/variables/(\d+)/expression", text)
    spec = one("placements", "ValidatingAdmissionPolicy", policy)["spec"]
    assert spec["variables"][int(index)]["name"] == "plugins"


_TEXT = st.text(max_size=5)
_AMOUNTS = st.dictionaries(st.sampled_from(["cpu", MEM]), _TEXT, max_size=2)
_RESOURCES = st.fixed_dictionaries({}, optional={"limits": _AMOUNTS, "requests": _AMOUNTS})
_CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": _TEXT}, optional={"resources": _RESOURCES}), max_size=2
)
_PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={"annotations": st.dictionaries(st.sampled_from([*OURS, MIRROR, "x"]), _TEXT)},
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "nodeName": st.sampled_from(["", "n1"]),
                "containers": _CONTAINERS,
                "initContainers": _CONTAINERS,
            },
        ),
    }
)


@given(_PODS, _PODS, st.sampled_from(["tenant", PLUGIN]), st.sampled_from([(), NODES]))
def test_every_pod_can_be_judged(new: Json, old: Json, user: str, groups: tuple[str, ...]) -> None:
    for call in (Call("CREATE", new), Call("UPDATE", new, old), Call("DELETE", None, old)):
        refusals("placements", replace(call, user=user, groups=groups))
