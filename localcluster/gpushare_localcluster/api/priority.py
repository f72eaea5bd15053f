"""Priority classes: the fields of pods that they set, and the single default class.

Pure: the objects in, a pod out. Facts: the admission plug-in Priority of k8s.io/kubernetes.
"""

from collections.abc import Iterable

from gpushare_localcluster.api.admission import PREEMPT
from gpushare_localcluster.api.objects import Object, name_of, section, with_fields
from gpushare_localcluster.api.resources import PRIORITY_CLASSES
from gpushare_localcluster.api.status import forbidden

_BUILT_IN = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


def classed(pod: Object, classes: Iterable[Object]) -> Object:
    """Return a new pod with the priority and the policy of the priority class.

    Raises StatusError: 403 for an unknown class, or for a value of the client that differs.
    """
    spec = with_fields(section(pod, "spec"))  # null counts as absent
    class_fields = _told(pod, spec.get("priorityClassName"), list(classes))
    for field in ("priority", "preemptionPolicy"):
        if spec.get(field, class_fields[field]) != class_fields[field]:
            reason = (
                f"{field} ({spec[field]}) must not be provided in pod spec; priority admission "
            )
            reason += f"controller computed {class_fields[field]} from the given PriorityClass name"
            raise forbidden("pods", name_of(pod), reason)
    return {**pod, "spec": {**spec, **class_fields}}


def check_default(new: Object, classes: Iterable[Object]) -> None:
    """Refuse a second default class. Raises StatusError: 403."""
    for priority_class in classes if new.get("globalDefault") else ():
        if priority_class.get("globalDefault") and name_of(priority_class) != name_of(new):
            reason = f"PriorityClass {name_of(priority_class)} is already marked as default."
            reason = f"{reason} Only one default can exist"
            raise forbidden(PRIORITY_CLASSES.qualified, name_of(new), reason)


def _told(pod: Object, name: object, classes: list[Object]) -> Object:
    if not name:
        defaults = [item for item in classes if item.get("globalDefault")]
        if not defaults:
            return {"priority": 0, "preemptionPolicy": PREEMPT}
        return _said(min(defaults, key=lambda item: int(item["value"])))
    for item in classes:
        if name_of(item) == name:
            return _said(item)
    if str(name) in _BUILT_IN:
        return {"priority": _BUILT_IN[str(name)], "preemptionPolicy": PREEMPT}
    raise forbidden("pods", name_of(pod), f"no PriorityClass with name {name} was found")


def _said(item: Object) -> Object:
    return {
        "priorityClassName": name_of(item),
        "priority": item["value"],
        "preemptionPolicy": item["preemptionPolicy"],
    }
