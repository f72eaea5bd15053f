"""Passing time, and events of our processes and Leases; "" if nothing happened."""

import math

from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.objects import with_metadata
from gpushare_localcluster.api.resources import LEASES
from gpushare_localcluster.api.status import StatusError
from tests.simulation.chance import Chance
from tests.simulation.network import LEASE_FAULTS, Request
from tests.simulation.replica import LEASE_NAMES, NAMESPACE
from tests.simulation.truth import Json
from tests.simulation.world import World


def wait(world: World, chance: Chance) -> str:
    """A little time passes."""
    due = min(world.tasks.next_timer(), world.lease.next_renewal())
    answering = any(replica.ready() for replica in world.replicas)
    seconds = chance.pick((0.05, 0.5, 2.0, 0.0) if answering else (0.5, 2.0, 7.0, 0.0))
    if not seconds and due < math.inf:
        seconds = max(due - world.tasks.now, 0.01)
    world.pass_time(seconds)
    return f"{seconds:.2f} s"


def linger(world: World, chance: Chance) -> str:
    """Some seconds pass: answers are late, terms end."""
    seconds = chance.pick((5.0, 12.0, 20.0))
    world.pass_time(seconds)
    return f"{seconds} s"


def sit_out(world: World, chance: Chance) -> str:
    """Minutes pass without deliveries of the server."""
    seconds = chance.pick((66.0, 160.0))
    world.pass_time(seconds)
    return f"{seconds} s"


def crash(world: World, chance: Chance) -> str:
    """A process ends at once, and another starts instead."""
    replica = chance.pick(world.replicas)
    world.take_away(replica)
    if replica.leading is None:
        # Nobody waits for the requests of the old one: allowed only where nothing else binds.
        world.network.late = [
            late for late in world.network.late if late.request.client is not replica
        ]
    return replica.identity


def retire(world: World, chance: Chance) -> str:
    """A process is told to end (SIGTERM); one that follows it starts before that, or after."""
    staying = [replica for replica in world.replicas if replica.leading and not replica.ending]
    if not staying:
        # Wiring without leadership has no hand-over.
        return ""
    leading = [replica for replica in staying if replica.leads()]
    replica = chance.pick(leading if leading and chance.below(2) else staying)
    replica.end(chance.pick((BUDGET + 2.0, BUDGET + 2.0, 0.0)))
    early = world.setting.shape.leadership == "lease" and bool(chance.below(2))
    if early:
        world.start(replica.host)
    return f"{replica.identity}{', whose successor is there' if early else ''}"


def meddle(world: World, chance: Chance) -> str:
    """Somebody deletes the Lease, or writes to it like no holder would."""
    how = world.setting.shape.leadership
    if how == "off":
        return ""
    name = LEASE_NAMES[how]
    # The reaction of a kube-scheduler whose name was removed is unknown here.
    lease_actions = ("emptied", "handed") if how == "lease" else ()
    action = chance.pick(("deleted", "annotated", "shortened", *lease_actions))
    heir = chance.pick(world.replicas).identity

    def change(document: Json) -> Json:
        spec = document["spec"]
        if action == "annotated":
            return with_metadata(document, annotations={"at": str(world.tasks.now)})
        brief = {**spec, "leaseDurationSeconds": 1}
        new_spec = {**spec, "holderIdentity": heir if action == "handed" else ""}
        new = brief if action == "shortened" else new_spec
        # A holder that releases the Lease writes one second and no holder.
        is_released = not new["holderIdentity"] and new["leaseDurationSeconds"] == 1
        return document if is_released else {**document, "spec": new}

    registry = world.server.registry
    try:
        if action == "deleted":
            registry.delete(LEASES, NAMESPACE, name, DeleteOptions())
        else:
            registry.revise(LEASES, NAMESPACE, name, change)
    except StatusError:
        return ""
    return f"{name} {action}"


def freeze(world: World, chance: Chance) -> str:
    """A process is stopped until it is continued."""
    awake = [replica for replica in world.replicas if not replica.frozen]
    if not awake:
        return ""
    replica = chance.pick(awake)
    replica.frozen = True
    return replica.identity


def pause(world: World, chance: Chance) -> str:
    """A process stands still for a while, mostly in the middle of a bind."""
    awake = [replica for replica in world.replicas if not replica.frozen]
    if not awake:
        return ""
    busy = [request.client for request in world.network.waiting if _of_a_bind(request)]
    among = [replica for replica in awake if replica in busy] or awake
    replica, seconds = chance.pick(among), chance.pick((22.0, 31.0, 6.0, 12.0))
    replica.frozen = True
    world.pass_time(seconds)
    for request in world.waiting(answered=False):
        if request.client is replica and chance.below(2):
            request.answer = world.network.serve(request)
    world.thaw(replica)
    return f"{replica.identity} for {seconds} s"


def thaw(world: World, chance: Chance) -> str:
    """A process goes on."""
    frozen = [replica for replica in world.replicas if replica.frozen]
    if not frozen:
        return ""
    replica = chance.pick(frozen)
    world.thaw(replica)
    return replica.identity


def lease(world: World, chance: Chance) -> str:
    """The next calls about a Lease go wrong."""
    if not world.replicas:
        return ""
    replica = chance.pick(world.replicas)
    chosen = [chance.pick(LEASE_FAULTS) for _ in range(1 + chance.below(6))]
    world.network.armed.setdefault(replica.identity, []).extend(chosen)
    return f"{chosen} for {replica.identity}"


def fail_over(world: World, chance: Chance) -> str:
    """Another kube-scheduler takes over."""
    if world.setting.shape.leadership != "scheduler":
        return ""
    return world.lease.fail_over(chance)


def _of_a_bind(request: Request) -> bool:
    return request.task is not None and request.task.name.startswith("bind")
