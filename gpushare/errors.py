"""The error tree, ordered by the party that has to act.

Imports no other module of the package, so that every layer may raise and catch these errors.

    GpuShareError
    ├─ WireError              the peer's bytes are wrong; the text names the field
    │  ├─ QuantityError       a Kubernetes quantity that is none
    │  ├─ AnnotationError     an annotation of the gpushare dialect that cannot be used
    │  └─ MessageError        a request or object body of the wrong shape
    ├─ RequestRefused         expected at bind: nothing is broken, the pod goes back to the queue
    │  ├─ InsufficientMemory  no device (or not enough devices) of the node has room
    │  ├─ UnknownNode         the node is not in the ledger
    │  ├─ PodMismatch         the pod is gone, is another one, or is bound elsewhere
    │  └─ PodInFlight         a bind of the same pod is still under way
    ├─ NotReady               the ledger is not filled yet, or another process leads
    ├─ SettingsError          a setting or configuration file is wrong; the process must not start
    ├─ ApiError               the API server refused: `status` is the HTTP status
    │  ├─ ApiNotFound         404
    │  ├─ ApiConflict         409
    │  ├─ ApiGone             410: the resourceVersion is too old, list again
    │  ├─ ApiUnreachable      nothing was sent (no connection, no time): nothing has happened
    │  └─ ApiUnavailable      no answer of the API server, or 5xx: the outcome is UNKNOWN
    └─ InvariantError         our bug: the ledger contradicts itself; stop and rebuild

Per-node rejections are values (`gpushare.core.model.Reason`), not exceptions. No code compares
texts of errors.

Tested in `tests/unit/extender` and `tests/unit/kube`.
"""


class GpuShareError(Exception):
    """Any error of this package; the text names the problem, the place and the remedy."""


class WireError(GpuShareError):
    """Bytes or objects from outside violate their format."""


class QuantityError(WireError):
    """A Kubernetes quantity that cannot be read."""


class AnnotationError(WireError):
    """An annotation of the gpushare dialect that cannot be used."""


class MessageError(WireError):
    """A body of the wrong shape."""


class RequestRefused(GpuShareError):
    """A pod cannot be bound now; the scheduler will try again."""


class InsufficientMemory(RequestRefused):
    """The node has no device, or not enough devices, with the memory asked for."""


class UnknownNode(RequestRefused):
    """The node is not in the ledger."""


class PodMismatch(RequestRefused):
    """The pod is gone, was re-created under the same name, or is bound elsewhere."""


class PodInFlight(RequestRefused):
    """Another bind of the same pod has not ended."""


class NotReady(GpuShareError):
    """The ledger is not filled yet, or this process does not lead."""


class SettingsError(GpuShareError):
    """A setting or a configuration file is wrong."""


class ApiError(GpuShareError):
    """The API server answered with a status that is no success.

    `status` is the HTTP status (0 where there was no answer). A plain ApiError is a definite
    refusal.
    """

    is_definite = True
    """Whether the API server refused; else the outcome is unknown, or nothing was sent."""

    def __init__(self, message: str, status: int) -> None:
        """Keep the HTTP status beside the text."""
        super().__init__(message)
        self.status = status

    @property
    def refusal(self) -> int:
        """The HTTP status of a definite refusal; 0 for another error.

        A proxy may answer 403 or 404, too, and the request may have been done nonetheless.
        """
        return self.status if self.is_definite else 0


class ApiNotFound(ApiError):
    """404: the object does not exist."""


class ApiConflict(ApiError):
    """409: a precondition (uid, resourceVersion, not yet bound) failed."""


class ApiGone(ApiError):
    """410: the resourceVersion asked for is no longer kept; list again."""


class ApiTooLarge(ApiError):
    """The answer to a read has more bytes than are read at once: ask for less of a list."""


class ApiUnreachable(ApiError):
    """No connection to the API server, or no time left for the call: nothing was sent."""

    is_definite = False


class ApiUnavailable(ApiError):
    """No answer of the API server, or a 5xx: the outcome of the request is unknown."""

    is_definite = False


class InvariantError(GpuShareError):
    """The ledger contradicts itself: our bug."""
