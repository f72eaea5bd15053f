"""Steps of schedulers, kubelets, users and nodes: each returns a description, "" for nothing."""

from collections.abc import Sequence

from tests.simulation.chance import Chance
from tests.simulation.truth import PodTruth
from tests.simulation.world import World


def schedule(world: World, chance: Chance) -> str:
    """The scheduler filters a pod and chooses a node."""
    busy = {placement.pod.uid for placement in (*world.scheduler.placed, *world.scheduler.binding)}
    pods = world.users.waiting()
    if not chance.once_in(8):
        pods = [pod for pod in pods if pod.uid not in busy]
    return world.scheduler.schedule(chance, pods)


def bind(world: World, chance: Chance) -> str:
    """The scheduler has a pod bound."""
    return world.scheduler.bind(chance)


def bind_again(world: World, chance: Chance) -> str:
    """The scheduler asks for a bind once more."""
    return world.scheduler.bind_again(chance)


def strange(world: World, chance: Chance) -> str:
    """Somebody asks for a bind that makes no sense."""
    return world.scheduler.strange(chance)


def admit(world: World, chance: Chance) -> str:
    """A kubelet admits a pod, or refuses it."""
    pod = _some(world.kubelets.admissible(), chance)
    return f"{pod.uid} on {pod.node}: {world.kubelets.admit(pod, chance)}" if pod else ""


def start(world: World, chance: Chance) -> str:
    """The containers of a pod start."""
    pod = _some(world.kubelets.starting(), chance)
    return f"{pod.uid}: {world.kubelets.start(pod)}" if pod else ""


def stop(world: World, chance: Chance) -> str:
    """A kubelet stops a pod marked deleted."""
    pod = _some(world.kubelets.stoppable(), chance)
    return f"{pod.uid}: {world.kubelets.stop(pod)}" if pod else ""


def finish(world: World, chance: Chance) -> str:
    """A pod ends by itself."""
    pod = _some(world.kubelets.started(), chance)
    return (
        f"{pod.uid}: {world.kubelets.finish(pod, chance.pick(('Succeeded', 'Failed')))}"
        if pod
        else ""
    )


def create(world: World, chance: Chance) -> str:
    """A user creates a pod."""
    return world.users.create(chance)


def forge(world: World, chance: Chance) -> str:
    """A user creates a pod with annotations that are not for users."""
    return world.users.create(chance, forge=True)


def delete(world: World, chance: Chance) -> str:
    """A user deletes a pod."""
    return world.users.delete(chance, 30)


def force(world: World, chance: Chance) -> str:
    """A user deletes a pod by force."""
    return world.users.delete(chance, 0)


def edit(world: World, chance: Chance) -> str:
    """A user edits the annotations of a pod."""
    return world.users.edit(chance)


def resize(world: World, chance: Chance) -> str:
    """A user resizes the containers of a pod in place."""
    return world.users.resize(chance)


def other_binds(world: World, chance: Chance) -> str:
    """Another scheduler binds a pod."""
    return world.users.bind(chance)


def node(world: World, chance: Chance) -> str:
    """A node changes, goes or comes."""
    return world.machines.change(chance)


def flap(world: World, chance: Chance) -> str:
    """A node goes and comes, again and again."""
    del chance
    return world.machines.flap()


def shake(world: World, chance: Chance) -> str:
    """Cards of a node die, come back, or change places."""
    return world.machines.shake(chance)


def say(world: World, chance: Chance) -> str:
    """A node's object comes to say which cards there are."""
    return world.machines.say(chance)


def hush(world: World, chance: Chance) -> str:
    """A node's object shows less of the cards, or more."""
    return world.machines.hush(chance)


def plugin(world: World, chance: Chance) -> str:
    """A node gets another device plug-in."""
    return world.machines.exchange_plugin(chance)


def collect(world: World, chance: Chance) -> str:
    """The garbage collector removes pods of nodes that are gone."""
    del chance
    return world.users.collect()


def close(world: World, chance: Chance) -> str:
    """An operator closes devices."""
    return world.machines.close_devices(chance)


def tenant(world: World, chance: Chance) -> str:
    """The tenant who means harm does something."""
    return world.tenant.act(chance)


def lie(world: World, chance: Chance) -> str:
    """A node lies about itself."""
    return world.machines.lie(chance)


def _some(pods: Sequence[PodTruth], chance: Chance) -> PodTruth | None:
    """One of the pods, if there are any."""
    return chance.pick(pods) if pods else None
