"""What tests of memory ask for."""

import gc

import pytest


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """Spare the garbage collector what was there before the module's tests."""
    gc.collect()
    gc.freeze()
