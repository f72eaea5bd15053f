"""A step of a story: the number decides the event; then the world is judged."""

from collections.abc import Callable

from tests.simulation import calls, people, processes
from tests.simulation.chance import Chance
from tests.simulation.setting import FAULTS
from tests.simulation.world import World

HAPPENINGS: dict[str, Callable[[World, Chance], str]] = {
    "answer": calls.answer_one,
    "apply": calls.apply,
    "deliver": calls.deliver,
    "fault": calls.go_wrong,
    "show": calls.show_lines,
    "late": calls.apply_late,
    "schedule": people.schedule,
    "bind": people.bind,
    "bind_again": people.bind_again,
    "strange": people.strange,
    "admit": people.admit,
    "start": people.start,
    "stop": people.stop,
    "finish": people.finish,
    "create": people.create,
    "forge": people.forge,
    "delete": people.delete,
    "force": people.force,
    "edit": people.edit,
    "resize": people.resize,
    "other_binds": people.other_binds,
    "node": people.node,
    "flap": people.flap,
    "shake": people.shake,
    "say": people.say,
    "hush": people.hush,
    "plugin": people.plugin,
    "collect": people.collect,
    "close": people.close,
    "tenant": people.tenant,
    "lie": people.lie,
    "wait": processes.wait,
    "linger": processes.linger,
    "sit_out": processes.sit_out,
    "cut": calls.cut,
    "end": calls.end_watch,
    "bad_line": calls.bad_line,
    "error_event": calls.error_event,
    "again": calls.again,
    "blind": calls.blind,
    "bookmark": calls.bookmark,
    "compact": calls.compact,
    "relist": calls.relist,
    "sink": calls.sink,
    "crash": processes.crash,
    "retire": processes.retire,
    "meddle": processes.meddle,
    "freeze": processes.freeze,
    "thaw": processes.thaw,
    "pause": processes.pause,
    "lease": processes.lease,
    "fail_over": processes.fail_over,
}
_TRIES = 8
"""Number of draws after which a step without a possible event is empty."""


def take_step(world: World, number: int) -> None:
    """Do the event of the number, and judge. Raises Violation."""
    chance = Chance(number)
    for _ in range(_TRIES):
        name = world.setting.weights.draw(chance)
        event = HAPPENINGS[name](world, chance)
        if event:
            world.tell(f"{name} {event}")
            if name in FAULTS and name != "fault":
                world.fired[name] += 1
            break
    world.end_step()
