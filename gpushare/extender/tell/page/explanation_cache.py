"""Why each pod waits, in explain's sentence, at a bounded cost.

To explain a request on a full cluster takes up to 0.3 s of the processor, and many requests may
wait. So pods that ask for the same and demand the same are explained once, and no more than a tenth
of the time is spent on it; the others keep the sentence that they have until it is their turn.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from gpushare.core.explanation import Explanation
from gpushare.errors import MessageError
from gpushare.explain.text import sentence

_Question = TypeVar("_Question", bound=Hashable)
"""What a pod asks for, with all else that its explanation depends on."""

Version = tuple[int, int]
"""Of the books' last snapshot, and of the nodes as kube-scheduler's own filters see them."""

_NEVER: Version = (-1, -1)
_BUDGET = 0.05
"""Seconds of one turn; the first explanation of it is always made."""
_REST = 9.0
"""Rest after a turn, as a multiple of its time."""


class ExplanationCache:
    """The explanations of the requests that wait for one resource, each in one sentence.

    unit: of its memory. holder: what it is given out to. clock: seconds of a clock that only goes
    forward.
    """

    def __init__(
        self, unit: str, clock: Callable[[], float] = time.monotonic, *, holder: str = "pod"
    ) -> None:
        self._unit = unit
        self._holder = holder
        self._clock = clock
        self._rested_at = 0.0
        self._sentences: dict[Hashable, tuple[Version, str]] = {}
        self.complete = True
        """Whether all sentences are of the last snapshot."""

    def about(
        self,
        questions: Iterable[_Question],
        explain: Callable[[_Question], Explanation],
        version: Version,
    ) -> Mapping[Hashable, str]:
        """Return the sentences; one whose turn has not come yet is left out.

        explain: raises MessageError for what makes no sense.
        """
        wanted = dict.fromkeys(questions)
        self._sentences = {
            question: sentence
            for question, sentence in self._sentences.items()
            if question in wanted
        }
        # First those without a sentence, then those with the oldest ones.
        stale = [question for question in wanted if self._age(question) != version]
        stale.sort(key=self._age)
        begin = now = self._clock()
        while stale and begin >= self._rested_at and now <= begin + _BUDGET:
            question = stale.pop(0)
            self._sentences[question] = version, self._sentence(explain, question)
            now = self._clock()
        if now > begin:
            self._rested_at = now + (now - begin) * _REST
        self.complete = not stale
        return {question: text for question, (_, text) in self._sentences.items()}

    def _age(self, question: Hashable) -> Version:
        return self._sentences.get(question, (_NEVER, ""))[0]

    def _sentence(self, explain: Callable[[_Question], Explanation], question: _Question) -> str:
        try:
            explanation = explain(question)
        except MessageError as error:
            return f"its request makes no sense: {error}"
        if explanation.fit:
            return f"it fits now on {len(explanation.fit)} node{'s' * (len(explanation.fit) > 1)}"
        return sentence(explanation, self._unit, holder=self._holder)
