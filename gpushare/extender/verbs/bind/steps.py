"""The steps of a bind: what a BindTransaction says to do next.

Tested in `tests/unit/extender/verbs/bind/test_bind_transaction.py`.
"""

from dataclasses import dataclass

from gpushare.core.model import PodRef

NOT_OURS = "not_ours"
"""The reason for a pod that kube-scheduler would not have had bound here."""


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Step: GET the pod by its name; hand the result to `read`."""

    ref: PodRef


@dataclass(frozen=True, slots=True)
class WriteBinding:
    """Step: POST the Binding; hand the result to `written`."""

    ref: PodRef
    node: str
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class BindResult:
    """Step: the end. error "" means bound; `reason` is one word for logs and metrics."""

    error: str
    reason: str


Step = ReadPod | WriteBinding | BindResult
