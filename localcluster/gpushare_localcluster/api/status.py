"""Refusals of the API server: one exception that carries a Kubernetes `Status`.

Knows the reasons and codes of `metav1.Status`; nothing of HTTP, storage or kinds.
"""

from gpushare.errors import GpuShareError
from gpushare_localcluster.api.objects import Object


class StatusError(GpuShareError):
    """The refusal of a request; `code` is the HTTP status, `reason` the machine-readable word.

    `retry_after` is in seconds (429 and 5xx), `details` is a part of the Status.
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
        """Return the Status object of the refusal."""
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
    """Return the Status that answers a request without an object."""
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
    """Return 404 for a path that is not served."""
    text = "the server could not find the requested resource"
    # kubectl debug reads the details without checking for None.
    return StatusError(404, "NotFound", text, details={})


def already_exists(resource: str, name: str) -> StatusError:
    """Return 409 for the name of an existing object."""
    text = f'{resource} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, details={"name": name, "kind": resource})


def conflict(resource: str, name: str, reason: str) -> StatusError:
    """Return 409 for a failed precondition."""
    text = f'Operation cannot be fulfilled on {resource} "{name}": {reason}'
    return StatusError(409, "Conflict", text, details={"name": name, "kind": resource})


def invalid(kind: str, name: str, field: str, reason: str) -> StatusError:
    """Return 422 for an object that breaks a rule of the kind."""
    text = f'{kind} "{name}" is invalid: {field}: {reason}'
    details: Object = {"name": name, "kind": kind, "causes": [{"field": field, "message": reason}]}
    return StatusError(422, "Invalid", text, details=details)


def bad_request(message: str) -> StatusError:
    """Return 400 for a malformed request."""
    return StatusError(400, "BadRequest", message)


def forbidden(resource: str, name: str, reason: str) -> StatusError:
    """Return 403 for a refusal by an admission plug-in."""
    text = f'{resource} "{name}" is forbidden: {reason}'
    return StatusError(403, "Forbidden", text, details={"name": name, "kind": resource})


def expired(message: str) -> StatusError:
    """Return 410 for a compacted resourceVersion: the client lists again."""
    return StatusError(410, "Expired", message)


def method_not_allowed(method: str) -> StatusError:
    """Return 405 for a verb that the resource lacks."""
    text = f"the server does not allow the method {method} on the requested resource"
    return StatusError(405, "MethodNotAllowed", text)


def unsupported_media_type(content_type: str, accepted: str) -> StatusError:
    """Return 415 for an unsupported body, with the supported media types."""
    text = f"the body of the request was of an unsupported type ({content_type!r}); use {accepted}"
    return StatusError(415, "UnsupportedMediaType", text)
