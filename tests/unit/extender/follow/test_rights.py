"""A missing right ends all writes for a while; another refusal ends that write alone.

The texts are those of kube-apiserver 1.37, as gpushare's client passes them on.
"""

import pytest

from gpushare.errors import ApiConflict, ApiError, ApiUnavailable
from gpushare.extender.follow.write_right import FIRST_REST, PAUSE, WriteRight, lacks_right
from gpushare.kube.responses import response_error
from tests.unit.extender.kit import refusal

ACCOUNT = "system:serviceaccount:kube-system:gpushare-extender"
NO_RIGHT = (
    f'pods is forbidden: User "{ACCOUNT}" cannot create resource "pods" in API group "" in the'
    ' namespace "asks"',
    f'pods "for-1" is forbidden: User "{ACCOUNT}" cannot patch resource "pods/status" in API group'
    ' "" in the namespace "asks"',
    f'nodes "a" is forbidden: User "{ACCOUNT}" cannot patch resource "nodes" in API group "" at the'
    " cluster scope",
    'pods is forbidden: User "jo" cannot create resource "pods" in API group "" in the namespace'
    ' "asks": RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found',
    'nodes "a" is forbidden: User "system:node:b" cannot patch resource "nodes" in API group "" at'
    " the cluster scope: node 'b' cannot modify node 'a'",
)
OF_ONE_OBJECT = (
    'pods "for-1" is forbidden: exceeded quota: gpus, requested: requests.aliyun.com/gpu-mem=8,'
    " used: requests.aliyun.com/gpu-mem=0, limited: requests.aliyun.com/gpu-mem=4",
    'pods "for-1" is forbidden: failed quota: cpus: must specify limits.cpu for: pause',
    'pods "for-1" is forbidden: maximum memory usage per Container is 1Gi, but limit is 8Gi',
    'pods "for-1" is forbidden: violates PodSecurity "restricted:latest": runAsUser=0',
    'pods "for-1" is forbidden: no PriorityClass with name high was found',
    'pods "for-1" is forbidden: error looking up service account asks/default: serviceaccount'
    ' "default" not found',
    'pods "for-1" is forbidden: unable to create new content in namespace asks because it is being'
    " terminated",
    'admission webhook "policy.example.com" denied the request: this user cannot create resource',
)


@pytest.mark.parametrize("text", NO_RIGHT)
def test_a_missing_right_ends_all_writes_for_a_while(text: str) -> None:
    now = [0.0]
    under_test = WriteRight(lambda: now[0])
    under_test.failed(refusal(text), "a")
    assert lacks_right(refusal(text))
    assert under_test.missing
    assert not under_test.rests("a")
    now[0] = PAUSE
    assert not under_test.missing


def test_credentials_that_are_not_taken_are_a_missing_right() -> None:
    under_test = WriteRight(lambda: 0.0)
    under_test.failed(refusal("Unauthorized", 401))
    assert under_test.missing


@pytest.mark.parametrize("text", OF_ONE_OBJECT)
def test_what_refuses_one_object_is_no_missing_right(text: str) -> None:
    under_test = WriteRight(lambda: 0.0)
    under_test.failed(refusal(text), "a")
    assert not under_test.missing
    assert under_test.rests("a")
    assert not under_test.rests("b")


def test_one_that_is_refused_again_rests_for_longer_until_it_is_taken() -> None:
    now = [0.0]
    under_test = WriteRight(lambda: now[0])

    def rest() -> float:
        under_test.failed(refusal(OF_ONE_OBJECT[0]), "a")
        began = now[0]
        while under_test.rests("a"):
            now[0] += FIRST_REST / 2
        return now[0] - began

    assert [rest() for _ in range(8)] == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, PAUSE, PAUSE]
    under_test.failed(refusal(OF_ONE_OBJECT[0]), "a")
    under_test.taken("a")
    assert not under_test.rests("a")
    assert rest() == FIRST_REST


@pytest.mark.parametrize(
    "error", [ApiConflict("409", 409), ApiUnavailable("cut", 0), ApiError("busy", 429)]
)
def test_what_may_be_taken_at_once_does_not_rest(error: ApiError) -> None:
    under_test = WriteRight(lambda: 0.0)
    under_test.failed(error, "a")
    assert not under_test.missing
    assert not under_test.rests("a")


def test_the_page_of_a_proxy_is_no_missing_right() -> None:
    page = response_error("POST /api/v1/pods", 403, b"<h1>you cannot</h1>")
    assert not lacks_right(page)
