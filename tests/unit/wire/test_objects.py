"""The structs take any form that the API server writes, and the Binding is complete."""

import json

from gpushare.core.model import PodRef
from gpushare.wire.binding import encode_binding
from gpushare.wire.objects import CONFIG_MAPS, PODS


def test_nulls_numbers_and_unknown_fields_are_tolerated() -> None:
    pod = PODS.decode(
        b'{"metadata":{"name":null,"labels":null,"managedFields":[{"x":{}}],"new":1},"status":null,'
        b'"spec":{"initContainers":null,"containers":[{"resources":{"limits":{"cpu":1,"memory":1.5,'
        b'"x":"2"},"requests":null}},{"resources":null},{}],"nodeName":null}}'
    )
    assert pod.spec is not None
    assert pod.spec.containers is not None
    resources = pod.spec.containers[0].resources
    assert resources is not None
    assert resources.limits == {"cpu": 1, "memory": 1.5, "x": "2"}


def test_config_maps_carry_their_data() -> None:
    assert CONFIG_MAPS.decode(b'{"data":{"gpus":"0,2"}}').data == {"gpus": "0,2"}


def test_the_binding_carries_uid_and_annotations() -> None:
    annotations = json.loads(encode_binding(PodRef("team", "pod", "u-1"), "node-a", {"K": "v"}))
    assert annotations == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "pod", "namespace": "team", "uid": "u-1", "annotations": {"K": "v"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-a"},
    }
