"""Service: who means no harm is served, whatever those do who mean harm.

L5 during attacks, a pod that fits on an honest node is bound within a minute. The network is well
meanwhile, and so are the honest nodes; a scheduler takes honest pods in turn with others.
"""

from collections.abc import Sequence
from random import Random

from tests.simulation.chance import BITS, Chance
from tests.simulation.machines import LIAR
from tests.simulation.oracle import Violation
from tests.simulation.rest import ask, fits, wait
from tests.simulation.truth import HONEST, PodTruth
from tests.simulation.world import World

_WITHIN = 60.0
"""Seconds."""

_COMING = 3
"""Pods that come while others do harm."""

_ACTS = 6
"""Attacks from one look at an honest pod to the next."""


def serve_the_honest(world: World, number: int) -> None:
    """Check that honest pods are served during attacks. number: decides the draws."""
    chances = Random(number)
    for _ in range(_COMING):
        world.users.create(Chance(chances.getrandbits(BITS)))
    for pod in world.users.waiting():
        # Who had victims, and has not come since, is tried again as all others are.
        world.scheduler.nominate(pod, "")
    for pod in [pod for pod in world.users.waiting() if pod.namespace == HONEST]:
        _serve(world, pod, chances)


def _serve(world: World, pod: PodTruth, chances: Random) -> None:
    began, answers = world.tasks.now, list[bytes]()
    while not pod.node and not pod.ended:
        _do_harm(world, chances)
        replica = wait(world)
        could = [name for name in _honest(world) if fits(world, replica, pod, name)]
        answers += ask(world, replica, pod)
        if not could:
            return
        if not pod.node and world.tasks.now > began + _WITHIN:
            raise Violation(f"L5 {pod} fits on {could} all the time, but {answers[-2:]}")
        if not pod.node:
            world.pass_time(2.0)


def _do_harm(world: World, chances: Random) -> None:
    for _ in range(_ACTS):
        chance = Chance(chances.getrandbits(BITS))
        action = world.machines.lie(chance) if chance.once_in(4) else world.tenant.act(chance)
        world.tell(f"meanwhile {action}")
        world.oracle.follow()
        waiting_pods = [pod for pod in world.users.waiting() if pod.namespace != HONEST]
        if waiting_pods and chance.below(2):
            ask(world, wait(world), chance.pick(waiting_pods))


def _honest(world: World) -> Sequence[str]:
    return sorted(world.kubelets.cards.keys() - {LIAR})
