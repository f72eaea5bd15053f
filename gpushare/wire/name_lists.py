"""A cache of the latest lists of node names, received or answered, by their JSON.

kube-scheduler calls prioritize with exactly the names that filter has answered: such a list is not
decoded, checked or encoded again. The next pod's list has the same names in another order: names
that were checked are not checked again.
"""

from collections.abc import Sequence
from itertools import islice
from string import whitespace

import msgspec

from gpushare.core.node_names import MAX_PARTS, KnownNames, NodeNames
from gpushare.errors import MessageError
from gpushare.wire.fields import MAX_NAME_LENGTH

MAX_TEXT = 256 * 1024
"""Bytes of a list that is kept: 7,000 names of 32 characters."""
_MANY = 16
"""Names that are worth keeping when they are answered: fewer are encoded as fast."""
MAX_KNOWN = 20_000
"""Names that are known one by one; beyond it only those of the last list are."""


class NameLists:
    """At most MAX_PARTS lists, and MAX_KNOWN names.

    Any thread may call any method: what is kept is replaced whole.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[bytes, NodeNames], ...] = ()
        self.known = KnownNames()

    def decode(self, text: bytes) -> NodeNames:
        """Return the names of a JSON list. Raises MessageError, or msgspec's errors."""
        names = next((names for kept, names in self._kept if kept == text), None)
        if names is None:
            given = _LIST.decode(text)
            found = self.known.find(given)
            if found is not None:
                # Plain names: blanks, or characters written as numbers, would make it longer.
                names, characters = found
                as_encoded = len(text) == characters + 3 * len(names) + 1
            else:
                names = NodeNames(checked_names(given, "NodeNames"))
                as_encoded = _ENCODER.encode(names) == text
                plain = len(text) == sum(map(len, names)) + 3 * len(names) + 1
                if as_encoded and plain and _MANY <= len(names) <= MAX_KNOWN:
                    has_place = len(self.known) + len(names) <= MAX_KNOWN
                    self.known = (self.known if has_place else KnownNames()).joined(names)
            if not as_encoded:
                return names  # kept, its blanks would be in our answers
        self._keep(text, names)
        return names

    def encode(self, names: Sequence[str]) -> bytes:
        """Return the names, each once, as a JSON list."""
        text = next((text for text, known in self._kept if known is names), None)
        if text is None:
            text = _ENCODER.encode(names)
            if len(names) >= _MANY:
                self._keep(text, names if isinstance(names, NodeNames) else NodeNames(names))
        return text

    def _keep(self, text: bytes, names: NodeNames) -> None:
        """Keep a list as the one used last; the one used longest ago goes."""
        if len(text) <= MAX_TEXT:
            others = (each for each in self._kept if each[0] != text)
            self._kept = ((text, names), *islice(others, MAX_PARTS - 1))


def checked_names(names: list[str], where: str) -> Sequence[str]:
    """Return the names, each once. Raises MessageError on one that is empty or holds blanks."""
    unique = set(names)
    together = "".join(names)  # a search in one text is a hundred times faster than one a name
    if "" in unique or any(blank in together for blank in whitespace):
        raise MessageError(f"{where}: an empty name, or one with blanks")
    checked_length(max(names, key=len, default=""), where)
    return names if len(unique) == len(names) else list(dict.fromkeys(names))


def checked_length(name: str, where: str) -> str:
    """Return the name. Raises MessageError if it is longer than any name of an object."""
    if len(name) > MAX_NAME_LENGTH:
        raise MessageError(
            f"{where}: a name of {len(name)} characters; {MAX_NAME_LENGTH} are allowed"
        )
    return name


_LIST = msgspec.json.Decoder(list[str])
_ENCODER = msgspec.json.Encoder()
