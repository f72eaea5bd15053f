"""The prices of the moment, row by row: for simulations of many pods.

The arithmetic of `Scarcity` and `ShadowPrice`, in the same order, so that each price is the same.
"""

import math

import numpy as np
import numpy.typing as npt

from gpushare.core.policies.scarcity import DEAREST, FINE, MICRO
from gpushare.core.policies.shadow_price import THETA
from gpushare.core.snapshot import Floats, Ints, Rows
from gpushare.sim.compiled import Judged, Scarce, World, Worth, compiled
from gpushare.sim.kernel import blocks_left, idle_devices


@compiled
def offer(world: World, offers: Ints, sums: Ints, group: npt.NDArray[np.int32], rows: Rows) -> None:
    """Nothing: brings what these rows offer, and the sums by group, up to date."""
    state, blocks = world.state, world.blocks
    fresh = np.zeros(offers.shape[1], dtype=np.int64)
    for row in rows:
        fresh[0] = 0
        for device in range(state.free.shape[1]):
            fresh[0] += state.free[row, device] * MICRO // blocks.unit[row, device]
        whole = idle_devices(state, row)
        for index in range(len(blocks.devices)):
            fresh[1 + index] = blocks_left(
                blocks, row, index, whole, (state.cpu_free[row], state.memory_free[row])
            )
        for index in range(len(fresh)):
            sums[group[row], index] += fresh[index] - offers[row, index]
            offers[row, index] = fresh[index]


@compiled
def press(
    scarce: Scarce, goods: Ints, judged: Judged, weights: tuple[float, Floats], worth: Worth
) -> None:
    """Nothing: adds the prices of the moment; weights: of blocks, and of a device by group."""
    group_cost = _group_costs(scarce, goods, weights[1])
    exact = _block_costs(scarce, goods)
    states, count = judged.best.shape
    for row in range(count):
        worth.values[row] = -np.inf
        for state in range(states):
            value = judged.best[state, row] - group_cost[scarce.group[row]]
            if judged.touched[row]:
                cost = 0.0
                for index in range(len(exact)):
                    cost += judged.stakes[row, state * len(exact) + index] * exact[index]
                value -= math.floor(weights[0] * (cost / FINE))
            worth.by_state[state, row] = value
            worth.values[row] = max(worth.values[row], value)


@compiled
def _group_costs(scarce: Scarce, goods: Ints, weight: Floats) -> Floats:
    """What placing the pod on a node of each group costs."""
    every, price = goods[:, 0].sum() / MICRO, np.zeros(len(goods))
    for index in range(len(scarce.needs)):
        free = 0
        for group in range(len(goods)):
            if scarce.needed[index, group]:
                free += goods[group, 0]
        of_needed = scarce.needs[index] * every / max(free / MICRO, 1.0)
        for group in range(len(goods)):
            if scarce.needed[index, group]:
                price[group] += of_needed
    return np.floor(THETA * np.minimum(price, DEAREST) * weight)


@compiled
def _block_costs(scarce: Scarce, goods: Ints) -> Floats:
    """What a block of each class costs, in whole numbers."""
    every, exact = goods[:, 0].sum() / MICRO, np.zeros(len(scarce.share))
    for index in range(len(exact)):
        blocks = max(scarce.devices[index] * goods[:, 1 + index].sum(), 1)
        price = min(scarce.share[index] * every / blocks, DEAREST)
        exact[index] = np.rint(price * FINE) * scarce.devices[index]
    return exact
