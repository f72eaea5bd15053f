"""Changes in the cluster, and the pending pods that they may let fit.

Names and cuts are kube-scheduler's (pkg/scheduler/framework/events.go of 1.37). A plug-in registers
the events that may resolve its rejection, each with a function that checks the change: a *queueing
hint*.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import NamedTuple

from gpushare_localcluster.scheduler.objects import Json, NodeView, PodView, pod_requests


class Resource(Enum):
    """The resource of an event. TARGET_POD: the pending pod itself. WILDCARD: any resource."""

    NODE = "Node"
    ASSIGNED_POD = "AssignedPod"
    TARGET_POD = "TargetPod"
    RESOURCE_CLAIM = "resource.k8s.io/ResourceClaim"
    RESOURCE_SLICE = "resource.k8s.io/ResourceSlice"
    DEVICE_CLASS = "resource.k8s.io/DeviceClass"
    DEVICE_TAINT_RULE = "resource.k8s.io/DeviceTaintRule"
    WILDCARD = "*"


class Action(Flag):
    """The kind of change. UPDATE_OTHER: a change that no other action names."""

    ADD = auto()
    DELETE = auto()
    UPDATE_NODE_ALLOCATABLE = auto()
    UPDATE_NODE_LABEL = auto()
    UPDATE_NODE_TAINT = auto()
    UPDATE_NODE_CONDITION = auto()
    UPDATE_NODE_ANNOTATION = auto()
    UPDATE_POD_LABEL = auto()
    UPDATE_POD_SCALE_DOWN = auto()
    UPDATE_POD_TOLERATION = auto()
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = auto()
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = auto()
    UPDATE_OTHER = auto()


@dataclass(frozen=True)
class Change:
    """One change, with the old and the new node or pod."""

    resource: Resource
    action: Action
    old_node: NodeView | None = None
    new_node: NodeView | None = None
    old_pod: PodView | None = None
    new_pod: PodView | None = None


FORCE_ACTIVATE = Change(Resource.WILDCARD, ~Action(0))
"""A request to try the pod again, regardless of its rejection."""

QueueingHintFn = Callable[[PodView, Change], bool]
"""Given a rejected pod: True is kube-scheduler's Queue, False its QueueSkip."""


def queue(_pod: PodView, _change: Change) -> bool:
    """Return True: the default hint, with which every such event is worth another try."""
    return True


class EventWithHint(NamedTuple):
    """An event that a plug-in registers: any of some actions on a resource."""

    resource: Resource
    actions: Action
    hint: QueueingHintFn = queue

    def wants(self, pod: PodView, change: Change) -> bool:
        """Return whether the change is such an event and may let the pod fit."""
        matches = self.resource in (change.resource, Resource.WILDCARD)
        return matches and bool(self.actions & change.action) and self.hint(pod, change)


ANY_EVENT = (EventWithHint(Resource.WILDCARD, ~Action(0)),)


def node_actions(old: Json, new: Json) -> Action:
    """Return the changes of a node that may let a pod fit; a heartbeat may not."""
    old_spec, new_spec = old.get("spec") or {}, new.get("spec") or {}
    old_meta, new_meta = old["metadata"], new["metadata"]
    old_status, new_status = old.get("status") or {}, new.get("status") or {}
    uncordoned = old_spec.get("unschedulable") and not new_spec.get("unschedulable")
    changes = {
        Action.UPDATE_NODE_ALLOCATABLE: old_status.get("allocatable")
        != new_status.get("allocatable"),
        Action.UPDATE_NODE_LABEL: old_meta.get("labels") != new_meta.get("labels"),
        Action.UPDATE_NODE_TAINT: uncordoned or old_spec.get("taints") != new_spec.get("taints"),
        Action.UPDATE_NODE_CONDITION: _conditions(old_status) != _conditions(new_status),
        Action.UPDATE_NODE_ANNOTATION: old_meta.get("annotations") != new_meta.get("annotations"),
    }
    return _joined(changes)


def pod_actions(old: Json, new: Json) -> Action:
    """Return the changes of a pod that matter to scheduling, with generated claims."""
    claims = [(pod.get("status") or {}).get("resourceClaimStatuses") for pod in (old, new)]
    old_spec, new_spec = old.get("spec") or {}, new.get("spec") or {}
    old_meta, new_meta = old["metadata"], new["metadata"]
    if (
        claims[0] == claims[1]
        and old_spec == new_spec
        and all(
            old_meta.get(key) == new_meta.get(key)
            for key in ("labels", "annotations", "deletionTimestamp")
        )
    ):
        return Action(0)
    before, after = pod_requests(old_spec), pod_requests(new_spec)
    changes = {
        Action.UPDATE_POD_LABEL: old_meta.get("labels") != new_meta.get("labels"),
        Action.UPDATE_POD_SCALE_DOWN: any(n > after.get(name, 0) for name, n in before.items()),
        Action.UPDATE_POD_TOLERATION: old_spec.get("tolerations") != new_spec.get("tolerations"),
        Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED: old_spec.get("schedulingGates")
        and not new_spec.get("schedulingGates"),
        Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM: claims[0] != claims[1],
    }
    return _joined(changes) or Action.UPDATE_OTHER


def _joined(changes: dict[Action, object]) -> Action:
    actions = Action(0)
    for action, holds in changes.items():
        if holds:
            actions |= action
    return actions


def _conditions(status: Json) -> dict[object, object]:
    return {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
