"""The checks of claims, by the objects of config/extender/claims and by what may be wrong there."""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.doctor.checks.claims import CLAIMS_RIGHTS, TEMPLATES, check_claims
from gpushare.doctor.facts import ApiServer, ClaimsSeen, Facts, Unread
from gpushare.doctor.finding import Finding
from gpushare.doctor.objects import (
    read_classes,
    read_drivers,
    read_fences,
    read_node,
    read_pods,
    read_unused,
)
from gpushare.wire.annotations import ALIYUN
from tests.unit.doctor.facts import NOW, RIGHTS, extender, healthy, node_json
from tests.unit.wire.dra.objects import device, exactly

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "config" / "extender" / "claims"
DRIVER = "gpu.nvidia.com"
SERVED = f'gpushare_claims{{driver="{DRIVER}",state="allocated"}}'
Json = dict[str, Any]


def documents(name: str) -> list[Json]:
    return list(yaml.safe_load_all((CONFIG / name).read_text(encoding="utf-8")))


def slice_json(*devices: Json, driver: str = DRIVER, node: str = "n2") -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": f"{driver}-{node}"}, "spec": spec}


def claim_json(name: str = "idle", *, stamp: str = "2027-01-15T07:00:00Z", **status: Any) -> Json:
    given = {"devices": {"results": []}, "allocationTimestamp": stamp}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly()}]}},
        "status": {"allocation": given, **status},
    }


class Cluster:
    """The objects of a cluster whose claims are well, to be made ill."""

    def __init__(self) -> None:
        (self.device_class,) = documents("device-class.yaml")
        self.policy, self.binding = deepcopy(documents("fence.yaml"))
        self.slices = [slice_json(device(0))]
        self.claims: list[Json] = []
        self.facts = healthy(
            extender=extender(samples={SERVED: 1.0}),
            rights=RIGHTS | dict.fromkeys(CLAIMS_RIGHTS, True),
            api=ApiServer("v1.37.0", 37),
        )

    def seen(self) -> Facts:
        claims = ClaimsSeen(
            read_classes([{"metadata": {"name": "another"}}, self.device_class]),
            tuple(read_fences([self.policy], [self.binding] if self.binding else [])),
            read_drivers(self.slices),
            tuple(read_unused(self.claims)),
        )
        return replace(self.facts, claims=claims)

    def findings(self) -> Mapping[str, Finding]:
        return {finding.check: finding for finding in check_claims(self.seen())}


def test_what_config_brings_is_well() -> None:
    found = Cluster().findings()
    assert {finding.level for finding in found.values()} == {"ok"}, found
    assert "gpushare-claims: nobody else allocates devices of gpu.nvidia.com" in str(found)


def test_the_class_may_be_kept_aside() -> None:
    cluster = Cluster()
    cluster.device_class["metadata"]["name"] = "settings.gpushare.io"
    found = cluster.findings()
    assert {finding.level for finding in found.values()} == {"ok"}, found
    assert "looks at no node" in found["claims-class"].what
    _selects(cluster)
    assert (
        "the DeviceClass settings.gpushare.io has other" in cluster.findings()["claims-class"].what
    )


