"""Preemption: who is more urgent gets the place of who is less, and nobody goes in vain.

L6 when all is quiet, a pod that fits nowhere, but would if all of lower priority were gone from a
node, is bound instead. Pods that do not end in time do not count as ending.
"""

import json
from functools import partial
from random import Random

from gpushare_localcluster.api.resources import PODS
from tests.simulation.oracle import Violation
from tests.simulation.replica import Replica
from tests.simulation.rest import ask, call, fits, wait
from tests.simulation.truth import Asked, PodTruth
from tests.simulation.users import PRIORITIES
from tests.simulation.world import World

_FILLING, _COMING = 10, 3
"""Pods without priority that come first, as far as there is room, and urgent pods later."""


def serve_the_urgent(world: World, number: int) -> None:
    """Let pods get the places of less urgent ones. number: decides the draws."""
    chances = Random(number)
    for at in range(_FILLING):
        world.users.add(_pod(f"f{at}", chances, 2), "")
        world.oracle.follow()
        pod = world.users.waiting()[-1]
        ask(world, wait(world), pod)
        if not pod.node:
            break
    wait(world)
    for pod in [pod for pod in world.users.alive() if pod.lasts and pod.node]:
        if chances.random() < 1 / 2:
            world.kubelets.delete(pod, None)
    for at in range(_COMING):
        world.users.add(_pod(f"u{at}", chances, 4), chances.choice((*PRIORITIES,)))
    world.oracle.follow()
    for pod in sorted(world.users.waiting(), key=lambda pod: -pod.priority):
        _serve(world, pod)
        world.scheduler.nominate(pod, "")


def _pod(name: str, chances: Random, max_devices: int) -> PodTruth:
    units, devices = 1 + chances.randrange(max_devices), chances.choice((1, 1, 1, 2))
    request = Asked(units, devices, (units * devices,))
    return PodTruth("", name, request, lasts=chances.random() < 1 / 4)


def _serve(world: World, pod: PodTruth) -> None:
    """Have the pod scheduled, for as long as others can make room."""
    for _ in world.oracle.pods:
        replica = wait(world)
        names = sorted(world.kubelets.cards)
        could = any(fits(world, replica, pod, name) for name in names)
        answers = ask(world, replica, pod)
        if could or answers[1:] or pod.node or pod.ended:
            return
        failed = json.loads(answers[0])["FailedNodes"]
        lower = partial(_may_go, pod)
        may = [name for name in names if fits(world, replica, pod, name, lower)]
        victims = call(world, replica, partial(_preempt, world, replica, pod, [*failed]))
        world.tell(f"preempt for {pod.uid} of {failed}: {victims}")
        world.oracle.judge_victims(replica, pod, victims)
        if may and not any(victims.values()):
            raise Violation(f"L6 {pod} fits on {may} without lower ones, but {failed}: {victims}")
        if not any(victims.values()):
            return
        world.scheduler.evict_for(pod, victims)
    raise Violation(f"L6 others go for {pod} again and again: {victims}")


def _preempt(
    world: World, replica: Replica, pod: PodTruth, failed: list[str]
) -> dict[str, list[str]]:
    record = world.server.registry.get(PODS, pod.namespace, pod.name)
    return world.scheduler.preempt(replica, pod, record, failed, empty=True)


def _may_go(pod: PodTruth, victim: PodTruth) -> bool:
    return victim.priority < pod.priority and not victim.terminating
