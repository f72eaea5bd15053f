"""Runs a ledger scenario: commands, one per line, with their output.

A line that starts with "|" is expected output of the command above, one with "#" is a comment. Pods
are named `web` or, where a name comes back with another uid, `web#2`. A pod's request is said
once: `4` units on one device, `4x2` on each of two, `4=1+3` in two containers, `4=1+2/4+1` with
init containers of 4 and 1, `cpu=500` no GPU. A place is `gpu-a:0` or `gpu-a:0,1`, and `gpu-a:?`
where the annotations name no devices.

pairing on | off                     (first line; otherwise auto)
    node NAME UNITS.. [cards a,b] [byIdentity] [gone c] [counted] [sick 0,1] [closed REASON]
    nodes NAME UNITS.. ; NAME UNITS..    the complete list     remove NAME
    unhealthy NAME [0,1]                 the text of the ConfigMap
    event POD SIZE pending | on PLACE [uuids a,b] [given c=4] [assigned] [started] [runs] | ended
    gone POD
    list POD SIZE on PLACE ; POD SIZE pending ; ..             the complete list
    assume POD SIZE on PLACE [at T]      landed, doubt, resume POD [at T]      forget POD
    overdue [at T]                       settle POD missing | unbound | recreated | on PLACE [at T]
    filter SIZE                          dump      free      counts      standing POD
"""

from collections.abc import Callable, Iterator

from gpushare.core.decide import filter_nodes
from gpushare.core.model import Allocation, NodeSpec, ObservedPod, PodRef, Reason, Request, Shares
from gpushare.core.pairing import Pairing
from gpushare.core.states.entry import Entry, Phase
from gpushare.errors import RequestRefused
from gpushare.ledger import Ledger


def run(text: str) -> str:
    """The text with the current output of its commands."""
    script = Script()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("|"):
            continue
        lines.append(line)
        command = line.split()
        if command and not line.startswith("#"):
            lines += [f"| {output}" for output in script.step(command)]
    return "\n".join(lines) + "\n"


