"""What every test may ask for, those of both distributions. Keep it tiny: what one area needs
stands in that area.

`tests` is a package (every folder has an empty `__init__.py`), so a helper is imported by its full
name: `from tests.unit.core.clusters import ...`.
"""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from gpushare.core.pairing import Pairing
from gpushare.ledger import Ledger

# A busy machine is no failure; a failing example prints the line that replays it.
settings.register_profile(
    "gpushare", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gpushare")


# Finding the tests makes half a million objects, in each process, and hardly any garbage.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which tests renew what they compare."""
    parser.addoption(
        "--regenerate-scenarios",
        action="store_true",
        help="write the dumps that the ledger scenarios show now into their files",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let long tests begin first, so that the other processes do not wait for them at the end.

    Each process begins with its share of the list (`--dist worksteal`).
    """
    processes = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    long = [item for item in items if item.get_closest_marker("long")]
    if processes > 1 and long:
        others = [item for item in items if not item.get_closest_marker("long")]
        for number, item in enumerate(long):
            others.insert(number % processes * (len(items) // processes), item)
        items[:] = others


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Spare the garbage collector what finding the tests has made: it stays until the end.

    The process that only hands tests to others finds none, and comes here all the same.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """Empty books, audited when the test is over; the pairing may be given as (indirect) param."""
    books = Ledger(getattr(request, "param", Pairing.AUTO))
    yield books
    books.check()
