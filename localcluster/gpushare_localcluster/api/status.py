"""Refusals of the API server: one exception that carries a Kubernetes `Status`.

Knows the reasons and codes of `metav1.Status`; nothing of HTTP, storage or kinds.
"""

from gpushare.errors import GpuShareError
from gpushare_localcluster.api.objects import Object


class StatusError(GpuShareError):
    """A request is refused; `code` is the HTTP status, `reason` the machine-readable word.

    `retry_after` is in seconds (429 and 5xx), `details` goes into the Status as it is.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Object | None = None,
        retry_after: int | None = None,
    ) -> None:
        """Keep the parts of the Status beside the text."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after

    def body(self) -> Object:
        """Return the Status object that says so to a client."""
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        details = self.details
        if self.retry_after is not None:
            details = {**(details or {}), "retryAfterSeconds": self.retry_after}
        return status if details is None else {**status, "details": details}


def success(code: int = 200, details: Object | None = None) -> Object:
    """Return the Status of a request that has no object to answer with."""
    status: Object = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "code": code,
    }
    return {**status, "details": details} if details else status


def not_found(resource: str, name: str) -> StatusError:
    """Return 404 for an object that does not exist."""
    text = f'{resource} "{name}" not found'
    return StatusError(404, "NotFound", text, details={"name": name, "kind": resource})


def no_such_path() -> StatusError:
    """Return 404 for a path that names nothing we serve."""
    text = "the server could not find the requested resource"
    # kubectl debug looks into the details without asking whether there are any.
    return StatusError(404, "NotFound", text, details={})


def already_exists(resource: str, name: str) -> StatusError:
    """Return 409 for a name that is taken."""
    text = f'{resource} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, details={"name": name, "kind": resource})


def conflict(resource: str, name: str, why: str) -> StatusError:
    """Return 409 for a precondition that does not hold."""
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return StatusError(409, "Conflict", text, details={"name": name, "kind": resource})


def invalid(kind: str, name: str, field: str, why: str) -> StatusError:
    """Return 422 for an object that is well-formed JSON but against the rules of its kind."""
    text = f'{kind} "{name}" is invalid: {field}: {why}'
    details: Object = {"name": name, "kind": kind, "causes": [{"field": field, "message": why}]}
    return StatusError(422, "Invalid", text, details=details)


def bad_request(why: str) -> StatusError:
    """Return 400 for a request that cannot be understood."""
    return StatusError(400, "BadRequest", why)


def forbidden(resource: str, name: str, why: str) -> StatusError:
    """Return 403 for what an admission plug-in of a real server refuses."""
    text = f'{resource} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", text, details={"name": name, "kind": resource})


def expired(why: str) -> StatusError:
    """Return 410 for a resourceVersion that is no longer kept: the client lists again."""
    return StatusError(410, "Expired", why)


def method_not_allowed(method: str) -> StatusError:
    """Return 405 for a verb that the resource does not have."""
    text = f"the server does not allow the method {method} on the requested resource"
    return StatusError(405, "MethodNotAllowed", text)


def unsupported_media_type(content_type: str, accepted: str) -> StatusError:
    """Return 415 for a body we do not read, naming what we do read."""
    text = f"the body of the request was of an unsupported type ({content_type!r}); use {accepted}"
    return StatusError(415, "UnsupportedMediaType", text)
