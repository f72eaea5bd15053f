"""Lines of facts on a terminal of some width."""

import io

from gpushare.commandline import columns_of
from gpushare.wire.printable import folded, wrapped

FACT = "Nodes:      0 of 8 have room: 3 Insufficient GPU Memory in one device, 5 cordoned"
ROW = "NODE   " + "GPU0  " * 20


def test_a_long_fact_is_broken_at_blanks_below_its_label() -> None:
    assert wrapped(f"{FACT}\n{ROW}\n", 50).splitlines() == [
        "Nodes:      0 of 8 have room: 3 Insufficient GPU",
        "            Memory in one device, 5 cordoned",
        ROW,
    ]


def test_what_goes_on_with_a_fact_keeps_its_indent() -> None:
    text = "          new: 1: another GPU model than the pod accepts\n"
    assert wrapped(text, 40).splitlines() == [
        "          new: 1: another GPU model than",
        "          the pod accepts",
    ]


def test_words_stay_whole_and_nothing_is_lost() -> None:
    text = f"Policy: {'x' * 60} {'y' * 60}\n"
    assert wrapped(text, 40).split() == text.split()
    assert folded("ok    nodes  fine", 50, 13) == "ok    nodes  fine"


def test_another_output_than_a_terminal_has_no_columns() -> None:
    assert columns_of(io.StringIO()) == 0
    assert wrapped(FACT, 0) == FACT
