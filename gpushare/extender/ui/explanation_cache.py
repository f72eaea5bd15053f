"""Why each pod waits, in explain's sentence, at a bounded cost.

To explain a request on a full cluster takes up to 0.3 s of the processor, and many requests may
wait. So equal requests are explained once, and no more than a tenth of the time is spent on it;
the others keep the sentence that they have until it is their turn.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from gpushare.core.model import Request
from gpushare.explain.pod import explanation_of
from gpushare.explain.text import sentence
from gpushare.ledger import Reader

_BUDGET = 0.05
"""Seconds of one turn; the first explanation of it is always made."""
_REST = 9.0
"""Rest after a turn, as a multiple of its time."""


class ExplanationCache:
    """The explanations of the requests that wait for one resource, each in one sentence.

    unit: of its memory. clock: seconds of a clock that only goes forward.
    """

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
        self._clock = clock
        self._rested_at = 0.0
        self._said: dict[Request, tuple[int, str]] = {}
        self.complete = True
        """Whether all sentences are of the last snapshot."""

    def about(
        self, requests: Iterable[Request], ledger: Reader, generation: int
    ) -> Mapping[Request, str]:
        """Return the sentences; a request whose turn has not come yet is left out.

        generation: of the books' last snapshot.
        """
        wanted = dict.fromkeys(requests)
        self._said = {each: said for each, said in self._said.items() if each in wanted}
        # First those without a sentence, then those with the oldest ones.
        stale = [each for each in wanted if self._age(each) != generation]
        stale.sort(key=self._age)
        begin = now = self._clock()
        while stale and begin >= self._rested_at and now <= begin + _BUDGET:
            request = stale.pop(0)
            self._said[request] = generation, self._explain(ledger, request)
            now = self._clock()
        if now > begin:
            self._rested_at = now + (now - begin) * _REST
        self.complete = not stale
        return {each: text for each, (_, text) in self._said.items()}

    def _age(self, request: Request) -> int:
        return self._said.get(request, (-1, ""))[0]

    def _explain(self, ledger: Reader, request: Request) -> str:
        found = explanation_of(ledger, request, time.time())
        if found.fit:
            nodes = f"{len(found.fit)} node{'s' * (len(found.fit) > 1)}"
            return f"it fits now on {nodes}, as far as GPU memory goes"
        return sentence(found, self._unit)
