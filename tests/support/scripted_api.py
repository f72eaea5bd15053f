"""An API server with scripted answers, which records requests and timeouts."""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import ApiError, ApiUnreachable
from gpushare.kube.api import Lines

BOUND = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'
"""The answer of kube-apiserver to an accepted Binding."""


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    body: bytes | None
    timeout: float
    query: Mapping[str, str] | None = None
    content_type: str = "application/json"

    @property
    def document(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body or b"")


Scripted = bytes | BaseException | Callable[[Call], bytes]


@dataclass
class ScriptedApi:
    """answers: values to return or errors to raise, in turn; `forever` after the last one.

    Each call takes the share `takes` of its timeout, by the clock in `now`.
    """

    answers: list[Scripted] = field(default_factory=list)
    forever: Scripted = BOUND
    takes: Callable[[float], float] = lambda _timeout: 0.0
    now: float = 1000.0
    calls: list[Call] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        if self.now > not_after:
            raise ApiUnreachable("not sent: its time was over", 0)
        call = Call(method, path, body, timeout, query, content_type)
        self.calls.append(call)
        self.now += self.takes(timeout)
        answer = self.answers.pop(0) if self.answers else self.forever
        if isinstance(answer, BaseException):
            raise answer
        return answer(call) if callable(answer) else answer

    def stream(
        self, path: str, query: Mapping[str, str], **_: Any
    ) -> AbstractContextManager[Lines]:
        raise ApiError(f"{path}: nothing is said of a watch ({query})", 400)
