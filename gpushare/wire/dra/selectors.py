"""CEL selectors of devices, evaluated with the functions that Kubernetes adds.

Tested in `tests/unit/wire/dra/test_selectors.py`.
"""

from gpushare.core.claims.model import Device


class Selectors:
    """Compiled selectors and their results; any thread may ask.

    A selector that cannot be evaluated counts as true.
    """

    def __init__(self) -> None:
        """Begin with no compiled selector."""
        self.unevaluated: dict[str, int] = {}
        """Selectors that counted as true, by reason: "compile", "evaluate", "too long"."""

    def matches(self, selectors: tuple[str, ...], device: Device) -> bool:
        """Return whether all selectors are true of a device."""
        raise NotImplementedError
