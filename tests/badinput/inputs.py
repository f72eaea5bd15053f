"""The sequence of inputs: one kind after another, each input from seed and number alone."""

import random

from tests.badinput import bodies, heads, large
from tests.badinput.attempt import Attempt, Spoil, Targets

KINDS: tuple[Spoil, ...] = (
    *(bodies.wrong_values, bodies.broken_bytes, bodies.nested, bodies.numbers, bodies.twice),
    *(bodies.texts, bodies.pods, bodies.annotations, bodies.node_names, bodies.binds),
    *(bodies.media, bodies.paths, heads.request_lines, heads.odd_heads, heads.smuggled),
    *(heads.chunked, heads.short, heads.gone, heads.together, heads.noise, heads.probes),
    *(large.long_heads, large.long_texts, large.wide, large.many_names),
)


def attempt(number: int, seed: int, targets: Targets) -> Attempt:
    """Input number so many of a seed."""
    rng = random.Random(f"{seed}:{number}")
    return KINDS[number % len(KINDS)](rng, targets)
