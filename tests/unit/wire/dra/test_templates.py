"""Templates that are named after their size: which a pod awaits, and what they say."""

import json
from pathlib import Path

import pytest
import yaml

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import SPLIT, WISHES
from gpushare.wire.dra.claims import ClaimRequest, Part, claim_request
from gpushare.wire.dra.objects import CLAIMS_PODS, RESOURCE_CLAIMS, ClaimsPod
from gpushare.wire.dra.templates import ASKED, POD_CLAIM, SizedTemplate, awaited_template
from gpushare.wire.whole_card import WHOLE_CARD
from tests.unit.wire.dra.objects import CLASS, Json

MIB = 2**20
POLICIES = Path(__file__).parents[4] / "config" / "extender" / "claims-pods"


def pod(
    template: str, *, claim: str = POD_CLAIM, made: tuple[str, ...] = (), **meta: object
) -> ClaimsPod:
    has = [{"name": "nic", "resourceClaimName": "n"}]
    has.append({"name": claim, "resourceClaimTemplateName": template})
    status = {"resourceClaimStatuses": [{"name": name} for name in made]}
    named = {"name": "p", "namespace": "team", "uid": "u", **meta}
    body = {"metadata": named, "spec": {"resourceClaims": has}, "status": status}
    return CLAIMS_PODS.decode(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("name", "mib", "devices"),
    [
        ("gpushare-10240mi", 10240, 1),
        ("gpushare-1mi-x2", 1, 2),
        ("gpushare-999999999mi-x32", 999999999, 32),
    ],
)
def test_a_template_says_what_its_name_says(name: str, mib: int, devices: int) -> None:
    template = awaited_template(pod(name))
    assert template == SizedTemplate("team", name, mib, devices)
    written: Json = json.loads(template.body(CLASS))
    assert written["metadata"]["name"] == name
    assert "namespace" not in written["metadata"]
    assert "ownerReferences" not in written["metadata"]
    claim = {"metadata": {}, "spec": written["spec"]["spec"]}
    asked = claim_request(RESOURCE_CLAIMS.decode(json.dumps(claim).encode()), CLASS)
    assert asked == ClaimRequest((Part("gpu", mib * MIB),) * devices)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "other",
        "gpushare-",
        "gpushare-0mi",
        "gpushare-010mi",
        "gpushare-1000000000mi",
        "gpushare-10gi",
        "gpushare-10mi-x0",
        "gpushare-10mi-x1",
        "gpushare-10mi-x02",
        "gpushare-10mi-x33",
        "gpushare-10mi-x2\n",
        "gpushare-٣mi",
        "xgpushare-10mi",
        "gpushare-10mi/../../pods",
    ],
)
def test_no_other_name_is_one_of_ours(name: str) -> None:
    assert awaited_template(pod(name)) is None


def test_a_pod_awaits_the_template_of_one_claim_until_that_is_made() -> None:
    name = "gpushare-10240mi"
    assert awaited_template(pod(name, made=("nic",)))
    assert awaited_template(pod(name, made=(POD_CLAIM,))) is None
    assert awaited_template(pod(name, claim="mine")) is None
    assert awaited_template(pod(name, deletionTimestamp="2026-01-01T00:00:00Z")) is None
    assert awaited_template(CLAIMS_PODS.decode(b"{}")) is None


def expressions(file: str) -> dict[str, str]:
    """The variables of a policy."""
    policy = next(yaml.safe_load_all((POLICIES / file).read_text(encoding="utf-8")))
    return {each["name"]: each["expression"] for each in policy["spec"]["variables"]}


def test_the_policy_refuses_every_wish_of_a_pod() -> None:
    wishes = {SPLIT, WHOLE_CARD, ALIYUN.policy, *WISHES, *WISHES.values()}
    listed = expressions("refuse.yaml")["wishes"].partition("]")[0]
    assert {name.strip(" '[") for name in listed.split(",")} == wishes


def test_both_policies_read_the_number_of_devices_alike() -> None:
    counted = expressions("rewrite.yaml")["counted"]
    assert counted == expressions("refuse.yaml")["counted"]
    assert ALIYUN.count in counted
    pattern = expressions("rewrite.yaml")["count"].partition(" ? ")[0].split("'")[1]
    assert f"matches('{pattern}')" in (POLICIES / "refuse.yaml").read_text(encoding="utf-8")


def test_the_policy_names_claim_and_annotation_as_they_are_read() -> None:
    text = (POLICIES / "rewrite.yaml").read_text(encoding="utf-8")
    assert f"'name': '{POD_CLAIM}', 'resourceClaimTemplateName'" in text
    assert f"/metadata/annotations/{ASKED.replace('/', '~1')}" in text