def test_each_check_is_explained() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(claims-[a-z]+)` \|", text, re.MULTILINE))
    assert listed == Cluster().findings().keys()


def test_where_claims_are_not_used_nothing_is_said() -> None:
    assert list(check_claims(healthy())) == []
    unread = Unread("claims cannot be read: 403", level="warn")
    assert list(check_claims(healthy(claims=unread))) == []


def test_an_extender_that_serves_claims_without_their_class_is_told_of() -> None:
    cluster = Cluster()
    cluster.device_class = {}
    (finding,) = cluster.findings().values()
    assert (finding.check, finding.level) == ("claims-class", "fail")
    unread = Unread("claims cannot be read: 403", level="warn")
    (finding,) = check_claims(healthy(extender=extender(samples={SERVED: 0.0}), claims=unread))
    assert (finding.check, finding.level) == ("claims-class", "warn")


def _no_binding(cluster: Cluster) -> None:
    cluster.binding = {}


def _warns(cluster: Cluster) -> None:
    cluster.binding["spec"]["validationActions"] = ["Warn", "Audit"]


def _some_namespaces(cluster: Cluster) -> None:
    labels = {"matchLabels": {"a": "b"}}
    cluster.binding["spec"]["matchResources"] = {"namespaceSelector": labels}


def _ignores(cluster: Cluster) -> None:
    cluster.policy["spec"]["failurePolicy"] = "Ignore"


def _creates_alone(cluster: Cluster) -> None:
    cluster.policy["spec"]["matchConstraints"]["resourceRules"][0]["operations"] = ["CREATE"]


def _selected(cluster: Cluster) -> None:
    cluster.policy["spec"]["matchConstraints"]["objectSelector"] = {"matchLabels": {"a": "b"}}


def _other_resource(cluster: Cluster) -> None:
    cluster.policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"] = ["pods"]


def _other_driver(cluster: Cluster) -> None:
    (rule,) = cluster.policy["spec"]["validations"]
    rule["expression"] = rule["expression"].replace(DRIVER, "gpu.example.com")


def _selects(cluster: Cluster) -> None:
    cluster.device_class["spec"]["selectors"][0]["cel"]["expression"] = "true"


def _selects_nothing(cluster: Cluster) -> None:
    cluster.device_class["spec"]["selectors"] = []


def _no_slices(cluster: Cluster) -> None:
    cluster.slices = [slice_json(device(0), driver="gpu.example.com")]


def _no_sharing(cluster: Cluster) -> None:
    cluster.slices = [slice_json(device(0, allowMultipleAllocations=False))]


def _some_unfit(cluster: Cluster) -> None:
    others = device(1, attributes={}), device(2, capacity={}), device(3, taints=[{"effect": "X"}])
    cluster.slices = [slice_json(device(0), *others)]


def _old(cluster: Cluster) -> None:
    cluster.facts = replace(cluster.facts, api=ApiServer("v1.35.2", 35))


def _one_card_twice(cluster: Cluster) -> None:
    _both_worlds(cluster, "GPU-100")


def _one_node_twice(cluster: Cluster) -> None:
    _both_worlds(cluster, "GPU-1")


def _both_worlds(cluster: Cluster, uuid: str) -> None:
    text = f'{{"v": 1, "unit": "GiB", "devices": [{{"mem": 32, "uuid": "{uuid}"}}]}}'
    node = read_node(node_json(name="n2", count="1", inventory=text), ALIYUN, "GiB")
    cluster.facts = replace(cluster.facts, nodes=(node,))


def _no_right(cluster: Cluster) -> None:
    cluster.facts = replace(cluster.facts, rights=RIGHTS, own_account=False)


def _own_no_right(cluster: Cluster) -> None:
    cluster.facts = replace(cluster.facts, rights=RIGHTS)


def _unused(cluster: Cluster) -> None:
    cluster.claims = [claim_json()]


@pytest.mark.parametrize(
    ("harm", "check", "level", "text"),
    [
        (_no_binding, "claims-fence", "fail", "no ValidatingAdmissionPolicyBinding names it"),
        (_warns, "claims-fence", "fail", "its binding does not Deny"),
        (_some_namespaces, "claims-fence", "fail", "binding is for some namespaces"),
        (_ignores, "claims-fence", "fail", "its failurePolicy is not Fail"),
        (_creates_alone, "claims-fence", "fail", "it does not look at UPDATE"),
        (_selected, "claims-fence", "fail", "looks at some namespaces or objects alone"),
        (_other_resource, "claims-fence", "fail", "no ValidatingAdmissionPolicy keeps others"),
        (_other_driver, "claims-fence", "fail", "there is one for gpu.example.com"),
        (_selects, "claims-class", "fail", 'other selectors than "false"'),
        (_selects_nothing, "claims-class", "fail", 'other selectors than "false"'),
        (_no_slices, "claims-devices", "fail", "there are those of gpu.example.com"),
        (_no_sharing, "claims-devices", "fail", "1 with no allowMultipleAllocations"),
        (_some_unfit, "claims-devices", "warn", "1 with no attribute uuid, 1 with no capacity"),
        (_old, "claims-version", "fail", "this is 1.35"),
        (_one_card_twice, "claims-nodes", "fail", "GPU-100 on n2: the card is offered by"),
        (_one_node_twice, "claims-nodes", "warn", "n2: devices by annotation and slices"),
        (_no_right, "claims-rights", "warn", "may not list deviceclasses.resource.k8s.io"),
        (_own_no_right, "claims-rights", "fail", "the extender's account may not"),
        (_unused, "claims-unused", "warn", "team/idle: has devices for more than 5 minutes"),
    ],
)
def test_what_is_wrong_is_said_by_one_check_alone(
    harm: Callable[[Cluster], None], check: str, level: str, text: str
) -> None:
    cluster = Cluster()
    harm(cluster)
    found = cluster.findings()
    ill = {name: finding.level for name, finding in found.items() if finding.level != "ok"}
    assert ill == {check: level}
    assert text in found[check].what
    assert found[check].todo


def test_the_right_to_write_templates_is_needed_where_pods_are_rewritten() -> None:
    cluster = Cluster()
    assert cluster.findings()["claims-rights"].level == "ok"
    named = [
        ("gpushare", "gpushare-10240mi"),
        ("gpushare", "gpushare-5120mi-x2"),
        ("gpushare", "mine"),
        ("other", "gpushare-10240mi"),
    ]
    pods = [
        {
            "metadata": {"namespace": "team", "name": f"pod-{number}"},
            "spec": {"resourceClaims": [{"name": name, "resourceClaimTemplateName": template}]},
        }
        for number, (name, template) in enumerate(named)
    ]
    cluster.facts = replace(cluster.facts, pods=read_pods(pods, ALIYUN, NOW))
    finding = cluster.findings()["claims-rights"]
    assert finding.level == "fail"
    assert finding.what == (
        "the extender's account may not create resourceclaimtemplates.resource.k8s.io: team/pod-0,"
        " team/pod-1 may wait for a template of claims"
    )
    rights = cluster.facts.rights
    assert not isinstance(rights, Unread)
    cluster.facts = replace(cluster.facts, rights={**rights, TEMPLATES: True})
    assert cluster.findings()["claims-rights"].level == "ok"


def test_a_claim_is_unused_after_a_while_and_only_where_nobody_has_it_reserved() -> None:
    cluster = Cluster()
    cluster.claims = [
        claim_json("used", reservedFor=[{"name": "p"}]),
        claim_json("young", stamp="2027-01-15T07:58:00Z"),
        claim_json("waits", allocation=None),
    ]
    assert NOW == 1_800_000_000.0  # 2027-01-15T08:00:00Z
    assert cluster.findings()["claims-unused"].level == "ok"


def test_without_an_extender_the_fence_says_which_driver_is_meant() -> None:
    cluster = Cluster()
    cluster.facts = replace(cluster.facts, extender=None)
    assert {finding.level for finding in cluster.findings().values()} == {"ok"}
    cluster.policy["spec"]["validations"] = []
    found = cluster.findings()
    assert (found["claims-fence"].level, found["claims-devices"].level) == ("fail", "skip")
