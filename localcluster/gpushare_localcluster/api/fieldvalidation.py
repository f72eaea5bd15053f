"""The parameter `fieldValidation`: unknown fields are refused, warned of, or dropped.

kubectl asks for Strict. A client that asks for nothing has its body stored as it came, where a real
server drops unknown fields and warns.
"""

from gpushare_localcluster.api.calls import Call
from gpushare_localcluster.api.objects import Object, name_of
from gpushare_localcluster.api.resources import Resource
from gpushare_localcluster.api.schemas import Walk, model_of
from gpushare_localcluster.api.status import StatusError, bad_request, invalid

_MODES = ("", "Ignore", "Strict", "Warn")


class FieldValidation:
    """The check of one request's object; `warnings` is what it has found to warn of."""

    def __init__(self, resource: Resource, call: Call) -> None:
        """Read the query. Raises StatusError 422 for a mode that there is not."""
        self.warnings: list[str] = []
        self._resource = resource
        self._is_patch = call.method == "PATCH" and "apply" not in call.content_type
        self._mode = call.query.get("fieldValidation", "")
        if self._mode not in _MODES:
            told = ", ".join(f'"{mode}"' for mode in _MODES)
            why = f'Unsupported value: "{self._mode}": supported values: {told}'
            raise invalid("Options.meta.k8s.io", "", "fieldValidation", why)

    def __call__(self, body: Object, before: Object | None = None) -> Object:
        """Return the object without fields that its kind does not have.

        Those that it had `before` are dropped without a warning.

        Raises StatusError: 400 for a value of the wrong type; for an unknown field, where they are
        refused, 400, or 422 after a patch.
        """
        if not self._mode:
            return body
        walk, known = Walk(), Walk()
        kept = walk.known(body, model_of(self._resource))
        known.known(before, model_of(self._resource))
        kind = f'{self._resource.kind} in version "{self._resource.version}"'
        if walk.wrong:
            raise bad_request(
                f"{kind} cannot be handled as a {self._resource.kind}: {'; '.join(walk.wrong)}"
            )
        told = [f'unknown field "{path}"' for path in walk.unknown if path not in known.unknown]
        if told and self._mode == "Strict":
            raise self._refusal(body, f"strict decoding error: {', '.join(told)}", kind)
        if self._mode == "Warn":
            self.warnings += told
        return kept if isinstance(kept, dict) else body

    def _refusal(self, body: Object, why: str, kind: str) -> StatusError:
        if self._is_patch:
            return invalid(self._resource.kind, name_of(body), "patch", f"Invalid value: {why}")
        return bad_request(f"{kind} cannot be handled as a {self._resource.kind}: {why}")
