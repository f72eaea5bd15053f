"""Writes the templates that pods name by their size, where they are missing.

So pods need no template that somebody has made before: the first pod of a size waits for a moment,
and the controller of claims goes on by itself once the template is there. What is written follows
from its name alone, so two processes that write it write the same, and one that is there already,
whoever made it, stays. None is ever deleted.

Tested in `tests/unit/extender/claims`.
"""

import logging
import threading
import time
from collections.abc import Callable

from gpushare.errors import ApiConflict, ApiError
from gpushare.extender.claims.handlers import WaitingPods
from gpushare.extender.claims.writer import DRA
from gpushare.extender.follow.rounds import Rounds
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.dra.claims import CLASS
from gpushare.wire.dra.templates import SizedTemplate

log = logging.getLogger("gpushare.claims")

EVERY = 0.5
"""Seconds between rounds."""
AGAIN = 10.0
"""Seconds until a template is tried again of which a pod still waits for its claim."""
_TIMEOUT = 3.0


class Templates:
    """Call `round` once, or start `rounds` to repeat it.

    not_ready: why not to write now, or "".
    """

    def __init__(
        self,
        api: Calls,
        waiting: WaitingPods,
        *,
        not_ready: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._waiting = waiting
        self._not_ready = not_ready
        self._clock = clock
        self._due: dict[SizedTemplate, float] = {}
        self.rounds = Rounds("claim templates", self.round, EVERY, EVERY, threading.Event())

    def round(self) -> bool:
        """Write those that pods wait for; return whether all are there."""
        awaited = {pod.template for pod in self._waiting.all().values()} - {None}
        for gone in self._due.keys() - awaited:
            del self._due[gone]
        now = self._clock()
        due = [each for each in awaited if each and self._due.get(each, now) <= now]
        for template in due:
            if self._not_ready():
                return False
            self._due[template] = now + AGAIN
            path = f"{DRA}/namespaces/{template.namespace}/resourceclaimtemplates"
            names = {"namespace": template.namespace, "template": template.name}
            try:
                self._api.request("POST", path, body=template.body(CLASS), timeout=_TIMEOUT)
            except ApiConflict:
                continue
            except ApiError as error:
                log.warning(Line("template of claims not written", **names, error=str(error)))
            else:
                log.info(Line("template of claims written", **names))
        return not due
