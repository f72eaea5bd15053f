"""Nothing but a refusal of ours comes out of a decoder, whatever goes in."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.badinput import odd
from tests.badinput.decoders import DECODERS, Decoder

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_VALUES = st.recursive(
    _SCALARS | st.sampled_from(odd.TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
quiet = settings(
    database=None, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)


def inputs(decoder: Decoder) -> st.SearchStrategy[bytes]:
    """Bytes, texts, JSON, and the decoder's own documents spoiled."""
    text = st.text() | st.sampled_from(odd.TEXTS)
    spoiled = st.builds(
        lambda seed, rng: as_bytes(odd.spoiled(rng, seed)),
        st.sampled_from([seed for seed in decoder.seeds if not isinstance(seed, str)] or [{}]),
        st.integers(0, 2**32).map(random.Random),
    )
    flipped = st.builds(
        odd.bytes_of,
        st.integers(0, 2**32).map(random.Random),
        st.sampled_from(decoder.seed_bytes()),
    )
    return (
        spoiled
        | flipped
        | st.binary(max_size=200)
        | text.map(lambda each: each.encode("utf-8", "surrogatepass"))
        | _VALUES.map(as_bytes)
    )


def as_bytes(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_a_decoder_answers_or_refuses(decoder: Decoder) -> None:
    @quiet
    @given(data=inputs(decoder))
    def holds(data: bytes) -> None:
        decoder.refuses(data)

    holds()


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_the_documents_to_begin_from_are_taken_by_it(decoder: Decoder) -> None:
    assert not all(decoder.refuses(data) for data in decoder.seed_bytes())
