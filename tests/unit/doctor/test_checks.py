"""Each finding of doctor, provoked by one change of a healthy cluster's facts."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.core.amounts import compute
from gpushare.core.model import Request
from gpushare.doctor.checks.scheduler_file import BIND_BUDGET
from gpushare.doctor.checks.server import EXCESS, lease_rights, optional_rights
from gpushare.doctor.facts import (
    ApiServer,
    Certificate,
    ListedNode,
    ListedPod,
    ListedPods,
    PluginPod,
    Right,
    StrayPod,
    Unread,
)
from gpushare.doctor.report import failed, run_checks
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare.wire.annotations import Names
from gpushare.wire.device_list import DeviceList
from tests.unit.doctor.facts import (
    CORES,
    MEM,
    NOW,
    RIGHTS,
    bound,
    closing,
    config,
    extender,
    found,
    healthy,
    lease,
    node,
    policy,
    waiting,
)

LIMITED = Request(4, 1, memory_limit=10)
SHOWN = {"certFile": "client.crt", "keyFile": "client.key"}
TLS = {"caFile": "ca.crt", **SHOWN}
HTTPS = "https://10.0.0.1:32766/gpushare-scheduler"
BROKEN = '{"v":1,"unit":"GiB","devices":[{"mem":-1}]}'
MIB = '{"v":1,"unit":"MiB","devices":[{"mem":16384},{"mem":16384}]}'
GIB = '{"v":1,"unit":"GiB","devices":[{"mem":16},{"mem":16}]}'
OTHER = '{"v":1,"unit":"GiB","devices":[{"mem":16},{"mem":24}]}'
MARKS = '{"v":1,"unit":"GiB","marksAssigned":true,"devices":[{"mem":32}]}'
CARDS = '{"v":1,"unit":"GiB","devices":[{"mem":16,"uuid":"GPU-a"},{"mem":16,"uuid":"GPU-b"}]}'
SICK = (
    '{"v":1,"unit":"GiB","devices":[{"mem":16},{"mem":16,"healthy":false,"problem":"needs a reset,'
    ' as NVML says"},{"mem":0,"healthy":false}]}'
)
ADDED = '{"v":1,"unit":"GiB","devices":[{"mem":16},{"mem":16}],"uncounted":["GPU-new"]}'
OWN = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
TOO_LARGE = "1 GPU Memory request is larger than any healthy device"
LATE = "binding rejected: gpushare: node 'a': device 0 has no room for 8 units any more"
LONG = '{"v":1,"unit":"MiB","devices":[{"mem":81920},{"mem":81920},{"mem":81920}]}'


def handing(strategy: str, problem: str = "", **more: Any) -> ListedNode:
    """Return a node with a device list of its device plug-in."""
    return replace(node(**more), device_list=DeviceList(strategy, "a reason", problem))


def plugins(*gpu: ListedPod, **parts: Any) -> dict[str, Any]:
    """Pods that ask, and a pod of our device plug-in."""
    pod = PluginPod(**{"name": "kube-system/p", "node": "n1", **parts})
    return {"pods": ListedPods(gpu=[*gpu], plugins=[pod])}


KEPT = {"nodes": (replace(node(), is_kept=True),)}


def option(metric: str) -> dict[str, Any]:
    """An extender with the option of this metric."""
    facts = extender()
    return {"extender": replace(facts, samples={**facts.samples, f"gpushare_{metric}": 1.0})}


def pods(*gpu: Any, **more: Any) -> dict[str, Any]:
    return {"pods": ListedPods([*gpu], **more)}


def on_cards(**changes: Any) -> dict[str, Any]:
    """A pod on a node of two cards that are named."""
    return {"nodes": (node(inventory=CARDS),), **pods(bound(**changes))}


def samples(**changes: float) -> dict[str, Any]:
    kept_nodes = {k: v for k, v in extender().samples.items() if "requests" not in k}
    return {"extender": extender(samples=kept_nodes | changes)}


def standing_by() -> dict[str, Any]:
    """An extender that nobody has called, as another one leads."""
    text = "[+]nodes ok\n[-]leadership another process leads, or nobody does yet\n"
    called = {k: v for k, v in extender().samples.items() if "requests" not in k}
    return {"extender": extender(ready=503, ready_text=text, samples=called)}


def ended() -> dict[str, Any]:
    """A Lease that nobody renews."""
    return {"leases": (lease(renewed=NOW - 99),)}


def alarmed() -> dict[str, Any]:
    alarm = 'gpushare_alarms_total{kind="bound_by_another",resource="aliyun.com/gpu-mem"}'
    return {"extender": extender(samples={**extender().samples, alarm: 2.0})}


def entry(**changes: Any) -> dict[str, Any]:
    return {"scheduler": config(**changes)}


def managing(*ignored: bool, **changes: Any) -> dict[str, Any]:
    """Return an entry that manages compute too, with these changes."""
    resources = [{"name": MEM}, *({"name": CORES, "ignoredByScheduler": item} for item in ignored)]
    return entry(managedResources=resources) | changes


def asking(**changes: Any) -> ListedPod:
    """A pod that waits and asks for compute."""
    return waiting(request=Request(4, 1, percents=compute(30)), **changes)


def without(*lacking: Right) -> dict[str, Any]:
    return {"rights": {right: right not in lacking for right in RIGHTS}}


def many(nodes: int) -> tuple[ListedNode, ...]:
    return tuple(node(name=f"n{number}") for number in range(nodes))


def profiles(*percentages: int | None) -> dict[str, object]:
    """Profiles of a scheduler's file, each with a percentage of its own unless that is None."""
    return {
        "profiles": [
            {"schedulerName": f"s{index}", "percentageOfNodesToScore": percentage}
            for index, percentage in enumerate(percentages)
        ]
    }