class Script:
    """A ledger under commands; after each command the books are audited."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._sizes: dict[str, Request] = {}
        self._tokens: dict[str, int] = {}
        self._commands: dict[str, Callable[[list[str], float], object]] = {
            "pairing": lambda words, _: self._pair(words[0]),
            "node": lambda words, _: self._ledger.node_changed(_spec(words)),
            "nodes": lambda words, _: self._ledger.replace_nodes(map(_spec, _split(words))),
            "remove": lambda words, _: self._ledger.node_gone(words[0]),
            "unhealthy": lambda words, _: self._ledger.set_unhealthy(
                words[0], frozenset(_numbers(words[1] if words[1:] else ""))
            ),
            "event": lambda words, _: self._ledger.pod_changed(self._pod(words)),
            "gone": lambda words, _: self._ledger.pod_gone(words[0]),
            "list": lambda words, _: self._ledger.replace_pods(map(self._pod, _split(words))),
            "assume": self._assume,
            "through": lambda words, now: [f"{self._ledger.let_through(words[0], now, '')}"],
            "landed": lambda words, now: self._ledger.landed(words[0], now),
            "doubt": lambda words, now: self._ledger.doubt(words[0], now),
            "resume": lambda words, now: [f"{self._resume(words[0], now)}"],
            "forget": lambda words, _: self._ledger.forget(words[0]),
            "overdue": self._overdue,
            "settle": self._settle,
            "filter": lambda words, _: self._filter(words[0]),
            "dump": lambda words, _: self._dump(*words),
            "free": lambda words, _: self._free(),
            "counts": lambda words, _: self._counts(),
            "standing": lambda words, _: [_show(self._ledger.entry(words[0]))],
        }

    def step(self, command: list[str]) -> list[str]:
        """The output of the command."""
        word, *words = command
        now = float(words.pop(words.index("at") + 1)) if "at" in words else 0.0
        words = [item for item in words if item != "at"]
        try:
            output = self._commands[word](words, now)
        except RequestRefused as error:
            output = [f"{type(error).__name__}: {error}"]
        self._ledger.check()
        return output if isinstance(output, list) else []

    def _pair(self, how: str) -> None:
        self._ledger = Ledger(Pairing(how))

    def _pod(self, words: list[str]) -> ObservedPod:
        """`POD [SIZE] pending`, `POD [SIZE] on PLACE [assigned] ..` or `POD [SIZE] ended`."""
        name, tail = words[0], words[1:]
        if tail[0][0].isdigit() or "=" in tail[0]:
            self._sizes[name] = _request(tail.pop(0))
        pod = ObservedPod(_ref(name), self._sizes.get(name, Request()), created=1.0)
        if tail[0] == "ended":
            return pod._replace(ended=True)
        if tail[0] == "pending":
            return pod
        node, devices = _place(tail[1])
        return pod._replace(
            node=node,
            placement=_shares(pod.request, devices) if devices else None,
            uuids=tuple(_after("uuids", tail).split(",")) if "uuids" in tail else (),
            given=tuple(
                (uuid, int(units)) for uuid, _, units in [_after("given", tail).partition("=")]
            )
            if "given" in tail
            else (),
            assigned="assigned" in tail,
            started=float("started" in tail),
            running="runs" in tail,
        )

    def _resume(self, uid: str, now: float) -> bool:
        entry = self._ledger.entry(uid)
        return self._ledger.resume(uid, entry.node if entry else "", now) is not None

    def _assume(self, words: list[str], now: float) -> None:
        name, size, _, place, *gate = words
        request = self._sizes[name] = _request(size)
        node, devices = _place(place)
        allocation = Allocation(node, tuple((device, request.units) for device in devices))
        self._ledger.assume(_ref(name), request, allocation, now, at_gate=gate == ["gated"])

    def _overdue(self, words: list[str], now: float) -> list[str]:
        due = self._ledger.overdue(now)
        self._tokens.update((item.ref.uid, item.token) for item in due)
        return [f"{item.ref.uid} on {item.node}" for item in due] or ["nothing"]

    def _settle(self, words: list[str], now: float) -> None:
        name, *tail = words
        collected: ObservedPod | None
        if tail[0] == "missing":
            collected = None
        elif tail[0] == "recreated":
            collected = ObservedPod(PodRef("default", name, f"{name}-again"), Request(1, 1))
        else:
            collected = self._pod(
                [name, *("pending" if word == "unbound" else word for word in tail)]
            )
        self._ledger.settle(name, self._tokens[name], collected, now)

    def _filter(self, size: str) -> list[str]:
        view = self._ledger.snapshot()
        verdict = filter_nodes(view, sorted(view.row), _request(size))
        return [f"{name}: fits" for name in verdict.fit] + [
            f"{name}: {reason.value}" for name, reason in verdict.failed.items()
        ]

    def _dump(self, node: str | None = None) -> list[str]:
        output = []
        for books in self._ledger.dump(node):
            used = " ".join(
                f"{units}/{has}{'' if fine else ' (sick)'}"
                for units, has, fine in zip(
                    books.used, books.spec.capacity, books.spec.healthy, strict=True
                )
            )
            closed_nodes = f" closed: {books.spec.closed.value}" if books.spec.closed else ""
            output.append(f"{books.spec.name}: {used}{closed_nodes}")
            output += [f"  {_show(entry)}" for entry in books.entries]
        return output or ["nothing"]

    def _free(self) -> list[str]:
        view = self._ledger.snapshot()
        return [
            f"{name}: {' '.join(map(str, view.free[row].tolist()))}"
            for name, row in sorted(view.row.items())
        ]

    def _counts(self) -> list[str]:
        counts = self._ledger.counts()
        return [", ".join(f"{word} {number}" for word, number in counts.items() if number)]


def _split(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word == ";":
            yield part
            part = []
        else:
            part.append(word)
    if part:
        yield part


def _spec(words: list[str]) -> NodeSpec:
    name, *tail = words
    capacity = []
    while tail and tail[0].isdigit():
        capacity.append(int(tail.pop(0)))
    sick = _numbers(_after("sick", tail))
    cards = tuple(_after("cards", tail).split(",")) if "cards" in tail else ("",) * len(capacity)
    return NodeSpec(
        name,
        tuple(capacity),
        tuple(device not in sick for device in range(len(capacity))),
        ("",) * len(capacity),
        cards,
        closed=Reason[_after("closed", tail)] if "closed" in tail else None,
        serves_by_identity="byIdentity" in tail,
        counted="counted" in tail,
        gone=tuple(_after("gone", tail).split(",")) if "gone" in tail else (),
    )


def _after(word: str, words: list[str]) -> str:
    """The word after the one, "" where that is not there."""
    return words[words.index(word) + 1] if word in words else ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(token) for token in text.split(",") if token)


def _request(size: str) -> Request:
    if size.startswith("cpu="):
        return Request(cpu=int(size.removeprefix("cpu=")))
    total, _, parts = size.partition("=")
    units, _, devices = total.partition("x")
    parts, _, before = parts.partition("/")
    containers = parts.split("+") if parts else [str(int(units) * int(devices or 1))]
    return Request(
        int(units),
        int(devices or 1),
        containers=tuple(enumerate(map(int, containers))),
        inits=tuple(map(int, before.split("+"))) if before else (),
    )


def _place(text: str) -> tuple[str, tuple[int, ...]]:
    node, _, devices = text.partition(":")
    return node, () if devices == "?" else _numbers(devices)


def _shares(request: Request, devices: tuple[int, ...]) -> Shares:
    return tuple((device, request.total // len(devices)) for device in devices)


def _ref(name: str) -> PodRef:
    return PodRef("default", name.partition("#")[0], name)


def _show(entry: Entry | None) -> str:
    if entry is None:
        return "not in the books"
    place = "no known device"
    if entry.placement is not None:
        place = " ".join(f"{units}@{device}" for device, units in entry.placement) or "nothing"
    marks = [
        word
        for word, is_so in [
            ("landed", entry.phase is Phase.LANDED),
            ("in doubt", entry.in_doubt),
            ("assigned", entry.assigned),
        ]
        if is_so
    ]
    state = "assumed" if entry.assumption else "bound"
    return " ".join([f"{entry.ref.uid} on {entry.node}:", place, state, *marks])
