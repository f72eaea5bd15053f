"""The subresource `resize` of pods: other amounts of cpu and memory for their containers.

Pure. Facts: k8s.io/kubernetes pkg/registry/core/pod (strategy.go) and ValidatePodResize. What a
kubelet does about it and reports is not here: containers have no cgroups.
"""

from gpushare_localcluster.api.objects import (
    Object,
    elements,
    metadata,
    name_of,
    section,
    with_fields,
)
from gpushare_localcluster.api.pods import CONTAINER_LISTS, POD_LEVEL, qos_class
from gpushare_localcluster.api.status import invalid

_LISTS = ("limits", "requests")


def resized(old: Object, new: Object) -> Object:
    """Return the pod with the amounts of `new`; whatever else `new` changes is dropped.

    Raises StatusError: 422 for amounts that may not change so.
    """
    spec = dict(section(old, "spec"))
    for field in CONTAINER_LISTS:
        wanted = {item.get("name"): item for item in elements(section(new, "spec"), field)}
        held = elements(spec, field)
        if held:
            spec[field] = [_with_amounts(item, wanted.get(item.get("name"), item)) for item in held]
    body = {**old, "metadata": metadata(old), "spec": spec}
    _check(old, body)
    return body


def _with_amounts(container: Object, wanted: Object) -> Object:
    told = {field: wanted.get(field) for field in ("resources", "resizePolicy")}
    return with_fields(container, **told)


def _check(old: Object, new: Object) -> None:
    name, before = name_of(old), section(old, "spec")
    for field in CONTAINER_LISTS:
        pairs = zip(elements(before, field), elements(section(new, "spec"), field), strict=True)
        for index, (was, wanted) in enumerate(pairs):
            for kind in _LISTS:
                had, has = (section(section(each, "resources"), kind) for each in (was, wanted))
                changed = {key for key in {*had, *has} if had.get(key) != has.get(key)}
                if changed.difference(POD_LEVEL):
                    why = "Forbidden: only cpu and memory resources are mutable"
                    raise invalid("Pod", name, "spec", why)
                if had.keys() - has.keys():
                    where = f"spec.{field}[{index}].resources.{kind}"
                    why = f"Forbidden: resource {kind} cannot be removed"
                    raise invalid("Pod", name, where, why)
    held = str(section(old, "status").get("qosClass") or qos_class(old))
    if qos_class(new) != held:
        why = f'Invalid value: "{held}": Pod QOS Class may not change as a result of resizing'
        raise invalid("Pod", name, "spec", why)
