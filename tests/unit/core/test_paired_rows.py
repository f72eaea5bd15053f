"""The cache of pairing equals a computation from all pins."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.decide import best_row
from gpushare.core.model import Charge, Pinned, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.pairing import paired_devices
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot, has_room
from tests.unit.core.clusters import node

NAMES = ("a", "b", "c")
requests = st.builds(
    lambda units, devices, parts: Request(
        units, devices, containers=tuple((number, 1) for number in range(parts))
    ),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("pin"), st.sampled_from(NAMES), requests),
        st.tuples(st.just("served"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("join"), st.sampled_from(("d", "e")), st.none()),
        st.tuples(st.just("ask"), st.just(""), requests),
    ),
    max_size=30,
)


def reference(view: Snapshot, request: Request) -> list[list[bool]]:
    """Return where the request fits, by a look at every pin."""
    mask: list[list[bool]] = has_room(view, np.arange(len(view.names)), request).tolist()
    for row, pins in view.pinned.items():
        allowed_devices = paired_devices(pins, request)
        if allowed_devices is not None:
            mask[row] = [
                fits and device in allowed_devices for device, fits in enumerate(mask[row])
            ]
    return mask


@given(steps)
def test_what_is_kept_changes_no_answer(actions: list[tuple[str, str, Request | None]]) -> None:
    arrays, pins = NodeArrays(), dict[str, dict[int, tuple[Charge, Pinned]]]()
    for name in NAMES:
        arrays.set_node(node(name, 9, 9), ())
    ranking, views = Ranking(load_policy("binpack")), list[Snapshot]()

    def look() -> Snapshot:
        node_pins = {
            name: tuple(pin for _, pin in pins_of_node.values())
            for name, pins_of_node in pins.items()
            if pins_of_node
        }
        return arrays.snapshot(node_pins)

    for number, (action, name, request) in enumerate(actions):
        pins_here = pins.setdefault(name, {})
        if action == "pin" and request is not None:
            charge = Charge(name, Request(1, 1), ((number % 2, 1),))
            pins_here[number] = charge, (request.sizes, (number % 2,))
            arrays.add(charge)
        elif action == "served" and pins_here:
            charge, _ = pins_here.pop(next(iter(pins_here)))
            arrays.add(charge, -1)
        elif action == "join":
            arrays.set_node(node(name, 9, 9, 9), ())
        elif request is not None:
            views.append(look())
            # Somebody may still hold the snapshot before the last.
            for view in (views[-1], views[max(len(views) - 2, 0)], views[-1]):
                rows = np.arange(len(view.names))
                mask = has_room(view, rows, request, pairing=True)
                assert mask.tolist() == reference(view, request)
                best = best_row(view, rows, request, ranking)
                assert best == best_row(view, rows, request, Ranking(load_policy("binpack")))
                if best is not None:
                    assert mask[best].sum() >= request.devices


def test_only_rows_with_changes_are_looked_at_again() -> None:
    arrays, looked = NodeArrays(), list[int]()

    class Pins(dict[int, tuple[Pinned, ...]]):
        def __getitem__(self, row: int) -> tuple[Pinned, ...]:
            looked.append(row)
            return super().__getitem__(row)

    pin: Pinned = (frozenset({3}), (0,))
    for number in range(50):
        arrays.set_node(node(f"n{number:02}", 9, 9), ())
    request = Request(3, 1)

    def look() -> Snapshot:
        view = arrays.snapshot({})
        vars(view)["pinned"] = Pins(dict.fromkeys(range(50), (pin,)))
        return view

    view = look()
    assert has_room(view, np.arange(50), request, pairing=True).sum() == 50
    assert sorted(looked) == list(range(50))
    looked.clear()
    arrays.add(Charge("n07", Request(1, 1), ((0, 1),)))
    assert has_room(look(), np.arange(50), request, pairing=True).sum() == 50
    assert looked == [7]
