"""Warnings about amounts of GPU memory that are sound for Kubernetes, and yet are mistakes.

Pure: an object in, texts out. kube-apiserver knows nothing of GPU memory and takes them without a
word; here kubectl prints them as it prints every warning, and the object is stored all the same.
"""

from gpushare.errors import WireError
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import PODS as POD_CODEC
from gpushare.wire.request_mistakes import mistake_of
from gpushare_localcluster.api.objects import Object, metadata, section, to_json
from gpushare_localcluster.api.resources import PODS, Resource
from gpushare_localcluster.api.workloads import is_workload

UNIT = "GiB"
"""What nodes of the local cluster count in."""


def gpu_memory_warnings(resource: Resource, body: Object) -> tuple[str, ...]:
    """Return what is wrong with the GPU memory that a pod, or a template of pods, asks for."""
    if resource is not PODS and not is_workload(resource):
        return ()
    pod = body if resource is PODS else section(section(body, "spec"), "template")
    read = {"metadata": metadata(pod), "spec": section(pod, "spec")}
    try:
        text = mistake_of(POD_CODEC.decode(to_json({"kind": "Pod", **read})), ALIYUN, UNIT)
    except WireError:  # fields that the codec does not read are no mistake of an amount
        return ()
    return (text,) if text else ()