def election(**fields: object) -> dict[str, object]:
    return {"leaderElection": fields}


def following(name: str = "kube-scheduler", **changes: Any) -> dict[str, Any]:
    """The rights of the static pods: no Lease of their own, only a look at kube-scheduler's."""
    lease = Right("get", "leases", "coordination.k8s.io", "kube-system", name)
    return {"rights": without(*lease_rights("kube-system"))["rights"] | {lease: True}, **changes}


def of_a_second_scheduler() -> dict[str, Any]:
    """As above, but it may create Leases: as all may that have kube-scheduler's rights, too."""
    lacking = [right for right in lease_rights("kube-system") if right.verb != "create"]
    return {"rights": following()["rights"] | without(*lacking)["rights"]}


CREATE = Right("create", "pods/binding")
NO_LEASES = Unread("403", "do", level="warn")
FORBIDDEN = Unread("pods cannot be read: GET /api/v1/pods: 403 forbidden", "let this account list")

# (check, level, words of the finding, changes)
BOTH = replace(node(), whole=("nvidia.com/gpu",))

MIXED = (node(cores="200"), node(name="n2"))
"""Return nodes; one of them advertises compute."""


PROVOKED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("api-server", "fail", "no such host", {"api": Unread("no such host", "do")}),
    ("api-version", "fail", "ignores the uid", {"api": ApiServer("v1.22.1", 22)}),
    ("api-version", "skip", "no version", {"api": ApiServer("odd", 0)}),
    ("clock", "warn", "the API server is 7 s ahead", {"api": ApiServer("v1.32.0", 32, 7.0)}),
    ("clock", "warn", "the extender is 60 s behind", {"extender": extender(ahead=-60.0)}),
    ("clock", "skip", "what time", {"api": ApiServer("v1.32.0", 32), "extender": None}),
    ("scheduler-file", "skip", "not given", {"scheduler": None}),
    ("scheduler-file", "fail", "f: weight", {"scheduler": Unread("f: weight: must be", "do")}),
    ("scheduler-file", "warn", "colour", entry(colour="red")),
    ("scheduler-version", "fail", "a Policy is read by", {"scheduler": policy()}),
    ("scheduler-version", "skip", "not known", {"api": ApiServer("odd", 0)}),
    ("scheduler-version", "fail", "1.24 runs", pods(schedulers=("v1.24.3",))),
    ("scheduler-version", "warn", "1.24", pods(schedulers=("v1.24.3", "v1.30.1"))),
    ("scheduler-version", "ok", "1.30", pods(schedulers=("v1.30.1",))),
    (
        "scheduler-version",
        "fail",
        "1.26 does not start: delayCacheUntilActive: kube-scheduler has this key from 1.28 on",
        pods(schedulers=("v1.26.1",)) | {"scheduler": config(top={"delayCacheUntilActive": True})},
    ),
    ("extender-entry", "fail", "none has", entry(filterVerb=None, bindVerb=None)),
    ("extender-entry", "fail", "no filterVerb", entry(filterVerb=None)),
    ("extender-entry", "fail", "no bindVerb", entry(bindVerb=None)),
    ("extender-entry", "warn", "no prioritizeVerb", entry(prioritizeVerb=None)),
    ("extender-entry", "warn", "no preemptVerb", entry(preemptVerb=None)),
    ("extender-entry", "warn", "no preemptVerb", entry(preemptVerb=None, prioritizeVerb=None)),
    ("managed-resources", "warn", "every pod", entry(managedResources=[])),
    ("managed-resources", "fail", "a.b/c", entry(managedResources=[{"name": "a.b/c"}])),
    (
        "managed-resources",
        "warn",
        "ignoredByScheduler: true",
        entry(managedResources=[{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": True}]),
    ),
    ("weight", "ok", "one voice", entry(weight=1)),
    ("weight", "skip", "no effect", entry(prioritizeVerb=None)),
    ("http-timeout", "fail", "2 s is not more", entry(httpTimeout="2s")),
    ("http-timeout", "warn", "leaves a bind 1 s to wait", entry(httpTimeout="5s")),
    ("node-cache", "warn", "whole nodes", entry(nodeCacheCapable=False)),
    ("ignorable", "fail", "bound without devices", entry(ignorable=True)),
    (
        "node-sample",
        "warn",
        "not set with 101 nodes",
        {"scheduler": config(top={"percentageOfNodesToScore": 0}), "nodes": many(101)},
    ),
    (
        "node-sample",
        "warn",
        "is 30 with 101 nodes",
        {"scheduler": config(top=profiles(30, None)), "nodes": many(101)},
    ),
    ("node-sample", "warn", "not set", {"scheduler": config(top=profiles(0)), "nodes": many(101)}),
    (
        "node-sample",
        "ok",
        "is 100: all",
        {
            "scheduler": config(top={"percentageOfNodesToScore": 0, **profiles(100, 100)}),
            "nodes": many(101),
        },
    ),
    (
        "node-sample",
        "ok",
        "of up to 100 nodes all",
        {"scheduler": config(top={"percentageOfNodesToScore": 50}), "nodes": many(100)},
    ),
    ("node-sample", "ok", "all are", {"scheduler": config(top={"percentageOfNodesToScore": 50})}),
    ("node-sample", "skip", "Policy", {"scheduler": policy()}),
    ("extender-address", "fail", "not to that path", {"route": 404}),
    ("extender-address", "fail", "200", {"route": 200}),
    ("extender-address", "warn", "refused", {"route": Unread("refused", "do", level="warn")}),
    (
        "extender-address",
        "warn",
        "cluster's DNS",
        entry(urlPrefix="http://gpushare.kube-system.svc:32766/gpushare-scheduler"),
    ),
    (
        "extender-address",
        "ok",
        "answers",
        entry(urlPrefix="http://gpushare.example.local:32766/gpushare-scheduler"),
    ),
    ("extender-address", "skip", "not called", {"route": None}),
    ("tls", "warn", "plain http to 10.0.0.1", entry(urlPrefix="http://10.0.0.1:1/p")),
    ("tls", "warn", "not verify", entry(urlPrefix=HTTPS, enableHTTPS=True, tlsConfig=SHOWN)),
    ("tls", "warn", "not verify", entry(urlPrefix=HTTPS, tlsConfig={"insecure": True, **SHOWN})),
    ("tls", "warn", "its image knows", entry(urlPrefix=HTTPS, tlsConfig=SHOWN)),
    ("tls", "fail", "no client certificate", entry(urlPrefix=HTTPS, enableHTTPS=True)),
    (
        "tls",
        "fail",
        "no client certificate",
        entry(urlPrefix=HTTPS, enableHTTPS=True, tlsConfig={"caFile": "ca.crt"}),
    ),
    ("tls", "ok", "verified", entry(urlPrefix=HTTPS, enableHTTPS=True, tlsConfig=TLS)),
    ("certificates", "fail", "2027-01-1", {"certificates": (Certificate("c", NOW - 9),)}),
    ("certificates", "warn", "ends on", {"certificates": (Certificate("c", NOW + 86400),)}),
    ("certificates", "fail", "no PEM", {"certificates": (Certificate("c", broken="no PEM"),)}),
    ("certificates", "ok", "good until", {"certificates": (Certificate("c", NOW + 1e8),)}),
    ("extender", "skip", "not asked", {"extender": None}),
    ("extender", "fail", "refused", {"extender": Unread("refused", "do")}),
    ("extender", "fail", "/livez says 503", {"extender": extender(live=503)}),
    (
        "extender",
        "fail",
        "pods are not listed yet",
        {
            "extender": extender(
                ready=503, ready_text="[+]nodes ok\n[-]pods pods are not listed yet\n"
            )
        },
    ),
    ("extender", "warn", "does not lead", standing_by()),
    ("filter-calls", "skip", "does not lead", standing_by() | pods(waiting())),
    ("extender-version", "warn", "another program", {"extender": extender(samples={})}),
    (
        "extender-version",
        "warn",
        "0.0.0-other",
        {"extender": extender(samples={'gpushare_build_info{version="0.0.0-other"}': 1.0})},
    ),
    (
        "policy",
        "ok",
        "ranked by binpack; % of the memory allocated in the last trial: binpack 81.5",
        samples(
            **{
                'gpushare_ranking_policy{policy="binpack",resource="gpu"}': 1.0,
                'gpushare_trial_allocated_percent{policy="binpack",resource="gpu"}': 81.53,
                'gpushare_trial_allocated_percent{policy="spread",resource="npu"}': 1.0,
            }
        ),
    ),
    ("filter-calls", "fail", "1 GPU pod waiting", samples() | pods(waiting())),
    ("filter-calls", "warn", "no GPU pod", samples() | pods()),
    ("filter-calls", "warn", "no GPU pod", samples() | pods(waiting(message=OWN))),
    (
        "filter-calls",
        "fail",
        "waiting for 301 s",
        samples(gpushare_pending_without_call_seconds=301.0),
    ),
    (
        "filter-calls",
        "warn",
        "waiting for 61 s",
        samples(gpushare_pending_without_call_seconds=61.0),
    ),
    ("rights", "fail", "may not create pods/binding", without(CREATE)),
    ("rights", "warn", "account used here", without(CREATE) | {"own_account": False}),
    ("rights", "ok", "not its own", {"own_account": False}),
    ("rights", "fail", "create leases.coordination.k8s.io", without(*lease_rights("kube-system"))),
    ("rights", "ok", "needed with --leadership scheduler", following()),
    (
        "rights",
        "fail",
        "create leases.coordination.k8s.io",
        following(scheduler=config(top=election(resourceName="mine"))),
    ),
    (
        "rights",
        "ok",
        "needed with --leadership scheduler",
        following("mine", scheduler=config(top=election(resourceName="mine"))),
    ),
    (
        "rights",
        "fail",
        "create leases.coordination.k8s.io",
        following(scheduler=config(top=election(leaderElect=False))),
    ),
    ("rights", "warn", "update leases.coordination.k8s.io", of_a_second_scheduler()),
    ("leadership", "warn", "403", of_a_second_scheduler() | {"leases": NO_LEASES}),
    ("rights", "fail", "cannot be read", {"rights": Unread("rights cannot be read", "do")}),
    (
        "rights-useful",
        "warn",
        "no ConfigMap closes devices",
        without(Right("list", "configmaps", "", "kube-system")),
    ),
    (
        "rights-useful",
        "warn",
        "does not spare pods",
        without(Right("list", "poddisruptionbudgets", "policy")),
    ),
    (
        "rights-useful",
        "warn",
        "bound pod by pod",
        without(Right("watch", "jobsets", "jobset.x-k8s.io")),
    ),
    ("rights-to-spare", "warn", "patch pods", {"rights": RIGHTS | dict.fromkeys(EXCESS, True)}),
    ("rights-moves", "ok", "all that moves need", option("moves_left")),
    (
        "rights-moves",
        "fail",
        "may not create pods/eviction",
        option("moves_left") | without(Right("create", "pods/eviction")),
    ),
    (
        "rights-moves",
        "fail",
        "may not update configmaps in kube-system",
        option("moves_left")
        | without(Right("update", "configmaps", "", "kube-system", "gpushare-moves")),
    ),
    ("autoscalers", "ok", "nothing is left", {}),
    ("autoscalers", "ok", "nothing is left", option("scale_down_kept_nodes") | KEPT),
    ("autoscalers", "warn", "kept from scale-down: n1", KEPT),
    (
        "autoscalers",
        "fail",
        "may not patch nodes",
        option("scale_down_kept_nodes") | without(Right("patch", "nodes")),
    ),
    (
        "autoscalers",
        "ok",
        "nothing is left",
        option("scale_down_kept_nodes") | without(Right("patch", "nodes")) | {"own_account": False},
    ),
    (
        "autoscalers",
        "warn",
        "placeholders that have failed since the extender started: 1",
        option("placeholders_failed_writes_total"),
    ),
    ("autoscalers", "warn", "still some: asks/for-a", pods(placeholders=("asks/for-a",))),
    (
        "autoscalers",
        "ok",
        "nothing is left",
        option("placeholders") | pods(placeholders=("asks/for-a",)),
    ),
    ("gpu-nodes", "fail", "no node offers", {"nodes": (node(total=None),)}),
    ("gpu-nodes", "fail", "no node offers", {"nodes": ()}),
    ("gpu-nodes", "fail", "403", {"nodes": Unread("403 forbidden", "do")}),
    (
        "node-capacity",
        "fail",
        "n1: aliyun.com/gpu-mem is no multiple",
        {"nodes": (node(total="33"),)},
    ),
    (
        "node-capacity",
        "fail",
        "n1: aliyun.com/gpu-mem is there and aliyun.com/gpu-count is not",
        {"nodes": (node(count="0"),)},
    ),
    ("node-capacity", "fail", "cannot be read", {"nodes": (node(total="many"),)}),
    ("node-capacity", "fail", "cannot be read", {"nodes": (node(total=[1]),)}),
    (
        "node-capacity",
        "fail",
        "n1: label gpushare.io/max-sharers is no number",
        {"nodes": (node(labels={"gpushare.io/max-sharers": "few"}),)},
    ),
    (
        "node-capacity",
        "warn",
        "n1: label gpushare.io/max-sharer has no effect",
        {"nodes": (node(labels={"gpushare.io/max-sharer": "4"}), node(name="b"))},
    ),
    (
        "node-capacity",
        "warn",
        "n1: annotation gpushare.io/max-sharers has no effect",
        {"nodes": (node(notes={"gpushare.io/max-sharers": "4"}),)},
    ),
    (
        "node-inventory",
        "fail",
        "devices[0].mem",
        {"nodes": (node(), node(name="b", inventory=BROKEN))},
    ),
    ("node-inventory", "warn", "not what the node", {"nodes": (node(inventory=OTHER),)}),
    ("node-inventory", "ok", "whole", {"nodes": (node(inventory=GIB),)}),
    ("closed-devices", "ok", "1 device closed by ConfigMaps on 1 node", {}),
    (
        "closed-devices",
        "ok",
        "0 devices closed by ConfigMaps",
        {"config_maps": (closing(gpus=""),)},
    ),
    (
        "closed-devices",
        "fail",
        "unhealthy-gpu-n1: cannot be read (gpus: 'x'",
        {"config_maps": (closing(gpus="0,x"),)},
    ),
    ("closed-devices", "fail", "no text under the key gpus", {"config_maps": (closing(gpu="0"),)}),
    (
        "closed-devices",
        "warn",
        "unhealthy-gpu-n2: there is no node n2",
        {"config_maps": (closing("n2", gpus="0"),)},
    ),
    ("closed-devices", "warn", "n1 has no device 2", {"config_maps": (closing(gpus="0,2,5"),)}),
    (
        "closed-devices",
        "ok",
        "2 devices",
        {"config_maps": (closing(gpus="0,1"),), "nodes": FORBIDDEN},
    ),
    ("closed-devices", "warn", "403 forbidden", {"config_maps": replace(FORBIDDEN, level="warn")}),
    ("node-unit", "fail", "counted in MiB", {"nodes": (node(inventory=MIB),)}),
    ("node-unit", "warn", "counted in MiB?", {"nodes": (node(total="32768"),)}),
    (
        "node-label",
        "fail",
        "gpu-9",
        {"nodes": (node(), node(name="gpu-9", total=None, labels={"gpushare": "true"}))},
    ),
    ("node-devices", "ok", "2 devices healthy", {"nodes": (node(inventory=CARDS),)}),
    (
        "node-devices",
        "warn",
        "n1 device 1 (needs a reset, as NVML says), n1 device 2 (without a reason): unhealthy",
        {"nodes": (node(inventory=SICK),)},
    ),
    (
        "node-devices",
        "warn",
        "GPU-new on n1: added while the device plug-in ran",
        {"nodes": (node(inventory=ADDED),)},
    ),
    (
        "two-device-plugins",
        "warn",
        "n1: NVIDIA's GPU operator is to run its device plug-in there",
        {"nodes": (node(labels={"nvidia.com/gpu.deploy.device-plugin": "true"}),)},
    ),
    (
        "two-device-plugins",
        "ok",
        "no node",
        {"nodes": (node(labels={"nvidia.com/gpu.deploy.device-plugin": "false"}),)},
    ),
    ("device-plugin-pods", "ok", "none is ours", {}),
    ("device-plugin-pods", "ok", "1 pod of", plugins(waiting_reason="ContainerCreating", age=60.0)),
    (
        "device-plugin-pods",
        "fail",
        "kube-system/p on n1: does not run (CrashLoopBackOff)",
        plugins(waiting_reason="CrashLoopBackOff", age=600.0),
    ),
    ("runtime-class", "ok", "no GPU pod lacks one", plugins(runtime_class="nvidia")),
    (
        "runtime-class",
        "warn",
        "default/a: names no RuntimeClass, and the device plug-in there names nvidia",
        {"nodes": (handing("envvar"),), **plugins(bound(), runtime_class="nvidia")},
    ),
    (
        "runtime-class",
        "ok",
        "",
        {"nodes": (handing("cdi-cri"),), **plugins(bound(), runtime_class="nvidia")},
    ),
    ("runtime-class", "ok", "", {"nodes": (handing("envvar"),), **plugins(bound())}),
    (
        "runtime-class",
        "ok",
        "",
        {
            "nodes": (handing("envvar"),),
            **plugins(bound(runtime_class="nvidia"), runtime_class="nvidia"),
        },
    ),
    ("device-handover", "ok", "no device plug-in tells", {}),
    (
        "device-handover",
        "ok",
        "by cdi-cri on 1 node, envvar on 1 node",
        {"nodes": (handing("cdi-cri"), handing("envvar", name="n2"))},
    ),
    (
        "device-handover",
        "fail",
        "n2: containers get no device (refused)",
        {"nodes": (handing("cdi-cri"), handing("envvar", "refused", name="n2"))},
    ),
    (
        "node-cards",
        "warn",
        "GPU-a on n1, n2, GPU-b on n1, n2: several nodes claim the same card",
        {"nodes": (node(inventory=CARDS), node(name="n2", inventory=CARDS))},
    ),
    ("node-allocatable", "fail", "nothing is allocatable", {"nodes": (node(usable="0"),)}),
    (
        "node-allocatable",
        "fail",
        "n2: nothing is allocatable",
        {"nodes": (node(), node(name="n2", total="0", count="0")), **pods(bound(node="n2"))},
    ),
    (
        "node-allocatable",
        "ok",
        "all",
        {"nodes": (node(), node(name="n2", total="0", count="0")), **pods(bound())},
    ),
    ("node-allocatable", "warn", "less allocatable", {"nodes": (node(usable="16"),)}),
    (
        "node-allocatable",
        "fail",
        "n1: nothing is allocatable",
        {"nodes": (node(total="0", inventory=GIB),)},
    ),
    ("node-state", "ok", "no node is cordoned", {"nodes": (node(),)}),
    ("node-state", "warn", "n1 (cordoned): kube-s", {"nodes": (node(cordoned=True),)}),
    ("node-state", "warn", "n1 (not ready): kube-s", {"nodes": (node(ready="Unknown"),)}),
    ("device-list", "warn", "68941", {"nodes": (node(total="81920", count="1"),)}),
    ("device-list", "fail", "195700", {"nodes": (node(unit="MiB", inventory=LONG),)}),
    ("compute", "ok", "no node advertises aliyun.com/gpu-core.percentage, and no pod asks", {}),
    ("compute", "skip", "--scheduler-config", {"scheduler": None}),
    ("compute", "skip", "told by the nodes", {"nodes": FORBIDDEN}),
    ("compute", "ok", "advertised by 1 of 2 nodes", managing(False, nodes=MIXED)),
    ("compute", "ok", "kube-scheduler counts it", entry(managedResources=None) | {"nodes": MIXED}),
    ("compute", "fail", "n1: the kubelet counts", managing(True, nodes=MIXED)),
    ("compute", "warn", "managedResources of the extender does not", managing(nodes=MIXED)),
    (
        "compute",
        "warn",
        "runs without any device",
        managing(nodes=MIXED, pods=ListedPods(cores_alone=[("default/c", "")])),
    ),
    (
        "compute",
        "fail",
        "without any device: default/c",
        managing(nodes=MIXED, pods=ListedPods(cores_alone=[("default/c", "n1")])),
    ),
    ("compute", "fail", "default/w: waits for ever", managing(False, **pods(asking()))),
    ("compute", "fail", "default/w: waits for ever", managing(**pods(asking()))),
    ("compute", "ok", "by the extender alone", managing(True, **pods(asking()))),
    ("compute", "ok", "no pod waits for it", managing(False, **pods(asking(node="n1")))),
    ("compute", "ok", "no pod waits for it", managing(False, **pods(asking(gated=True)))),
    ("compute", "ok", "advertised by 1 of 2", managing(False, nodes=MIXED, **pods(asking()))),
    ("pods", "fail", "403", {"pods": FORBIDDEN}),
    ("pods", "fail", "no quantity", pods(bound(broken="no quantity"))),
    ("pending-pods", "fail", "no scheduler has looked", pods(waiting(reason=None, message=""))),
    ("pending-pods", "ok", "since a moment", pods(waiting(reason=None, message="", age=3.0))),
    ("pending-pods", "ok", "none", pods(waiting(reason=None, message="", gated=True))),
    (
        "pending-pods",
        "fail",
        "failed filter with extender",
        pods(waiting(reason="SchedulerError", message="failed filter with extender at URL x")),
    ),
    (
        "pending-pods",
        "ok",
        "kube-scheduler's own filters leave no node: 0/1",
        pods(waiting(message="0/1 nodes are available: 1 Insufficient aliyun.com/gpu-mem.")),
    ),
    ("pending-pods", "warn", "without a word", pods(waiting(message="running PreBind: no"))),
    (
        "pending-pods",
        "ok",
        "its bind came too late, and is tried again",
        pods(waiting(reason="SchedulerError", message=LATE, age=20.0)),
    ),
    (
        "pending-pods",
        "fail",
        "scheduling fails: binding rejected",
        pods(waiting(reason="SchedulerError", message=LATE, age=3600.0)),
    ),
    ("pending-pods", "ok", "waits for room, as the extender has said: 0/1", pods(waiting())),
    (
        "pending-pods",
        "warn",
        "refused by the extender: 0/3",
        pods(waiting(message=f"0/3 nodes are available: {TOO_LARGE}, 2 Insufficient {MEM}.")),
    ),
    *[
        (
            "pending-pods",
            "warn",
            "refused by the extender: 0/1",
            pods(waiting(message=f"0/1 {reason}")),
        )
        for reason in (
            "GPU Memory request is larger than any healthy device",
            "gpushare.io/policy: no policy is called 'x'; there are: spread",
            "aliyun.com/gpu-mem, example.com/npu-mem: a pod may ask for one of them",
        )
    ],
    (
        "pending-pods",
        "warn",
        "default/w: refused by another scheduler, gpu-sched: 0/1",
        pods(waiting(scheduler="gpu-sched", message="0/1")),
    ),
    ("pods", "fail", "if MiB are meant, write 8", pods(waiting(request=Request(8192, 1)))),
    ("pods", "ok", "1 that", pods(waiting(request=Request(17, 1)))),
    ("pending-pods", "ok", "none", pods(waiting(request=Request(8192, 1), message="Insufficient"))),
    ("pod-extras", "warn", "default/a: sets it", pods(bound(misplaced="sets it"))),
    (
        "pod-extras",
        "warn",
        "default/b: asks",
        {"pods": ListedPods(without_memory=[("default/b", "asks")])},
    ),
    (
        "pod-extras",
        "warn",
        "default/c: is HAMi's",
        {"pods": ListedPods(strays=[StrayPod("default/c", "is HAMi's", frozenset({"x/gpu"}))])},
    ),
    (
        "pod-extras",
        "ok",
        "none asks",
        {"pods": ListedPods(strays=[StrayPod("default/c", "is HAMi's", frozenset({MEM}))])},
    ),
    ("two-device-plugins", "warn", "n1: gives out nvidia.com/gpu", {"nodes": (BOTH,)}),
    (
        "two-device-plugins",
        "fail",
        "given; default/w hold whole cards",
        {"nodes": (BOTH,), "pods": ListedPods(whole=[("default/w", "n1"), ("default/x", "n2")])},
    ),
    (
        "node-allocatable",
        "fail",
        "n1: nothing is allocatable, so the device plug-in is away",
        {"nodes": (node(total="0", inventory=CARDS),)},
    ),
    ("scheduler-names", "fail", "schedulerName gpu-sched", pods(waiting(scheduler="gpu-sched"))),
    ("scheduler-names", "ok", "go by", pods(bound(scheduler="gpu-sched"))),
    ("scheduler-names", "skip", "--scheduler-config", {"scheduler": None}),
    ("unplaced-pods", "warn", "default/a", pods(bound(placement=None))),
    ("unplaced-pods", "warn", "default/a", pods(bound(placement=((2, 4),)))),
    ("unplaced-pods", "ok", "none", pods(bound(node="gone"))),
    ("moved-devices", "ok", "none", pods(bound(uuids=("GPU-a",), node="gone"))),
    ("moved-devices", "ok", "none", on_cards(uuids=("GPU-b",), placement=((1, 4),))),
    ("moved-devices", "ok", "none", on_cards(uuids=())),
    ("moved-devices", "warn", "default/a: bound to cards", on_cards(uuids=("GPU-b",))),
    ("moved-devices", "warn", "default/a: bound to cards", on_cards(uuids=("GPU-gone",))),
    ("moved-devices", "warn", "default/a", on_cards(uuids=("GPU-a",), placement=((7, 4),))),
    ("moved-devices", "skip", "told by the nodes", {"nodes": FORBIDDEN}),
    ("memory-limits", "ok", "every device has the memory", pods(bound(request=LIMITED))),
    (
        "memory-limits",
        "ok",
        "every device has the memory",
        pods(*[bound(request=Request(10, 1), placement=((0, 10),))] * 2),
    ),
    ("memory-limits", "skip", "told by the nodes", {"nodes": FORBIDDEN}),
    (
        "memory-limits",
        "warn",
        "device 0 of node n1: limits of 20 on 16 (GiB): a program may find no memory",
        pods(bound(request=LIMITED), bound(request=LIMITED), waiting(request=LIMITED)),
    ),
    ("unserved-pods", "ok", "none", pods(bound(bound_at=NOW - 301))),
    ("unserved-pods", "ok", "none", pods(bound(assigned=False, bound_at=NOW - 299))),
    (
        "unserved-pods",
        "ok",
        "none",
        pods(bound(assigned=False, bound_at=NOW - 301, placement=None)),
    ),
    ("unserved-pods", "ok", "none", pods(bound(assigned=False, bound_at=NOW - 301, node="gone"))),
    ("unserved-pods", "ok", "none", pods(waiting(assigned=False))),
    ("unserved-pods", "warn", "default/a: bound", pods(bound(assigned=False, bound_at=NOW - 301))),
    (
        "unserved-pods",
        "ok",
        "none",  # the original's plug-in marks none on a node of one device
        {"nodes": (node(count="1"),), **pods(bound(assigned=False, bound_at=NOW - 301))},
    ),
    (
        "unserved-pods",
        "warn",
        "(n1)",
        {"nodes": (node(count="1", inventory=MARKS),), **pods(bound(assigned=False, bound_at=1.0))},
    ),
    (
        "unserved-pods",
        "ok",
        "none",
        {"api": ApiServer("v1.32.0", 32, -9.0), **pods(bound(assigned=False, bound_at=NOW - 301))},
    ),
    ("unserved-pods", "skip", "told by the nodes", {"nodes": FORBIDDEN}),
    (
        "two-binders",
        "fail",
        "the original extender runs too",
        pods(originals=("kube-system/gpushare-schd-extender-x",)),
    ),
    (
        "two-binders",
        "warn",
        "outside kube-system: team/gpushare-schd-extender-x",
        pods(alike=("team/gpushare-schd-extender-x",)),
    ),
    (
        "two-binders",
        "fail",
        "gpu, kube-system",
        {"leases": (lease(), lease(namespace="gpu", holder="pod-2"))},
    ),
    ("two-binders", "fail", "by somebody else", pods(bound(mapped=False))),
    ("two-binders", "ok", "no sign", pods(bound(mapped=False, bound_at=NOW - 2000))),
    ("two-binders", "ok", "no sign", pods(bound(mapped=False, assumed=False))),
    ("two-binders", "warn", "2 pods bound by another", alarmed()),
    ("two-binders", "skip", "not read", {"pods": FORBIDDEN}),
    ("leadership", "skip", "no Lease", {"leases": ()}),
    ("leadership", "warn", "403", {"leases": Unread("403", "do", level="warn")}),
    ("leadership", "skip", "follows", following(leases=NO_LEASES)),
    ("leadership", "fail", "no longer renewed by pod-1", {**ended(), "extender": None}),
    ("leadership", "fail", "no longer renewed by pod-1", ended() | standing_by()),
    ("leadership", "warn", "the extender leads", ended()),
    ("leadership", "fail", "free", {"leases": (lease(holder=""),), "extender": None}),
]


def test_a_healthy_cluster_gives_nothing_but_ok() -> None:
    assert {finding.level for finding in run_checks(healthy())} == {"ok"}


@pytest.mark.parametrize(
    ("check", "level", "words", "changes"),
    PROVOKED,
    ids=[f"{row[0]}-{row[1]}-{index}" for index, row in enumerate(PROVOKED)],
)
def test_a_fault_gives_its_finding(
    check: str, level: str, words: str, changes: dict[str, Any]
) -> None:
    finding = found(healthy(**changes), check)
    assert finding.level == level, finding
    assert words in finding.message, finding
    assert finding.todo or finding.level in ("ok", "skip")
    assert "\n" not in finding.message + finding.todo


def test_every_finding_that_can_be_bad_has_been_provoked_and_says_what_to_do() -> None:
    provoked = {check for check, level, _, _ in PROVOKED if level in ("warn", "fail")}
    always_fine = {"weight", "policy"}
    assert {finding.check for finding in run_checks(healthy())} <= provoked | always_fine


@pytest.mark.parametrize("field", ["api", "nodes", "pods", "leases", "rights", "extender"])
def test_what_cannot_be_read_leaves_the_other_checks_alone(field: str) -> None:
    findings = run_checks(healthy(**{field: Unread("403 forbidden", "grant it")}))
    assert any(finding.message == "403 forbidden" for finding in findings)
    assert failed(findings)
    assert sum(finding.level == "ok" for finding in findings) > 12


def test_the_time_a_bind_may_take_is_the_extenders() -> None:
    assert BIND_BUDGET == BUDGET


def test_rights_that_are_only_useful_never_fail() -> None:
    for right in optional_rights("kube-system"):
        assert not failed(run_checks(healthy(**without(right)))), right


def test_of_several_entries_ours_is_told_by_where_it_listens() -> None:
    second = {"urlPrefix": "http://127.0.0.1:9/other", "filterVerb": "filter"}
    mine = {"urlPrefix": "http://127.0.0.1:8/mine", "filterVerb": "filter"}
    facts = healthy(scheduler=config(top={"extenders": [second, mine]}))
    assert "give --listen" in found(facts, "extender-entry").message
    facts = healthy(scheduler=facts.scheduler, listen=("127.0.0.1", 8))
    assert "no bindVerb" in found(facts, "extender-entry").message


def test_budgets_are_not_missed_where_nobody_asks_us_to_preempt() -> None:
    lacking = without(Right("list", "poddisruptionbudgets", "policy"))
    findings = run_checks(healthy(**lacking, scheduler=config(preemptVerb=None)))
    assert "rights-useful" not in {finding.check for finding in findings}


def test_the_originals_label_says_nothing_of_another_resource() -> None:
    labelled = node(name="gpu-9", total=None, labels={"gpushare": "true"})
    second = Names.for_resource("example.com/npu-mem")
    findings = run_checks(healthy(nodes=(node(), labelled), names=second))
    assert "node-label" not in {finding.check for finding in findings}


def test_the_inventory_of_cards_that_differ_is_not_to_be_removed() -> None:
    """Otherwise more units of the smaller card would be allocated than the card has."""
    cards, bare = node(inventory=OTHER, total="40"), node(total="40")
    assert bare.spec.capacity[0] > cards.spec.capacity[0]
    finding = found(healthy(nodes=(node(inventory=BROKEN, total="40"),)), "node-inventory")
    assert "remove it only where all devices of the node are equal" in finding.todo


def test_who_stops_the_original_is_told_of_its_service() -> None:
    """kube-proxy takes node port 32766 on 127.0.0.1 too, and refuses calls without a pod behind."""
    originals = pods(originals=("kube-system/gpushare-schd-extender-x",))
    assert "delete its Service" in found(healthy(**originals), "two-binders").todo


def lines(check: str, *gpu: ListedPod) -> list[tuple[str, str]]:
    """Level and text of each line about these pods under that name."""
    findings = run_checks(healthy(pods=ListedPods([*gpu])))
    return [(finding.level, finding.message) for finding in findings if finding.check == check]


def test_each_pod_that_waits_is_judged_by_itself_and_those_alike_share_a_line() -> None:
    scheduler_message = "0/1 nodes are available: 1 Insufficient cpu."
    answer = lines(
        "pending-pods",
        waiting(name="default/room"),
        waiting(name="default/cpu", message=scheduler_message),
        waiting(name="default/new", reason=None, age=3.0),
        waiting(name="default/cpu-too", message=scheduler_message),
        waiting(name="default/alone", reason=None, scheduler="gpu-sched"),
    )
    assert answer == [
        ("fail", "default/alone: no scheduler has looked so far"),
        ("ok", f"default/room: waits for room, as the extender has said: {waiting().message}"),
        (
            "ok",
            "default/cpu, default/cpu-too: waits, as kube-scheduler's own filters leave no node:"
            f" {scheduler_message}",
        ),
        ("ok", "default/new: waits since a moment ago"),
    ]


def test_each_amount_that_is_a_mistake_is_told_with_its_own_text() -> None:
    answer = lines(
        "pods", *(waiting(name=f"default/{reason}", broken=reason) for reason in ("one", "two"))
    )
    assert answer == [("fail", "default/one: one"), ("fail", "default/two: two")]


def test_of_very_many_texts_the_last_ones_are_counted() -> None:
    answer = lines("pods", *(waiting(name=f"default/{n:02}", broken=f"{n}") for n in range(25)))
    assert len(answer) == 11
    assert answer[-1] == ("fail", "15 more, each of them for another reason")


def test_a_long_message_is_cut_between_words() -> None:
    message = f"0/1 gpushare.io/policy: {'word ' * 99}"
    finding = found(healthy(pods=ListedPods([waiting(message=message)])), "pending-pods")
    assert finding.message.endswith(" word word ...")
