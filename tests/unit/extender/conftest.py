"""Options of the tests of memory."""

import gc

import pytest


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """Spare the garbage collector the objects from before the module's tests."""
    gc.collect()
    gc.freeze()
