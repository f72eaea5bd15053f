"""Pods that may wait for devices of claims: which are kept, and how many."""

import pytest

from gpushare.extender.claims import waiting
from gpushare.extender.claims.waiting import WaitingPod, WaitingPods, waiting_pod
from tests.support.claim_values import decoded


def record(namespace: str, number: int) -> WaitingPod:
    metadata = {"namespace": namespace, "name": f"pod-{number}", "uid": f"{namespace}-{number}"}
    claims = [{"name": "c", "resourceClaimName": f"claim-{number}"}]
    pod = waiting_pod(decoded({"metadata": metadata, "spec": {"resourceClaims": claims}}), ())
    assert pod is not None
    return pod


def kept(pods: WaitingPods) -> set[str]:
    return {*pods.all()}


def test_the_largest_namespace_loses_the_newest_of_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "MAX_PODS", 4)
    pods = WaitingPods()
    for namespace, number in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("a", 4)):
        pods.put(f"{namespace}-{number}", record(namespace, number))
    assert kept(pods) == {"a-1", "a-2", "b-1", "b-2"}
    listed = {f"a-{number}": record("a", number) for number in range(1, 9)}
    pods.replace(listed | {"b-1": record("b", 1)}, keep=())
    assert kept(pods) == {"a-1", "a-2", "a-3", "b-1"}


def test_the_version_grows_with_changes_alone() -> None:
    pods = WaitingPods()
    pods.put("a-1", record("a", 1))
    version = pods.version
    pods.put("a-1", record("a", 1))
    pods.put("other", None)
    assert pods.version == version
    pods.put("a-1", None)
    assert pods.version > version


def test_what_is_kept_of_a_pod_is_bounded() -> None:
    metadata = {"namespace": "a", "name": "p", "uid": "u", "annotations": {"k": "v" * 200_000}}
    claims = [{"name": "c", "resourceClaimName": "x"}]
    small = waiting_pod(decoded({"metadata": metadata, "spec": {"resourceClaims": claims}}), ())
    many = [{"name": f"c-{n}", "resourceClaimName": "x" * 200} for n in range(256)]
    large = waiting_pod(decoded({"metadata": metadata, "spec": {"resourceClaims": many}}), ())
    assert small is not None
    assert large is not None
    assert 0 < len(small.needs) < waiting.MAX_NEEDS
    assert (large.needs, large.has_claims) == (b"", True)


def test_a_pod_without_claims_or_names_is_none() -> None:
    metadata = {"namespace": "a", "name": "p", "uid": "u"}
    plain = {"containers": [{"resources": {"limits": {"cpu": "1"}}}]}
    assert waiting_pod(decoded({"metadata": metadata, "spec": plain}), ()) is None
    resources = {"nvidia.com/gpu": "1"}
    by_class = {"containers": [{"resources": {"limits": resources}}]}
    assert waiting_pod(decoded({"spec": by_class}), ()) is None
    asking = waiting_pod(decoded({"metadata": metadata, "spec": by_class}), ())
    assert asking is not None
    assert asking.asks_by_claims(resources)
    assert not asking.asks_by_claims({"nvidia.com/mig"})
    assert waiting_pod(decoded({"metadata": metadata, "spec": by_class}), resources) is None
