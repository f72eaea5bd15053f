"""Warnings about amounts of GPU memory that Kubernetes accepts and that are likely mistakes.

Pure: an object in, texts out. kubectl prints each text as a warning of the server, and the object
is stored. kube-apiserver warns of none of these.
"""

from gpushare.errors import WireError
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.near_misses import near_miss
from gpushare.wire.objects import PODS as POD_CODEC
from gpushare.wire.request_mistakes import mistake_of, resources_of
from gpushare_localcluster.api.objects import Object, metadata, section, to_json
from gpushare_localcluster.api.resources import PODS, Resource
from gpushare_localcluster.api.workloads import is_workload

UNIT = "GiB"
"""The memory unit of the nodes of the local cluster."""


def gpu_memory_warnings(resource: Resource, body: Object) -> tuple[str, ...]:
    """Return the mistakes in the GPU memory requested by a pod or a pod template.

    Names that are nearly ours are told as by config/extender/mistakes, which is not evaluated here.
    """
    if resource is not PODS and not is_workload(resource):
        return ()
    pod = body if resource is PODS else section(section(body, "spec"), "template")
    fields = {"metadata": metadata(pod), "spec": section(pod, "spec")}
    try:
        decoded = POD_CODEC.decode(to_json({"kind": "Pod", **fields}))
        annotations = (decoded.metadata and decoded.metadata.annotations) or {}
        text = mistake_of(decoded, ALIYUN, UNIT)
        text = text or near_miss(resources_of(decoded), annotations, ALIYUN)
    except WireError:  # a pod that the codec cannot read has no amount to check
        return ()
    return (text,) if text else ()
