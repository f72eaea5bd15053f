"""The end of every story: faults stop, and everything must come right by itself.

L1 books equal the truth, no charge is in doubt, and an audit finds nothing. L2 without pods
nothing is held. L3 a pod that fits is bound. L4 one process answers, within two minutes.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gpushare.core.model import Reason
from gpushare.core.snapshot import REASONS
from gpushare.core.states.entry import NodeBooks
from gpushare.errors import ApiUnavailable
from gpushare.extender.follow.auditor import AUDIT_INTERVAL
from gpushare_localcluster.api.resources import PODS
from tests.simulation.machines import CPU, MEMORY
from tests.simulation.oracle import Violation
from tests.simulation.replica import AUDIT, Replica
from tests.simulation.scheduler import check_partition
from tests.simulation.truth import Cards, PodTruth
from tests.simulation.world import World

_T = TypeVar("_T")

_LONGEST = 120.0
"""Seconds after which everything must have come right."""

_ATTEMPTS = 5
"""Binds after which a pod that fits must be bound."""


def come_to_rest(world: World) -> None:
    """Stop all faults, and see that everything comes right. Raises Violation."""
    stop_faults(world)
    leader = wait(world)
    for replica in world.replicas:
        _check_books(world, replica)
    if world.setting.shape.audit < AUDIT_INTERVAL:
        _audit(world, leader)
    for pod in world.users.waiting():
        _bind(world, pod)
    for pod in world.users.alive():
        world.kubelets.delete(pod, 0)
    wait(world)
    for replica in world.replicas:
        _check_books(world, replica)
        for node in replica.ledger.dump():
            if any(node.used) or any(node.cores_used):
                raise Violation(f"L2 {replica.identity} still charges {node}")


def stop_faults(world: World) -> None:
    _heal_network(world)
    world.machines.calm()
    if world.setting.shape.leadership == "scheduler":
        world.lease.take(world.replicas[0].host)
    world.judge()


def _heal_network(world: World) -> None:
    network = world.network
    network.armed.clear()
    for replica in world.replicas:
        if replica.frozen:
            world.thaw(replica)
        for sink in replica.sinks.values():
            sink.failures = 0
    for stream in list(network.streams):
        if stream.blind and stream in network.streams:
            stream.show(ApiUnavailable("the stream was cut", 0))
    for late in list(network.late):
        network.apply_late(late)


def wait(world: World) -> Replica:
    """The process that answers once all is quiet. Raises Violation where that takes too long."""
    end = world.tasks.now + _LONGEST
    while True:
        world.settle()
        _run_pods(world)
        world.replace_ended()
        world.judge()
        trouble = _trouble(world)
        if not trouble:
            return next(replica for replica in world.replicas if replica.ready())
        if world.tasks.now > end:
            raise Violation(f"L4 after {_LONGEST} s without faults: {trouble}")
        world.pass_time(1.0)


def _run_pods(world: World) -> None:
    kubelets = world.kubelets
    world.oracle.follow()
    for pod in kubelets.stoppable():
        kubelets.stop(pod)
        world.oracle.follow()
    for pod in kubelets.admissible():
        kubelets.admit(pod)
        world.oracle.follow()
    for pod in kubelets.starting():
        kubelets.start(pod)
        world.oracle.follow()


def _trouble(world: World) -> str:
    network = world.network
    if network.waiting or network.late or world.scheduler.binding:
        return f"requests are under way: {network.waiting} {network.late}"
    if any(stream.feed.behind() for stream in network.streams):
        return "watches are behind"
    for replica in world.replicas:
        if replica.ending:
            return f"{replica.identity} is ending"
        machines = replica.reflectors.values()
        if not all(machine.status.synced and machine.status.watching for machine in machines):
            return f"{replica.identity} does not follow"
        if replica.ledger.counts()["assumed"]:
            return f"{replica.identity} has assumed charges"
    ready = [replica for replica in world.replicas if replica.ready()]
    if len(ready) != 1:
        return (
            f"{len(ready)} processes answer: {[item.readiness.checks() for item in world.replicas]}"
        )
    return ""


def _check_books(world: World, replica: Replica) -> None:
    replica.ledger.check()
    bound_pods = [pod for pod in world.oracle.pods.values() if pod.node and not pod.ended]
    cards = world.kubelets.cards
    nodes = {node.spec.name: node for node in replica.ledger.dump()}
    nodes_with_devices = {name for name, node_cards in cards.items() if node_cards.units}
    if nodes.keys() != nodes_with_devices:
        raise Violation(
            f"L1 {replica.identity} knows {sorted(nodes)} of {sorted(nodes_with_devices)}"
        )
    for name, node in nodes.items():
        _check_node(world, replica, node, cards[name])
        on = {pod.uid: pod for pod in bound_pods if pod.node == name and pod.asked.devices}
        entries = {entry.ref.uid: entry for entry in node.entries}
        if entries.keys() != on.keys():
            raise Violation(f"L1 {replica.identity} charges {sorted(entries)} of {sorted(on)}")
        knowledge = world.oracle.known[replica.identity]
        sure = [pod for pod in on.values() if knowledge.at_home(pod) and not pod.edited]
        for pod in sure:
            if entries[pod.uid].placement != pod.claim:
                raise Violation(f"L1 {replica.identity} charges {entries[pod.uid]} for {pod}")
        if len(sure) == len(on):
            _check_sums(replica, node, sure)
    forged = {pod.uid for pod in world.oracle.pods.values() if pod.forged}
    waiting_uids = {pod.uid for pod in replica.ledger.waiting()} - forged
    pending = {
        pod.uid
        for pod in world.users.alive()
        if pod.asked.devices and not (pod.node or pod.ended or pod.terminating)
    } - forged
    if waiting_uids != pending:
        raise Violation(f"L1 {replica.identity} sees {waiting_uids} wait, {pending} do")


def _check_node(world: World, replica: Replica, node: NodeBooks, cards: Cards) -> None:
    closed_devices = world.oracle.known[replica.identity].closed.get(node.spec.name, frozenset())
    healthy = tuple(ok and device not in closed_devices for device, ok in enumerate(cards.healthy))
    if (node.spec.capacity, node.spec.healthy) != (cards.units, healthy):
        raise Violation(f"L1 {replica.identity} takes {node.spec} for {cards}")
    pods = world.oracle.pods.values()
    used_cpu = sum(pod.cpu for pod in pods if pod.node == node.spec.name and not pod.ended)
    free_host = (CPU - used_cpu, (MEMORY - used_cpu) << 20)
    if (node.cpu_free, node.memory_free) != free_host:
        raise Violation(f"L1 {replica.identity} has {free_host} for the host left on {node}")


def _check_sums(replica: Replica, node: NodeBooks, pods: list[PodTruth]) -> None:
    """Compute is charged where the memory of these pods is, which are all that the node has."""
    min_cores, memory = [0] * len(node.used), [0] * len(node.used)
    for pod in pods:
        for device, units in pod.claim or ():
            min_cores[device] += pod.asked.cores_on(units)
            memory[device] += pod.asked.charged(units, node.spec.capacity[device])
    if list(node.used) != memory:
        raise Violation(f"L1 {replica.identity} charges {node.used}, and {memory} is right: {node}")
    if (any(min_cores) and list(node.cores_used) != min_cores) or (
        not any(min_cores) and any(node.cores_used)
    ):
        raise Violation(f"L1 {replica.identity} has {min_cores} % of the compute of {node} in use")


def _bind(world: World, pod: PodTruth) -> None:
    """A pod that fits somewhere has to be bound by calls of filter and bind."""
    answers: list[bytes] = []
    for _ in range(_ATTEMPTS):
        replica = wait(world)
        cards = world.kubelets.cards
        could = [name for name in sorted(cards) if fits(world, replica, pod, name)]
        error = ask(world, replica, pod)
        answers += error
        if pod.node or not (could or error[1:]):
            return
        world.pass_time(2.0)
    raise Violation(f"L3 {pod} fits on {could}, but {answers}")


def ask(world: World, replica: Replica, pod: PodTruth) -> list[bytes]:
    """Have filter and bind called for the pod, as a scheduler does; return the answers."""
    names = sorted(world.kubelets.cards)
    record = world.server.registry.get(PODS, pod.namespace, pod.name)
    body = b'{"Pod":%s,"NodeNames":%s}' % (record.encoded(), json.dumps(names).encode())
    answers = [call(world, replica, partial(replica.service.filter, body))]
    answer = json.loads(answers[0])
    check_partition(answer, names, best_only=world.setting.shape.best_only)
    for node in answer["NodeNames"][:1]:
        bind = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid}
        text = json.dumps({**bind, "Node": node}).encode()
        answers.append(call(world, replica, partial(replica.service.bind, text)))
    return answers


def _audit(world: World, replica: Replica) -> None:
    """A finding of an audit now is no delay: an audit looks twice, and the watches catch up."""
    auditor = replica.new_auditor(report=partial(world.oracle.audited, replica.identity))
    for _ in range(2):
        world.bookmark()
        world.settle()
        call(world, replica, auditor.audit, AUDIT)


def call(world: World, replica: Replica, work: Callable[[], _T], name: str = "rest") -> _T:
    """The result, however long it takes."""
    answers: list[_T] = []
    replica.call(name, lambda: answers.append(work()))
    while not answers:
        world.settle()
        world.pass_time(0.5)
    world.settle()
    world.judge()
    return answers[0]


def _grown(replica: Replica, node: str) -> bool:
    """Whether the node is closed because devices have grown: cards of another size may come."""
    view = replica.ledger.snapshot()
    return REASONS[int(view.closed[view.row[node]])] is Reason.GROWN if node in view.row else False


def fits(
    world: World,
    replica: Replica,
    pod: PodTruth,
    node: str,
    without: Callable[[PodTruth], bool] = lambda other: False,
) -> bool:
    """Whether the pod surely fits on a node where nothing odd has happened, and may be bound.

    without: whether another pod does not count.
    """
    kubelets = world.kubelets
    cards = kubelets.cards[node]
    if node in kubelets.forged or pod.forged or pod.refused or _grown(replica, node):
        return False
    closed_devices = world.oracle.known[replica.identity].closed.get(node, frozenset())
    room = [
        0 if device in closed_devices else cards.room(device) for device in range(len(cards.units))
    ]
    taken_devices, cores, fellows = set[int](), [0] * len(room), set[int]()
    sharers = [0] * len(room)
    knowledge = world.oracle.known[replica.identity]
    for holder in world.oracle.pods.values():
        if holder.node != node or holder.ended or without(holder) or not holder.asked.devices:
            continue
        if (
            not knowledge.at_home(holder)
            or holder.claim is None
            or any(at >= len(room) for at, _ in holder.claim)
        ):
            charges = map(holder.asked.charged_anywhere, cards.units)
            room = [units - charged for units, charged in zip(room, charges, strict=True)]
            sharers = [count + 1 for count in sharers]
            cores = [percent + holder.asked.all_cores for percent in cores]
            taken_devices.update(range(len(room)))
            fellows.update(range(len(room)) if holder.stays_apart else ())
            continue
        fellows.update(dict(holder.claim) if holder.stays_apart else ())
        for device, units in holder.claim:
            room[device] -= holder.asked.charged(units, cards.units[device])
            sharers[device] += 1
            cores[device] += holder.asked.cores_on(units)
            taken_devices.add(device)
    request = pod.asked
    fitting = [
        units >= request.charged(request.units, cards.units[device])
        and sharers[device] < cards.sharers
        and cores[device] + max(request.cores, 1) <= 100
        and not (request.cores == 100 and device in taken_devices)
        and not (pod.stays_apart and device in fellows)
        for device, units in enumerate(room)
    ]
    return sum(fitting) >= request.devices
