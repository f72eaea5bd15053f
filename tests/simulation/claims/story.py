"""Stories of claims: a world of a seed, so many steps, and the quiet after them.

`python -m tests.simulation.claims.story SEED` tells one in words.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.chance import Chance, numbers
from tests.simulation.claims.oracle import Node, asked_of, claims_of, class_of, results_of
from tests.simulation.claims.replica import gang_of
from tests.simulation.claims.server import CLAIMS, Json
from tests.simulation.claims.world import World, refused
from tests.simulation.oracle import Violation
from tests.simulation.replica import Alarms
from tests.unit.wire.dra.objects import CLASS, GIB

STEPS = 60
_ROUNDS = 40
"""Rounds within which all that fits has to be placed, once nothing goes wrong any more."""


@dataclass(frozen=True, slots=True)
class Told:
    """How a story went. error: the promise that was broken, "" if none was."""

    error: str
    fired: dict[str, int]
    landed: int


def tell(seed: int, steps: int = STEPS, say: Callable[[str], None] | None = None) -> Told:
    """Tell the story of a seed."""
    first, *rest = numbers(seed, steps)
    logger = logging.getLogger("gpushare")
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    alarms = Alarms()
    logger.addHandler(alarms)
    world = World(first)
    try:
        for number in rest:
            what = world.step(number)
            if say:
                say(_words(world, what))
            if alarms.said:
                raise Violation(f"X3 {alarms.said[0]}")
        _quiet(world, say)
    except Violation as violation:
        return Told(str(violation), world.fired, world.oracle.landed)
    finally:
        logger.removeHandler(alarms)
        logger.setLevel(level)
        logger.propagate = propagate
    return Told("", world.fired, world.oracle.landed)


def _quiet(world: World, say: Callable[[str], None] | None) -> None:
    """Nothing goes wrong any more: what fits is placed, and nothing is held for nobody."""
    _mend(world)
    for _ in range(_ROUNDS):
        _pass_round(world)
        if say:
            say(_words(world, "quiet"))
        left = [_name(pod) for pod in world.waiting() if _fits(world, pod)]
        orphans = _orphans(world)
        halves = _halves(world)
        if not left and not orphans and not halves:
            break
    if left:
        raise Violation(f"D9 there is room for {left}, who wait")
    if halves:
        raise Violation(f"D10 {halves} have devices, and their gang is not whole")
    if orphans:
        raise Violation(f"D5 nobody uses {orphans}")
    for replica in world.alive():
        replica.catch_up()
        if not replica.books.in_flight():
            world.compare(replica)
        elif replica is world.lease.holder:
            raise Violation(f"D3 {replica.books.in_flight()} are in flight for ever")


def _mend(world: World) -> None:
    world.calm, world.chance, world.unwell = True, Chance(0), False
    for node in world.nodes.values():
        node.hurt.clear()
        node.generation += 1
        node.unsaid = list(range(node.parts))
        while node.unsaid:
            world.publish()


def _pass_round(world: World) -> None:
    """Let 20 seconds pass, and everybody do what he has to, each once he is told."""
    world.start()
    for _ in range(5):
        world.advance(4.0)
        world.lead()
    for _ in range(2):
        world.control()
        for replica in world.alive():
            replica.catch_up()
        world.round()
        for name in [_name(pod) for pod in world.waiting()]:
            for _ in range(3):
                if name in world.pods:
                    world.schedule_one(world.pods[name])


def _fits(world: World, pod: Json) -> bool:
    """Return whether the pod could be placed, however the books count what was renumbered."""
    claims = [world.store.objects[CLAIMS].get(name) for name in claims_of(pod)]
    found = [each for each in claims if each and not each["metadata"].get("deletionTimestamp")]
    ours = [each for each in found if class_of(each) == CLASS]
    if len(found) < len(claims) or not ours or gang_of(pod):
        return False
    if any(results_of(each) or _reserved(each) for each in ours):
        return False
    sizes = [[memory for _, memory in asked_of(each)] for each in ours]
    wanted = sorted(sizes, key=lambda each: -sum(each))
    for node in world.nodes.values():
        if node.name not in refused(pod):
            free = {uuid: size // GIB - _charged(world, uuid) for uuid, size in node.cards.values()}
            if _fit_however(node, free, wanted):
                return True
    return False


def _fit_however(
    node: Node,
    free: dict[str, int],
    wanted: Sequence[Sequence[int]],
    taken: frozenset[str] = frozenset(),
) -> bool:
    """Return whether there is room for all, whichever card each device before has been.

    free: units by card. wanted: by claim the bytes on each device. taken: cards that the first of
    the claims has been given for other devices.
    """
    if not any(wanted):
        return True
    (memory, *rest), *others = wanted
    sizes = dict(node.cards.values())
    amounts = {uuid: node.consumed(memory, size) for uuid, size in sizes.items()}
    takes = {uuid: _units(amount) for uuid, amount in amounts.items() if amount is not None}
    able = [uuid for uuid, units in takes.items() if uuid not in taken and units <= free[uuid]]
    return bool(able) and all(
        _fit_however(
            node,
            free | {uuid: free[uuid] - takes[uuid]},
            [rest, *others] if rest else others,
            taken | {uuid} if rest else frozenset(),
        )
        for uuid in able
    )


def _halves(world: World) -> list[str]:
    """Return the pods of gangs that alone have devices, and wait for others of their gang."""
    claims = world.store.objects[CLAIMS]
    users = Counter(name for pod in world.pods.values() for name in claims_of(pod))
    return sorted(
        _name(pod)
        for pod in world.waiting()
        for name in claims_of(pod)
        if gang_of(pod)
        and users[name] == 1
        and results_of(claims.get(name))
        and not claims[name]["metadata"].get("deletionTimestamp")
    )


def _charged(world: World, card: str) -> int:
    """Return the units that claims may have of a card, under any name that it has had.

    Books count each device of a claim on every card that it has meant, so two may meet on one.
    """
    return sum(
        sum(map(_units, each.cards.values()))
        for uid, each in world.oracle.given.items()
        if world.oracle.may_count(uid, card)
    )


def _orphans(world: World) -> list[str]:
    """Return the claims that we have allocated, and that no pod has any more."""
    living = {
        name
        for pod in world.pods.values()
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
        for name in claims_of(pod)
    }
    given = [each for each in world.oracle.given.values() if each.ours]
    return sorted({_name(each.claim) for each in given} - living)


def _reserved(claim: Json) -> bool:
    return bool((claim.get("status") or {}).get("reservedFor"))


def _units(amount: int) -> int:
    return -(-amount // GIB)


def _name(found: Json) -> str:
    return str(found["metadata"]["name"])


def _words(world: World, what: str) -> str:
    claims = ", ".join(
        f"{name} {'+'.join(f'{memory / GIB:g}' for _, memory in asked_of(each))}"
        + "".join(f" {r['pool']}/{r['device']}" for r in results_of(each))
        for name, each in sorted(world.store.objects[CLAIMS].items())
    )
    pods = ", ".join(
        f"{name}({' '.join(claims_of(pod))})"
        f"{'@' + pod['spec']['nodeName'] if pod['spec'].get('nodeName') else ''}"
        for name, pod in sorted(world.pods.items())
    )
    return f"{world.now:8.1f} {what:14} claims: {claims}; pods: {pods}"


if __name__ == "__main__":
    told = tell(int(sys.argv[1]), say=print)
    print(told.error or "it ends well")
