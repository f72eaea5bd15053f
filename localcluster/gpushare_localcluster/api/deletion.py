"""How objects go: at once, at the end of a grace period, or when their finalizers are gone.

Pure: the object as stored and the DeleteOptions in; the marked object out, and whether it may go.
Facts: k8s.io/apiserver pkg/registry/rest/delete.go and the pod strategy's CheckGracefulDelete.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpushare_localcluster.api.objects import Object, metadata, name_of, section, with_metadata
from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.api.resources import PODS, Resource
from gpushare_localcluster.api.status import bad_request, conflict, invalid
from gpushare_localcluster.api.workloads import is_workload

ENDED = ("Succeeded", "Failed")
FINALIZERS = {"Background": (), "Foreground": ("foregroundDeletion",), "Orphan": ("orphan",)}
"""What holds a workload until a controller has seen to what it owns, by propagation policy."""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What a DELETE asks for: seconds of grace (None: the pod's own) and preconditions."""

    grace: int | None = None
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False
    propagation: str = "Background"


def decode_options(body: Object) -> DeleteOptions:
    """Return the options of a DELETE body, an empty one meaning none.

    Raises StatusError: 400 for values of the wrong type.
    """
    if body.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request(f"the body of a DELETE must be DeleteOptions, not {body['kind']!r}")
    grace = body.get("gracePeriodSeconds")
    if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int)):
        raise bad_request("gracePeriodSeconds must be an integer")
    wanted = body.get("preconditions") or {}
    if not isinstance(wanted, dict):
        raise bad_request("preconditions must be an object")
    dry_run, policy = bool(body.get("dryRun")), body.get("propagationPolicy") or "Background"
    if body.get("orphanDependents"):
        policy = "Orphan"
    if policy not in FINALIZERS:
        why = f"Unsupported value: {policy!r}: supported values: {', '.join(FINALIZERS)}"
        raise invalid("DeleteOptions", "", "propagationPolicy", why)
    version = wanted.get("resourceVersion")
    return DeleteOptions(grace, wanted.get("uid"), version, dry_run, policy)


def marked(resource: Resource, body: Object, options: DeleteOptions, now: datetime) -> Object:
    """Return the object marked for deletion; one that is `removable` vanishes now.

    Raises StatusError: 409 if a precondition fails.
    """
    check_preconditions(resource, body, options)
    if metadata(body).get("deletionTimestamp"):
        return _shortened(body, options.grace, now)
    if is_workload(resource) and FINALIZERS[options.propagation]:
        held = (*(metadata(body).get("finalizers") or ()), *FINALIZERS[options.propagation])
        body = with_metadata(body, finalizers=list(held))
    grace = grace_period(body, options.grace) if resource is PODS else 0
    return _ending(body, now + timedelta(seconds=grace), grace)


def check_preconditions(resource: Resource, body: Object, options: DeleteOptions) -> None:
    """Refuse to delete another object, or another version of it. Raises StatusError: 409."""
    held = metadata(body)
    for field, wanted in (("uid", options.uid), ("resourceVersion", options.version)):
        if wanted is not None and wanted != held.get(field):
            why = f"the {field} in the precondition ({wanted}) does not match ({held.get(field)})"
            raise conflict(resource.qualified, name_of(body), why)


def grace_period(pod: Object, asked: int | None) -> int:
    """Return the seconds a pod gets: none without a node or after its end, else as asked."""
    spec = section(pod, "spec")
    if not spec.get("nodeName") or section(pod, "status").get("phase") in ENDED:
        return 0
    own = spec.get("terminationGracePeriodSeconds")
    grace = asked if asked is not None else own
    if not isinstance(grace, int):
        return 30
    return 1 if grace < 0 else grace


def removable(body: Object) -> bool:
    """Return whether a marked object has nothing left to wait for."""
    held = metadata(body)
    deleting = held.get("deletionTimestamp") is not None
    return deleting and not held.get("deletionGracePeriodSeconds") and not held.get("finalizers")


def _shortened(body: Object, asked: int | None, now: datetime) -> Object:
    """Return a marked object after another DELETE: only a shorter period, named there, counts.

    It counts from the first DELETE; where it is over already, a second is left of it.
    """
    meta = metadata(body)
    held = meta.get("deletionGracePeriodSeconds") or 0
    grace = 1 if asked is not None and asked < 0 else asked
    if grace is None or grace >= held:
        return body
    end = datetime.fromisoformat(meta["deletionTimestamp"]) + timedelta(seconds=grace - held)
    if end >= now:
        return _ending(body, end, grace)
    return _ending(body, now, min(grace, 1))


def _ending(body: Object, end: datetime, grace: int) -> Object:
    return with_metadata(body, deletionTimestamp=timestamp(end), deletionGracePeriodSeconds=grace)
