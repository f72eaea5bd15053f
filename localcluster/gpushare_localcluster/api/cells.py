"""The cells of tables: numbers, ages, parts of an object.

Pure: an object and the time in, a cell out. The texts are those of a real cluster
(k8s.io/kubernetes pkg/printers/internalversion).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gpushare_localcluster.api.objects import Object, section

Cell = str | int
NONE = "<none>"
UNKNOWN = "<unknown>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `wide` ones appear with `-o wide` only."""

    title: str
    cell: Callable[[Object, datetime], Cell]
    wide: bool = False
    type: str = "string"
    format: str = ""


def human_duration(seconds: float) -> str:
    """Return a duration as kubectl prints ages: `45s`, `3m7s`, `5h2m`, `3d4h`, `400d`."""
    if seconds < 0:
        return "0s"
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    steps = (
        (120, f"{whole}s"),
        (600, _two(minutes, "m", whole % 60, "s")),
        (3 * 3600, f"{minutes}m"),
        (8 * 3600, _two(hours, "h", minutes % 60, "m")),
        (48 * 3600, f"{hours}h"),
        (8 * 86400, _two(days, "d", hours % 24, "h")),
        (2 * 365 * 86400, f"{days}d"),
        (8 * 365 * 86400, _two(days // 365, "y", days % 365, "d")),
    )
    return next((text for limit, text in steps if whole < limit), f"{days // 365}y")


def _two(high: int, high_unit: str, low: int, low_unit: str) -> str:
    return f"{high}{high_unit}{low}{low_unit}" if low else f"{high}{high_unit}"


def since(moment: object, now: datetime) -> str:
    """Return the age of a timestamp, `<unknown>` for none."""
    try:
        return human_duration((now - datetime.fromisoformat(str(moment))).total_seconds())
    except (ValueError, TypeError):
        return UNKNOWN


def path(*steps: str, absent: str = NONE) -> Callable[[Object, datetime], Cell]:
    """Return a cell with the text at a path of the object."""

    def cell(body: Object, _: datetime) -> Cell:
        value = _at(body, steps)
        return absent if value is None or value == "" else str(value)

    return cell


def _at(body: Object, steps: tuple[str, ...]) -> object:
    value: object = body
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def whole(value: object) -> int:
    """Return a number, 0 for anything else."""
    return value if isinstance(value, int) else 0


def number(*steps: str) -> Callable[[Object, datetime], Cell]:
    """Return a cell with the number at a path of the object, 0 where there is none."""
    return lambda body, _: whole(_at(body, steps))


def out_of(ready: tuple[str, ...], total: tuple[str, ...]) -> Callable[[Object, datetime], Cell]:
    """Return a cell with a count and a total: `2/3`."""
    return lambda body, now: f"{number(*ready)(body, now)}/{number(*total)(body, now)}"


def pairs(*steps: str) -> Callable[[Object, datetime], Cell]:
    """Return a cell with the map at a path of the object: `a=b,c=d`."""

    def cell(body: Object, _: datetime) -> Cell:
        for step in steps:
            body = section(body, step)
        return ",".join(f"{key}={value}" for key, value in sorted(body.items())) or NONE

    return cell
