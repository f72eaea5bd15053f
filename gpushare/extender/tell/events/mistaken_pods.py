"""Pods with a mistake in the spec, each with a correction.

Most such pods wait for ever; a pod that sets its visible cards itself runs, and sees the cards of
other pods. The watch feeds this module: kube-scheduler calls no extender for a pod that its own
plug-ins refuse, and no scheduler handles a pod with an unknown schedulerName. Any thread may call;
nothing waits.
"""

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from gpushare.core.model import PodRef
from gpushare.errors import WireError
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.wire.near_misses import near_miss
from gpushare.wire.objects import Pod
from gpushare.wire.pods import names_any, pod_ref, scheduler_of
from gpushare.wire.request_mistakes import mistake_of, resources_of, sees_more

SCHEDULER_GRACE_SECONDS = 30.0
"""Seconds within which a scheduler that runs looks at a pod."""

_MAX_PODS = 4096


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake of a pod."""

    ref: PodRef
    text: str
    """For the user."""

    delay: float
    """Seconds until the mistake counts."""

    resource: str = ""
    """The managed resource of the mistake; "" for a mistake about the scheduler."""

    is_bound: bool = False
    """Whether the pod has a node in spite of the mistake."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A mistake, and the time of its report; infinite after the report."""

    mistake: Mistake
    due: float


class MistakenPods:
    """The mistakes of pods that exist; each is reported once.

    unit: the memory unit of the cluster. clock: seconds, monotonic.
    """

    def __init__(self, resources: ManagedResources, unit: str, clock: Callable[[], float]) -> None:
        self._resources = resources
        self._unit = unit
        self._clock = clock
        self._lock = threading.Lock()
        self._mistakes: OrderedDict[str, _Known] = OrderedDict()
        self._turns: dict[str, int] = {}
        self.version = 0
        """A number that grows with each change of the mistakes."""

    def mistake(self, pod: Pod) -> Mistake | None:
        """Return the mistake of a pod; None for one that has no name or uid."""
        with suppress(WireError):
            ref = pod_ref(pod)
            if pod.spec and pod.spec.node_name:
                for managed_resource in self._resources:
                    if text := sees_more(pod, managed_resource.names):
                        return Mistake(
                            ref, text, 0.0, managed_resource.names.resource, is_bound=True
                        )
                return None
            text, delay, resource = self._judge(pod)
            return Mistake(ref, text, delay, resource) if text else None
        return None

    def observe(self, uid: str, mistake: Mistake | None) -> None:
        """Set or remove the current mistake of the pod."""
        with self._lock:
            before = self._mistakes.get(uid)
            if mistake is None:
                self._drop(uid)
            elif before is not None and before.mistake.text == mistake.text:
                self.version += before.mistake != mistake
                self._mistakes[uid] = replace(before, mistake=mistake)
            else:
                self.version += 1
                self._mistakes[uid] = _Known(mistake, self._clock() + mistake.delay)
                self._mistakes.move_to_end(uid)
                if len(self._mistakes) > _MAX_PODS:
                    self._drop_one()

    def gone(self, uid: str) -> None:
        """Forget a pod."""
        with self._lock:
            self._drop(uid)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        with self._lock:
            for uid in self._mistakes.keys() - uids:
                self._drop(uid)

    def standing(self, resource: str) -> list[Mistake]:
        """Return the mistakes about this managed resource of pods that wait, oldest first."""
        with self._lock:
            mistakes = [noted.mistake for noted in self._mistakes.values()]
        return [
            mistake for mistake in mistakes if mistake.resource == resource and not mistake.is_bound
        ]

    def take(self) -> tuple[PodRef, str] | None:
        """Return a due mistake, and count the mistake as reported.

        Namespaces take turns; in a namespace the oldest mistake comes first.
        """
        now = self._clock()
        with self._lock:
            first: dict[str, tuple[str, _Known]] = {}
            for uid, noted in self._mistakes.items():
                if noted.due <= now:
                    first.setdefault(noted.mistake.ref.namespace, (uid, noted))
            if not first:
                return None
            namespace = min(first, key=lambda name: self._turns.get(name, 0))
            # Only those that still have something to say wait for a turn.
            self._turns = {name: self._turns.get(name, 0) for name in first}
            self._turns[namespace] = 1 + max(self._turns.values())
            uid, noted = first[namespace]
            self._mistakes[uid] = replace(noted, due=math.inf)
            return noted.mistake.ref, noted.mistake.text

    def _drop(self, uid: str) -> None:
        self.version += self._mistakes.pop(uid, None) is not None

    def _drop_one(self) -> None:
        """Forget the oldest mistake of the namespace with the largest number of mistakes."""
        owners = Counter(noted.mistake.ref.namespace for noted in self._mistakes.values())
        (namespace, _), *_ = owners.most_common(1)
        for uid, noted in self._mistakes.items():
            if noted.mistake.ref.namespace == namespace:
                del self._mistakes[uid]
                return

    def _judge(self, pod: Pod) -> tuple[str, float, str]:
        """Return (text of the mistake, seconds until the mistake counts, resource)."""
        for resource in self._resources:
            resource_names = resource.names
            percents = [of_amount.resource for of_amount in resource_names.percents]
            if names_any(pod, (resource_names.resource, resource_names.count, *percents)):
                largest = partial(_largest, resource)
                text = mistake_of(pod, resource_names, self._unit, largest)
                if text:
                    return text, 0.0, resource_names.resource
        schedulers = self._resources.scope.schedulers
        managed = [resource.names.resource for resource in self._resources]
        asks = names_any(pod, managed)
        if not asks and (requested := resources_of(pod)):
            annotations = (pod.metadata and pod.metadata.annotations) or {}
            for resource in self._resources:
                if text := near_miss(requested, annotations, resource.names, managed):
                    return text, 0.0, resource.names.resource
        if asks and schedulers and scheduler_of(pod) not in schedulers:
            conditions = (pod.status and pod.status.conditions) or ()
            if any(condition.type == "PodScheduled" for condition in conditions):
                return "", 0.0, ""  # a scheduler has looked at the pod
            names = ", ".join(sorted(schedulers))
            return (
                f"its schedulerName is {scheduler_of(pod)[:80]!r}, and no scheduler of that name"
                f" has looked at it for {SCHEDULER_GRACE_SECONDS:.0f} s; the one that gives out"
                f" GPU memory here goes by {names}: create the pod again with that schedulerName",
                SCHEDULER_GRACE_SECONDS,
                "",
            )
        return "", 0.0, ""


def _largest(resource: ManagedResource) -> int:
    """Return the units of the largest device."""
    capacity = resource.ledger.snapshot().capacity
    return int(capacity.max()) if capacity.size else 0
