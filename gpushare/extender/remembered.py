"""What filter found that pods ask for, kept for the bind that follows.

Bounded by count; the oldest go first, and are then read from the API server. Any thread may call
any method.
"""

from gpushare.extender.binder import Asked

_MOST = 20_000


class Remembered:
    """Pods by uid. No lock: every step is one operation on a dict."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[bool, Asked | None]] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether filter was called for the pod, and it has not been bound since."""
        return uid in self._asked

    def look(self, uid: str) -> tuple[bool, Asked | None]:
        """(whether it is known what the pod asks for, and what that is).

        One look: a filter of the same pod may take it out and put it in again meanwhile, and a pod
        taken for one that asks for nothing would be bound without a charge.
        """
        return self._asked.get(uid, (False, None))

    def keep(self, uid: str, asked: Asked | None, *, known: bool = True) -> None:
        """Keep what the pod asks for; None: nothing of ours. Not known: it makes no sense."""
        self._asked.pop(uid, None)
        self._asked[uid] = known, asked
        while len(self._asked) > _MOST:
            try:
                self._asked.pop(next(iter(self._asked)), None)
            except (StopIteration, RuntimeError):  # another thread is doing the same
                return

    def drop(self, uid: str) -> None:
        """The pod is bound."""
        self._asked.pop(uid, None)
