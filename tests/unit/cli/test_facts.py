"""inspect reads the same facts of a pod as the extender's books."""

import json

import pytest

from gpushare.cli.facts import read_pod
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import NOT_UUIDS, SPLIT
from gpushare.wire.objects import PODS
from gpushare.wire.pods import observe_pod


@pytest.mark.parametrize("cores", [{}, {ALIYUN.cores: "20"}])
@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {ALIYUN.policy: "no policy"},
        {NOT_UUIDS: "no uuid"},
        {SPLIT: "1+2"},
        {ALIYUN.count: "3"},
    ],
)
def test_a_bound_pod_is_read_as_the_books_hold_it(
    annotations: dict[str, str], cores: dict[str, str]
) -> None:
    limits = {ALIYUN.resource: "4"} | cores
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "p",
            "namespace": "n",
            "uid": "u",
            "annotations": {ALIYUN.count: "2"} | annotations,
        },
        "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    decoded = read_pod(pod, ALIYUN)
    observed = observe_pod(PODS.decode_answer(json.dumps(pod).encode(), "n", "p"), ALIYUN).request
    assert decoded is not None
    kept_nodes = (decoded.request.units, decoded.request.devices, decoded.request.cores)
    assert kept_nodes == (observed.units, observed.devices, observed.cores)
    assert (observed.devices == 2) == (not annotations)
