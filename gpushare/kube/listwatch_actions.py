"""What a ListWatch asks for next, and the whole list that it hands on.

Tested in `tests/unit/kube/test_listwatch.py`.
"""

from dataclasses import dataclass
from typing import Generic

from gpushare.kube.decoder import PageT

Query = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing for these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class List:
    """Ask for a page; answer with `on_page` or `on_error`."""

    path: str
    query: Query
    timeout: float


@dataclass(frozen=True, slots=True)
class Watch:
    """Open a watch; answer with `on_open`, `on_line` for each line, then `on_end` or `on_error`."""

    path: str
    query: Query
    connect_timeout: float
    read_timeout: float


Action = Sleep | List | Watch


@dataclass(frozen=True, slots=True)
class Replace(Generic[PageT]):
    """The whole collection, as of `started` or later (monotonic seconds)."""

    pages: tuple[PageT, ...]
    started: float
