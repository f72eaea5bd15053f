"""The subresource `scale` of kinds with replicas.

Pure, except for the two verbs at the end. Facts: `autoscaling/v1` Scale.
"""

from gpushare_localcluster.api.calls import Call, Response, Target, json_answer
from gpushare_localcluster.api.objects import Object, metadata, section
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.selectors import selector_text
from gpushare_localcluster.api.status import bad_request, invalid
from gpushare_localcluster.api.writing import changed_by

_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(body: Object) -> Object:
    """Return the Scale of an object with replicas."""
    spec = section(body, "spec")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: metadata(body)[field] for field in _SHOWN},
        "spec": {"replicas": spec.get("replicas", 0)},
        "status": {
            "replicas": section(body, "status").get("replicas", 0),
            "selector": selector_text(section(spec, "selector")),
        },
    }


def scaled(body: Object, scale: Object) -> Object:
    """Return the object with the replicas of a Scale.

    Raises StatusError: 400 or 422 for an invalid number.
    """
    replicas = section(scale, "spec").get("replicas", 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise bad_request(f"spec.replicas of a Scale must be an integer, not {replicas!r}")
    if replicas < 0:
        reason = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise invalid("Scale.autoscaling", str(metadata(body)["name"]), "spec.replicas", reason)
    scale_meta = {field: metadata(scale).get(field) for field in ("name", "uid", "resourceVersion")}
    meta = {**metadata(body), **{field: value for field, value in scale_meta.items() if value}}
    return {**body, "metadata": meta, "spec": {**section(body, "spec"), "replicas": replicas}}


def get(registry: Registry, target: Target, call: Call) -> Response:
    """Return the Scale of the object."""
    del call
    return json_answer(scale_of(registry.get(target.resource, target.home, target.name).body))


def write(registry: Registry, target: Target, call: Call) -> Response:
    """Return the Scale after a PUT or a PATCH."""
    change = changed_by(call)
    record = registry.revise(
        target.resource,
        target.home,
        target.name,
        lambda current: scaled(current, change(scale_of(current))),
        dry_run=call.dry_run,
    )
    return json_answer(scale_of(record.body))
