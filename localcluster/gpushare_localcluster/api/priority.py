"""What a priority class says of a pod, and that only one class is the default.

Pure: the objects in, a pod out. Facts: the admission plug-in Priority of k8s.io/kubernetes.
"""

from collections.abc import Iterable

from gpushare_localcluster.api.admission import PREEMPT
from gpushare_localcluster.api.objects import Object, name_of, section, with_fields
from gpushare_localcluster.api.resources import PRIORITY_CLASSES
from gpushare_localcluster.api.status import forbidden

_BUILT_IN = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


def classed(pod: Object, classes: Iterable[Object]) -> Object:
    """Return a new pod with what its priority class says.

    Raises StatusError: 403 for an unknown class, or for something else of the client's own.
    """
    spec = with_fields(section(pod, "spec"))  # null is as good as nothing
    told = _told(pod, spec.get("priorityClassName"), list(classes))
    for field in ("priority", "preemptionPolicy"):
        if spec.get(field, told[field]) != told[field]:
            why = f"{field} ({spec[field]}) must not be provided in pod spec; priority admission "
            why += f"controller computed {told[field]} from the given PriorityClass name"
            raise forbidden("pods", name_of(pod), why)
    return {**pod, "spec": {**spec, **told}}


def check_default(new: Object, classes: Iterable[Object]) -> None:
    """Refuse a second class that is the default. Raises StatusError: 403."""
    for other in classes if new.get("globalDefault") else ():
        if other.get("globalDefault") and name_of(other) != name_of(new):
            why = f"PriorityClass {name_of(other)} is already marked as default. Only one default"
            raise forbidden(PRIORITY_CLASSES.qualified, name_of(new), f"{why} can exist")


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
