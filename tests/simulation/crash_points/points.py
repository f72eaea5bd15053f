"""The ten points of a bind where a process may be stopped, and how to reach each.

Each point is a place in the production code: a function is called through a wrapper that
signals before, or after, the call. No other code is changed. K6 and K7 lie in the
API server, so the simulated API server signals these.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from importlib import import_module
from typing import Any


class Point(Enum):
    """Points in the order of a bind."""

    K0 = "the request is decoded"
    K1 = "the books were not looked at"
    K2 = "a device is chosen"
    K3 = "it is charged, under the lock"
    K4 = "the lock is released"
    K5 = "the Binding is made and not sent"
    K6 = "it is sent and not applied"
    K7 = "it is applied, its answer not read"
    K8 = "the answer is read, the books were not told"
    K9 = "the books are told, the scheduler was not"


SERVED = (Point.K6, Point.K7)
"""Points that lie in the API server."""

_SEAMS = {
    Point.K0: ("gpushare.extender.verbs.bind.binder", "decode_bind", "after"),
    Point.K1: ("gpushare.extender.verbs.bind.transaction", "place", "before"),
    Point.K2: ("gpushare.extender.verbs.bind.transaction", "place", "after"),
    # Nobody can tell whether the charge is in the books yet before the lock is given back.
    Point.K3: ("gpushare.core.states.records", "assumed", "after"),
    Point.K4: ("gpushare.ledger.Ledger", "assume", "after"),
    Point.K5: ("gpushare.extender.verbs.bind.binder", "encode_binding", "after"),
    Point.K8: ("gpushare.extender.verbs.bind.transaction.BindTransaction", "written", "before"),
    Point.K9: ("gpushare.extender.verbs.bind.binder", "encode_bind", "after"),
}


@contextmanager
def passing(point: Point, reached: Callable[[], None]) -> Iterator[None]:
    """Call `reached` in whatever thread comes by the point, while the `with` lasts."""
    owner_path, name, when = _SEAMS[point]
    owner = _owner(owner_path)
    work = getattr(owner, name)

    def before(*args: Any, **options: Any) -> Any:
        reached()
        return work(*args, **options)

    def after(*args: Any, **options: Any) -> Any:
        answer = work(*args, **options)
        reached()
        return answer

    setattr(owner, name, before if when == "before" else after)
    try:
        yield
    finally:
        setattr(owner, name, work)


def _owner(path: str) -> Any:
    """The module or class of that name."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)
