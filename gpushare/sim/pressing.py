"""The prices of the moment, row by row: for simulations of many pods.

The arithmetic of `Scarcity` and `ShadowPrice`, in the same order, so that each price is the same.
"""

import math

import numpy as np

from gpushare.core.policies.node_shape import HAIR
from gpushare.core.policies.shadow_price.policy import THETA
from gpushare.core.policies.shadow_price.scarcity import DEAREST, FINE
from gpushare.core.snapshot import Floats, Rows
from gpushare.sim.compiled import Market, Wanted, World, compiled
from gpushare.sim.kernel import blocks_left, idle_devices, judge


@compiled
def judge_now(world: World, market: Market, wanted: Wanted, known: int, offered: int) -> None:
    """Nothing: brings a kind up to date, of which rows changed after the generation `known` are
    not, and the market after `offered`; adds the prices of the moment.
    """
    judge(world, wanted.asked, wanted.judged, np.flatnonzero(market.row_generation > known))
    offer(world, market, np.flatnonzero(market.row_generation > offered))
    _press(market, wanted)


@compiled
def offer(world: World, market: Market, rows: Rows) -> None:
    """Nothing: brings what these rows offer, and the sums by group, up to date."""
    state, blocks = world.state, world.blocks
    offers, sums, group = market.offers, market.sums, market.group
    fresh = np.zeros(offers.shape[1], dtype=np.int64)
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
            sums[group[row], index] += fresh[index] - offers[row, index]
            offers[row, index] = fresh[index]


@compiled
def _press(market: Market, wanted: Wanted) -> None:
    """What is kept of the kind, less the prices of the moment."""
    judged = wanted.judged
    group_cost = _group_costs(market, wanted.weights)
    exact = _block_costs(market)
    states, count = judged.best.shape
    for row in range(count):
        wanted.values[row] = -np.inf
        for state in range(states):
            value = judged.best[state, row] - group_cost[market.group[row]]
            if judged.touched[row]:
                cost = 0.0
                for index in range(len(exact)):
                    cost += judged.stakes[row, state * len(exact) + index] * exact[index]
                value -= math.floor(wanted.weight * (cost / FINE) + HAIR)
            wanted.by_state[state, row] = value
            wanted.values[row] = max(wanted.values[row], value)


@compiled
def _group_costs(market: Market, weight: Floats) -> Floats:
    """What placing the pod on a node of each group costs."""
    goods = market.sums
    every, price = float(goods[:, 0].sum()), np.zeros(len(goods))
    for index in range(len(market.needs)):
        free = 0
        for group in range(len(goods)):
            if market.needed[index, group]:
                free += goods[group, 0]
        of_needed = market.needs[index] * every / max(float(free), float(market.largest))
        for group in range(len(goods)):
            if market.needed[index, group]:
                price[group] += of_needed
    return np.floor(THETA * np.minimum(price, DEAREST) * weight + HAIR)


@compiled
def _block_costs(market: Market) -> Floats:
    """What a block of each class costs, in whole numbers."""
    goods = market.sums
    every, exact = float(goods[:, 0].sum()), np.zeros(len(market.share))
    for index in range(len(exact)):
        blocks = max(float(market.units[index] * goods[:, 1 + index].sum()), float(market.largest))
        price = min(market.share[index] * every / blocks, DEAREST)
        exact[index] = np.rint(price * FINE * (market.units[index] / market.largest))
    return exact
