"""The scores of a policy, row by row, for simulations of many pods.

Scalar arithmetic in exactly the order in which `Fgd` and `ShadowPrice` do it over arrays, so that
each value is the same; a test compares them. numba stores compiled code beside the modules, and
checks only whether the source of *that* module has changed, not of what it calls: after a change
here remove `gpushare/sim/__pycache__`.
"""

import math

import numpy as np

from gpushare.core.policies.bestfit import LARGEST_CPU, LARGEST_GPU
from gpushare.core.policies.node_shape import HALF
from gpushare.core.policies.shadow_price.cpu_stranding import MOST_CORES, MOST_DEVICES, STEPS
from gpushare.core.policies.shadow_price.policy import BETA, Q
from gpushare.core.snapshot import Bools, Ints, Rows
from gpushare.sim.compiled import (
    Blocks,
    KindScores,
    Prices,
    RequestArrays,
    State,
    Typical,
    World,
    compiled,
)


@compiled
def score_rows(world: World, request: RequestArrays, scores: KindScores, rows: Rows) -> None:
    """Update the kept scores of a kind for these rows."""
    chosen = np.zeros(world.state.free.shape[1], dtype=np.bool_)
    for row in rows:
        scores.best[:, row] = -np.inf
        scores.taken[row, :] = 0
        scores.touched[row] = False
        if not _fits(world.state, request, row):
            continue
        if _choose(world.state.free[row], request, chosen) < request.devices:
            continue
        if request.devices == 1:
            _score_devices(world, request, scores, row)
        else:
            _score_node(world, request, scores, row, chosen)
        _count_blocks_broken(world, request, scores, row, chosen)


@compiled
def _fits(state: State, request: RequestArrays, row: int) -> bool:
    if state.cpu_free[row] < request.cpu or state.memory_free[row] < request.memory:
        return False
    return bool(request.accepted[state.model[row]])


@compiled
def _choose(free: Ints, request: RequestArrays, chosen: Bools) -> int:
    """Mark the tightest devices that fit, of equal ones the first, and return their number.

    It is at most the number asked for.
    """
    chosen[:] = False
    found = 0
    while found < request.devices:
        best = -1
        for device in range(len(free)):
            if chosen[device] or free[device] < request.units:
                continue
            if best < 0 or free[device] < free[best]:
                best = device
        if best < 0:
            break
        chosen[best] = True
        found += 1
    return found


@compiled
def _score_devices(world: World, request: RequestArrays, scores: KindScores, row: int) -> None:
    """Score a pod of one device, on each device that fits; of equal ones on the first."""
    free, prices = world.state.free[row], world.prices
    before = _lost(world.typical, row, world.state.cpu_free[row], free)
    node = _node(world, request, row)
    for device in range(len(free)):
        room = free[device]
        if room < request.units or _seen(free, device):
            continue
        free[device] = room - request.units
        after = _lost(world.typical, row, world.state.cpu_free[row] - request.cpu, free)
        free[device] = room
        lost = 0.0
        if len(prices.left):
            lost = _worth(prices, row, room) - _worth(prices, row, room - request.units)
        value = _value(world, row, before - after, node, lost)
        idle = len(scores.best) > 1 and room == world.state.capacity[row, device]
        if value > scores.best[int(idle), row]:
            scores.best[int(idle), row] = value
            scores.devices[int(idle), row] = device


@compiled
def _score_node(
    world: World, request: RequestArrays, scores: KindScores, row: int, chosen: Bools
) -> None:
    """Score a pod of no device, or of several, on the chosen devices."""
    state, prices = world.state, world.prices
    free, cpu = state.free[row], state.cpu_free[row]
    before = _lost(world.typical, row, cpu, free)
    lost = 0.0
    for device in range(len(free)):
        if chosen[device]:
            if len(prices.left):
                room = free[device]
                lost += _worth(prices, row, room) - _worth(prices, row, room - request.units)
            free[device] -= request.units
    fall = before - _lost(world.typical, row, cpu - request.cpu, free)
    for device in range(len(free)):
        if chosen[device]:
            free[device] += request.units
    if request.devices or not len(prices.left):
        value = _value(world, row, fall, _node(world, request, row), lost)
    else:
        value = _without_gpu(world, request, row, fall)
    scores.best[0, row] = value
    scores.devices[0, row] = 0


@compiled
def _count_blocks_broken(
    world: World, request: RequestArrays, scores: KindScores, row: int, chosen: Bools
) -> None:
    """Store the blocks that the placement breaks."""
    state, blocks = world.state, world.blocks
    number = len(blocks.devices)
    whole = idle_devices(state, row)
    if whole == 0:
        return
    left = whole - _taken(state, row, chosen) if request.devices > 1 else whole
    now = (state.cpu_free[row], state.memory_free[row])
    then = (state.cpu_free[row] - request.cpu, state.memory_free[row] - request.memory)
    for index in range(number):
        before = blocks_left(blocks, row, index, whole, now)
        if before == 0:
            continue
        for variant in range(2 if request.devices == 1 else 1):
            broken = before - blocks_left(blocks, row, index, left - variant, then)
            scores.taken[row, variant * number + index] = broken
            if broken:
                scores.touched[row] = True


