"""Events of requests and watches: each function takes the world one step on, and describes the
step.

"" if the step has no object.
"""

from gpushare.errors import ApiUnavailable
from tests.simulation.chance import Chance
from tests.simulation.network import told
from tests.simulation.server import Line, error_line
from tests.simulation.world import World


def apply(world: World, chance: Chance) -> str:
    """The server handles a request; the answer is on the way."""
    requests = world.waiting(answered=False)
    if not requests:
        return ""
    request = chance.pick(requests)
    request.answer = world.network.serve(request)
    return told(request)


def deliver(world: World, chance: Chance) -> str:
    """An answer arrives."""
    requests = world.waiting(answered=True)
    if not requests:
        return ""
    request = chance.pick(requests)
    return world.deliver(request)


def answer_one(world: World, chance: Chance) -> str:
    """A request is answered at once."""
    requests = world.answerable()
    if not requests:
        return ""
    request = chance.pick(requests)
    return world.answer(request)


def go_wrong(world: World, chance: Chance) -> str:
    """A request goes wrong, in one of the ways there are."""
    requests = world.waiting(answered=False)
    if not requests:
        return ""
    request = chance.pick(requests)
    fault = chance.pick(request.faults)
    if fault == "slow":
        request.answer = world.network.serve(request)
        return f"slow {told(request)}"
    request.answer = world.network.outcome(request, fault)
    request.silent = request.answer is None
    description = f"{fault} {told(request)}"
    if request.answer is not None and not request.client.frozen:
        world.deliver(request)
    return description


def apply_late(world: World, chance: Chance) -> str:
    """The server handles a write of a client that has given up."""
    if not world.network.late:
        return ""
    late = chance.pick(world.network.late)
    world.network.apply_late(late)
    return told(late.request)


def show_lines(world: World, chance: Chance) -> str:
    """A watch delivers some changes."""
    streams = [item for item in world.streams() if not item.blind and item.feed.behind()]
    if not streams:
        return ""
    stream = chance.pick(streams)
    max_lines = chance.pick((1, 1, 2, 100))
    line_count = 0
    while line_count < max_lines and stream in world.network.streams and stream.feed.behind():
        world.show(stream, stream.feed.take())
        line_count += 1
    return f"{stream.path} {line_count} lines to {stream.client.identity}"


def again(world: World, chance: Chance) -> str:
    """The last changes are delivered once more."""
    streams = [item for item in world.streams() if not item.blind and item.feed.last]
    if not streams:
        return ""
    stream = chance.pick(streams)
    lines = list(stream.feed.last)
    for line in lines:
        if stream in world.network.streams:
            world.show(stream, line)
    return f"{stream.path} {len(lines)} lines to {stream.client.identity}"


def cut(world: World, chance: Chance) -> str:
    """A watch is cut."""
    return _on_some_stream(world, chance, ApiUnavailable("the stream was cut", 0))


def bad_line(world: World, chance: Chance) -> str:
    """A line comes cut off, or one that is none."""
    streams = [item for item in world.streams() if not item.blind and item.feed.behind()]
    if streams and chance.below(2):
        stream = chance.pick(streams)
        line = stream.feed.take()
        world.show(stream, Line(line.text[: len(line.text) // 2]))
        return f"{stream.path} of {stream.client.identity}, half a line"
    texts = (b'{"type":"MODI', b"[]", b'{"type":"MODIFIED","object":{}}', b"\xff")
    return _on_some_stream(world, chance, Line(chance.pick(texts)))


def error_event(world: World, chance: Chance) -> str:
    """A watch ends with an ERROR."""
    return _on_some_stream(world, chance, error_line(chance.pick((410, 500, 403))))


def end_watch(world: World, chance: Chance) -> str:
    """A watch ends by the server's will."""
    streams = world.streams()
    if not streams:
        return ""
    stream = chance.pick(streams)
    stream.feed.ends = world.tasks.now
    assert stream.task is not None
    stream.task.until = world.tasks.now
    return f"{stream.path} of {stream.client.identity}"


def blind(world: World, chance: Chance) -> str:
    """A watch falls silent, and nobody says so."""
    streams = [stream for stream in world.streams() if not stream.blind]
    if not streams:
        return ""
    stream = chance.pick(streams)
    stream.blind = True
    return f"{stream.path} of {stream.client.identity}"


def bookmark(world: World, chance: Chance) -> str:
    """All watches get a bookmark."""
    del chance
    return "on all watches" if world.bookmark() else ""


def compact(world: World, chance: Chance) -> str:
    """The server compacts the history."""
    del chance
    world.oracle.follow()
    world.server.store.compact()
    return "history"


def relist(world: World, chance: Chance) -> str:
    """A process wants a list anew."""
    if not world.replicas:
        return ""
    replica = chance.pick(world.replicas)
    name = chance.pick(("pods", "pods", "nodes"))
    replica.reflectors[name].request_relist()
    return f"{name} by {replica.identity}"


def sink(world: World, chance: Chance) -> str:
    """A receiver will fail at the next delivery."""
    if not world.replicas:
        return ""
    replica = chance.pick(world.replicas)
    name = chance.pick(("pods", "nodes"))
    replica.sinks[name].failures = 1
    return f"{name} of {replica.identity} will fail"


def _on_some_stream(world: World, chance: Chance, line: Line | ApiUnavailable) -> str:
    streams = world.streams()
    if not streams:
        return ""
    stream = chance.pick(streams)
    world.show(stream, line)
    return f"{stream.path} of {stream.client.identity}"
