"""Bugs about percentages of memory, and about the most pods of a device."""

from typing import Any

from gpushare.core import node_arrays
from gpushare.core.model import ANY_SHARERS, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.snapshot import counts_of
from gpushare.wire import nodes
from tests.simulation.mutants.museum import mutant


@mutant("C22", "the books count the units beside a percentage", node_arrays, "charged_units")
def charges_the_units_alone(original: Any) -> Any:
    del original
    return lambda units, percents, capacity=0: units


@mutant("C22", "of a pod that may be anywhere the units are charged", Request, "charges_anywhere")
def charges_the_units_anywhere(original: Any) -> Any:
    del original
    return lambda self, capacity: tuple(self.total for _ in capacity)


@mutant("C23", "any number of pods come to a device", nodes, "most_sharers")
def reads_no_limit_of_sharers(original: Any) -> Any:
    del original
    return lambda labels: ANY_SHARERS


@mutant("C23", "a pod that has gone keeps its place on the device", NodeArrays, "add")
def keeps_the_places_of_the_gone(original: Any) -> Any:
    def add(self: Any, charge: Any, sign: int = 1) -> None:
        original(self, charge, sign)
        row = self.row.get(charge.node)
        for device, _ in charge.placement or ():
            if sign < 0 and row is not None and device < self._pods.shape[1]:
                self._pods[row, device, : counts_of(charge.request)] += 1

    return add