@compiled
def _taken(state: State, row: int, chosen: Bools) -> int:
    """Return the idle devices among the chosen ones."""
    taken = 0
    for device in range(len(chosen)):
        if chosen[device] and state.free[row, device] == state.capacity[row, device]:
            taken += 1
    return taken


@compiled
def _value(world: World, row: int, fall: int, node: float, lost: float) -> float:
    """Return the score of a pod with GPU, or of any pod by fgd."""
    even = world.prices.even
    if not len(world.prices.left):
        return float(math.floor(100 / (1 + math.exp(fall * (even * -0.001 / world.typical.pods)))))
    value = fall * (even * (world.prices.alpha / world.typical.pods)) + node
    return float(math.floor((value - BETA * lost) / Q + HALF))


@compiled
def _node(world: World, request: RequestArrays, row: int) -> float:
    """Return the terms of the score for the node: GPU stranded, draining, and holding."""
    prices = world.prices
    if not len(prices.left):
        return 0.0
    gpu = 0
    for room in world.state.free[row]:
        gpu += room
    cpu = world.state.cpu_free[row]
    after = gpu - request.units * request.devices
    rise = _stranded(prices, row, gpu, cpu)
    rise -= _stranded(prices, row, after, cpu - request.cpu)
    value = rise - after * (prices.even * (prices.drain / LARGEST_GPU))
    if prices.hold:
        pods = 0
        for count in world.state.kinds[row]:
            pods += count
        value -= prices.hold / (pods + 1)
    return float(value)


@compiled
def _without_gpu(world: World, request: RequestArrays, row: int, fall: int) -> float:
    state, prices = world.state, world.prices
    gpu, whole = 0, 0
    for device in range(state.free.shape[1]):
        gpu += state.free[row, device]
        whole += state.capacity[row, device]
    even, cpu = prices.even, state.cpu_free[row]
    rise = _stranded(prices, row, gpu, cpu)
    after = _stranded(prices, row, gpu, cpu - request.cpu)
    value = fall * (even * (world.prices.alpha / world.typical.pods)) + rise - after
    value = math.floor(value / Q + HALF)
    left = state.cpu_capacity[row] - state.cpu_only[row]
    alone = _stranded(prices, row, whole, left)
    alone -= _stranded(prices, row, whole, left - request.cpu)
    value += math.floor(prices.mu * alone / Q + HALF)
    return float(value - (0.5 * (gpu * even) / LARGEST_GPU + 0.4 * cpu / LARGEST_CPU))


@compiled
def _lost(typical: Typical, row: int, cpu: int, free: Ints) -> int:
    """Return the fragmentation of a node with this free CPU and these free devices."""
    line = typical.base[row] + _steps(typical.cpus, cpu)
    total, gpu = 0, 0
    for room in free:
        if room > 0:
            gpu += room
            total += typical.small[line, _steps(typical.sizes, room)] * room
    total += typical.barred[line] * gpu
    for index in range(len(typical.many_sizes)):
        count, enough = 0, 0
        for room in free:
            if room >= typical.many_sizes[index]:
                count += 1
                enough += room
        total += enough * typical.many[index, line, count]
    return int(total)


@compiled
def _steps(levels: Ints, value: int) -> int:
    """Return how many of the sorted levels are not above the value."""
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) // 2
        if levels[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _seen(free: Ints, device: int) -> bool:
    """Return whether an earlier device has the same room."""
    return bool((free[:device] == free[device]).any())


@compiled
def idle_devices(state: State, row: int) -> int:
    """Return how many devices of the row hold nothing."""
    count = 0
    for device in range(state.free.shape[1]):
        if state.free[row, device] == state.capacity[row, device] > 0:
            count += 1
    return count


@compiled
def blocks_left(blocks: Blocks, row: int, index: int, whole: int, left: tuple[int, int]) -> int:
    """Return the blocks of one class on a row. whole: idle devices, left: (CPU, memory) free."""
    least = whole // blocks.devices[index]
    if least <= 0 or not blocks.accepted[row, index]:
        return 0
    return int(max(min(least, left[0] // blocks.cpu[index], left[1] // blocks.memory[index]), 0))


@compiled
def _stranded(prices: Prices, row: int, gpu: int, cpu: int) -> float:
    """Return GPU expected to be stranded, in milli, by free units and CPU."""
    capacity = prices.capacity[row]
    line = min((gpu * (2 * STEPS) + capacity) // (2 * capacity), STEPS * MOST_DEVICES)
    place = line * (MOST_CORES + 1) + min(cpu // 1000, MOST_CORES)
    return float(prices.left[place + prices.left_at[row]])


@compiled
def _worth(prices: Prices, row: int, free: int) -> float:
    return float(
        prices.worth[prices.worth_at[row] + free * prices.steps[row] // prices.capacity[row]]
    )
