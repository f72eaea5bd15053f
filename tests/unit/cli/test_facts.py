"""inspect reads the same facts of a pod as the extender's books."""

import json
from collections.abc import Mapping

import pytest

from gpushare.cli.facts import read_pod
from gpushare.core.model import Request
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import NOT_UUIDS, SPLIT
from gpushare.wire.objects import PODS
from gpushare.wire.pods import observe_pod


def both(
    limits: dict[str, str], annotations: dict[str, str], *inits: Mapping[str, object]
) -> list[Request]:
    """The request as inspect reads it, and as the books do."""
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "p",
            "namespace": "n",
            "uid": "u",
            "annotations": {ALIYUN.count: "2"} | annotations,
        },
        "spec": {
            "nodeName": "a",
            "containers": [{"name": "c", "resources": {"limits": limits}}],
            "initContainers": [*inits],
        },
    }
    decoded = read_pod(pod, ALIYUN)
    assert decoded is not None
    observed = observe_pod(PODS.decode_answer(json.dumps(pod).encode(), "n", "p"), ALIYUN)
    return [decoded.request, observed.request]


@pytest.mark.parametrize("cores", [{}, {ALIYUN.cores: "20"}])
@pytest.mark.parametrize(
    "annotations",
    [{}, {ALIYUN.policy: "no policy"}, {NOT_UUIDS: "no uuid"}, {SPLIT: "1+2"}, {ALIYUN.count: "3"}],
)
def test_a_bound_pod_is_read_as_the_books_hold_it(
    annotations: dict[str, str], cores: dict[str, str]
) -> None:
    decoded, observed = both({ALIYUN.resource: "4"} | cores, annotations)
    of_decoded = (decoded.units, decoded.devices, decoded.cores)
    assert of_decoded == (observed.units, observed.devices, observed.cores)
    assert (observed.devices == 2) == (not annotations)


@pytest.mark.parametrize(("cores", "devices"), [(20, 2), (40, 1)])
def test_a_sidecar_is_read_as_the_books_hold_it(cores: int, devices: int) -> None:
    limits = {ALIYUN.resource: "4", ALIYUN.cores: "20"}
    sidecar = {
        "name": "s",
        "restartPolicy": "Always",
        "resources": {"limits": limits | {ALIYUN.cores: str(cores)}},
    }
    decoded, observed = both(limits, {}, sidecar)
    assert (decoded.units, decoded.devices) == (observed.units, observed.devices)
    assert decoded.cores == observed.cores == (20 if devices == 2 else 60)
    assert observed.devices == devices
