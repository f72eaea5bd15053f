"""Wishes for cards are read under our names and HAMi's, and nonsense is an error."""

import pytest

from gpushare.core.model import ANY_CARD, Cards, NodeSpec
from gpushare.errors import AnnotationError
from gpushare.wire.device_request import MOST_WISHES, WISHES, wanted_cards


@pytest.mark.parametrize("names", [tuple(WISHES), tuple(WISHES.values())])
def test_our_names_and_hamis_say_the_same(names: tuple[str, ...]) -> None:
    values = ("A100, Tesla V100", "a100-pcie", "GPU-1,GPU-2", "GPU-3")
    assert wanted_cards(dict(zip(names, values, strict=True))) == Cards(
        ("a100", "tesla-v100"), ("a100-pcie",), ("GPU-1", "GPU-2"), ("GPU-3",)
    )


def test_without_a_wish_any_card_will_do() -> None:
    assert wanted_cards({"other": "x"}) == ANY_CARD
    assert wanted_cards({"gpushare.io/use-models": ""}) == ANY_CARD


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"gpushare.io/use-models": ","}, "gpushare.io/use-models: ',' names nothing"),
        ({"gpushare.io/use-uuids": "GPU 1"}, "gpushare.io/use-uuids: 'GPU 1' is no uuid"),
        ({"gpushare.io/not-models": "x" * 129}, "more than 128 characters"),
        ({"nvidia.com/use-gpuuuid": ",".join(map(str, range(MOST_WISHES + 1)))}, "more than 64"),
        (
            {name: ",".join(f"{at:040}" for at in range(MOST_WISHES)) for name in WISHES},
            "10240 characters together; 6144 are allowed",
        ),
        (
            {"gpushare.io/use-models": "A100", "nvidia.com/use-gputype": "T4"},
            "gpushare.io/use-models and nvidia.com/use-gputype mean the same and differ",
        ),
    ],
)
def test_a_wish_without_sense_is_refused(annotations: dict[str, str], says: str) -> None:
    with pytest.raises(AnnotationError) as error:
        wanted_cards(annotations)
    assert says in str(error.value)


def test_the_same_wish_under_both_names_is_one() -> None:
    both = {"gpushare.io/use-models": "T4, A10", "nvidia.com/use-gputype": "a10,t4"}
    assert wanted_cards(both) == Cards(models=("a10", "t4"))


def test_a_card_is_accepted_by_model_and_uuid() -> None:
    spec = NodeSpec("n", (16, 16, 16), (True,) * 3, ("NVIDIA-A100", "Tesla-T4", ""), ("a", "b", ""))
    accepted = [
        (Cards(models=("a100",)), (True, False, False)),
        (Cards(not_models=("t4",)), (True, False, True)),
        (Cards(uuids=("b",)), (False, True, False)),
        (Cards(not_uuids=("b",)), (True, False, True)),
        (Cards(models=("t4",), not_uuids=("b",)), (False, False, False)),
        (ANY_CARD, (True, True, True)),
    ]
    for cards, devices in accepted:
        assert cards.accepted(spec) == devices
    assert Cards(not_models=("t4",)).accepted(NodeSpec("n", (1,), (True,))) == (True,)
