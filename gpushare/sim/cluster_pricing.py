"""The current prices, row by row, for simulations of many pods.

The arithmetic of `Scarcity` and `ShadowPrice`, in the same order, so that each price is the same.
"""

import math

import numpy as np

from gpushare.core.policies.node_shape import HAIR
from gpushare.core.policies.shadow_price.policy import THETA
from gpushare.core.policies.shadow_price.scarcity import DEAREST, FINE, MISSED, missed
from gpushare.core.snapshot import Floats, Rows
from gpushare.sim.compiled import Supply, WantedKind, World, compiled
from gpushare.sim.kernel import blocks_left, idle_devices, score_rows

_missed = compiled(missed)


@compiled
def score_and_price(
    world: World, supply: Supply, wanted: WantedKind, known: int, counted: int
) -> None:
    """Update the scores of a kind and the supply, and subtract the current prices.

    The kind is up to date for the generation `known`, the supply for the generation `counted`.
    """
    score_rows(world, wanted.request, wanted.scores, np.flatnonzero(supply.row_generation > known))
    _count_supply(world, supply, np.flatnonzero(supply.row_generation > counted))
    _price(supply, wanted)


@compiled
def _count_supply(world: World, supply: Supply, rows: Rows) -> None:
    """Update the supply of these rows, and the sums by group."""
    state, blocks = world.state, world.blocks
    by_row, totals, group = supply.by_row, supply.totals, supply.group
    fresh = np.zeros(by_row.shape[1], dtype=np.int64)
    for row in rows:
        fresh[0] = 0
        for device in range(state.free.shape[1]):
            fresh[0] += state.free[row, device]
        whole = idle_devices(state, row)
        for index in range(len(blocks.devices)):
            fresh[1 + index] = blocks_left(
                blocks, row, index, whole, (state.cpu_free[row], state.memory_free[row])
            )
        for index in range(len(fresh)):
            totals[group[row], index] += fresh[index] - by_row[row, index]
            by_row[row, index] = fresh[index]


@compiled
def _price(supply: Supply, wanted: WantedKind) -> None:
    """Subtract the current prices from the kept scores of the kind."""
    scores = wanted.scores
    group_cost = _group_costs(supply, wanted.weights)
    exact = _block_costs(supply)
    states, count = scores.best.shape
    for row in range(count):
        wanted.values[row] = -np.inf
        for state in range(states):
            value = scores.best[state, row] - group_cost[supply.group[row]]
            if scores.touched[row]:
                cost = 0.0
                for index in range(len(exact)):
                    cost += scores.taken[row, state * len(exact) + index] * exact[index]
                value -= math.floor(wanted.weight * (cost / FINE) + HAIR)
            wanted.by_state[state, row] = value
            wanted.values[row] = max(wanted.values[row], value)


@compiled
def _group_costs(supply: Supply, weight: Floats) -> Floats:
    """Return the price of placing the pod on a node of each group."""
    totals = supply.totals
    every, price = float(totals[:, 0].sum()), np.zeros(len(totals))
    for index in range(len(supply.needs)):
        free = 0
        for group in range(len(totals)):
            if supply.needed[index, group]:
                free += totals[group, 0]
        of_needed = supply.needs[index] * every / max(float(free), float(supply.largest))
        for group in range(len(totals)):
            if supply.needed[index, group]:
                price[group] += of_needed
    return np.floor(THETA * np.minimum(price, DEAREST) * weight + HAIR)


@compiled
def _block_costs(supply: Supply) -> Floats:
    """Return the price of a block of each class, as whole numbers."""
    totals = supply.totals
    every, exact = float(totals[:, 0].sum()), np.zeros(len(supply.share))
    for index in range(len(exact)):
        blocks = max(float(supply.units[index] * totals[:, 1 + index].sum()), float(supply.largest))
        price = min(supply.share[index] * every / blocks, DEAREST)
        if supply.alone[index]:
            come = supply.share[index] * every / supply.units[index]
            price = MISSED * _missed(come, float(totals[:, 1 + index].sum()))
        exact[index] = np.rint(price * FINE * (supply.units[index] / supply.largest))
    return exact
