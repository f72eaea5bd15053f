"""The tables of documents: what is run for them, how their lines read, and where they are put."""

from pathlib import Path

import pytest

from gpushare.core.policy import policy_names
from gpushare.errors import SettingsError
from gpushare.sim.inputs import shipped
from gpushare.sim.report import Record
from gpushare.sim.scorers import RANDOM
from gpushare.sim.tables import TABLES, Table, chosen, renew

PAGE = Path(__file__).parents[3] / "docs" / "research" / "placement-figures.md"
DOCUMENT = PAGE.read_text(encoding="utf-8")


def only(name: str, *files: str) -> Table:
    (table,) = chosen([name], files, (), ())
    return table


def runs(table: Table, line: int, **by_policy: tuple[float, ...]) -> list[Record]:
    """Records of a line: GPU allocated by each policy with the seeds 42, 43 and so on."""
    return [
        {"table": table.name, **table.lines[line].labels, "policy": policy, "seed": seed}
        | {"workload": "known", "alloc": value, "allocated": {"95": value - 1, "100": value}}
        for policy, values in by_policy.items()
        for seed, value in enumerate(values, 42)
    ]


def learning(records: list[Record]) -> list[Record]:
    return [{**record, "workload": "learned"} for record in records]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_names_lists_and_policies_that_are_there_and_has_its_marks(
    table: Table,
) -> None:
    assert {line.file for line in table.lines} <= set(shipped())
    assert {policy for policy, _ in table.variants} <= {*policy_names(), RANDOM}
    renew(DOCUMENT, dict.fromkeys(table.views, ""))
    found = [line.labels for line in table.lines]
    assert all(found.count(labels) == 1 for labels in found)


def test_a_line_compares_ours_with_each_other_policy_by_pairs_of_seeds() -> None:
    table = only("churn", "cpu250")
    line = {"device-bestfit": (90.0, 91.0), "fgd": (91.0, 92.0), "shadow-price": (92.0, 92.5)}
    records = runs(table, 1, **line)
    assert table.rows("churn", records) == [
        ["file", "load", "seeds", "device-bestfit", "fgd", "shadow-price"]
        + ["above device-bestfit", "above fgd"],
        ["cpu250", "1.1", "2", "90.50", "91.50", "92.25", "+1.75 (0.25)", "+0.75 (0.25)"],
    ]


def test_what_was_not_run_is_empty_and_what_cannot_be_compared_is_a_dash() -> None:
    table = only("lifetimes", "default")
    (_, row) = table.rows("lifetimes", runs(table, 0, fgd=(91.0,)))
    assert row == ["default", "1", "", "91.00", "", "-", "-"]


def test_the_published_figure_stands_in_brackets_and_the_lead_in_a_table_of_its_own() -> None:
    table = only("inflation")
    line = {"fgd": (95.0, 95.2), "shadow-price": (96.0, 96.2)}
    made = table.markdown(runs(table, 0, **line))
    heads = "| file | seeds | random | dotproduct | clustering | packing | bestfit | fgd"
    assert made["inflation-100"].splitlines() == [
        f"{heads} | shadow-price |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| default | 2 |  |  |  |  |  | 95.10 (-0.13) | **96.10** |",
    ]
    assert made["inflation-lead"].splitlines()[2] == "| default | 2 | +1.00 (0.00) |" + (
        " +1.00 (0.00) | +1.00 (0.00) |"
    )


def test_waits_are_told_beside_the_number_that_waits() -> None:
    table = only("waiting", "gpushare100")
    records = [
        {**record, "waiting": waiting, "wait_mean": {"share": 0.1, **waits}}
        for record, waiting, waits in zip(
            runs(table, 0, **{"fgd": (90.0,), "shadow-price": (90.0,)}),
            (70.0, 24.0),
            ({}, {"8": 0.0125}),
            strict=True,
        )
    ]
    head, row = table.rows("waiting", records)
    told = dict(zip(head, row, strict=True))
    assert (told["file"], told["load"], told["seeds"]) == ("gpushare100", "0.87", "1")
    assert told["waiting: fgd"] == "70.00"
    assert told["shadow-price above fgd"] == "-46.00"
    assert (told["wait of 8: fgd"], told["wait of 8: shadow-price"]) == ("-", "0.013")


def test_what_is_kept_of_the_lead_is_told_of_a_policy_that_learns() -> None:
    table = only("learned", "default")
    assert table.variants == (
        ("fgd", "known"),
        ("shadow-price", "known"),
        ("shadow-price", "learned"),
    )
    known = runs(table, 1, **{"fgd": (93.0, 93.0), "shadow-price": (94.0, 94.0)})
    learned = learning(runs(table, 1, **{"shadow-price": (93.8, 94.0)}))
    head, row = table.rows("learned", [*known, *learned])
    assert head[-2:] == ["learning above knowing", "share of the lead over fgd"]
    assert row == ["default", "churn", "2", "93.00", "94.00", "93.90", "-0.10 (0.10)", "0.90"]
    assert table.rows("learned", known)[1][-3:] == ["", "-", "-"]


def test_how_many_seeds_there_are_is_told_from_the_fewest_to_the_most() -> None:
    table = only("churn", "default")
    (_, row) = table.rows("churn", runs(table, 0, fgd=(90.0, 91.0), binpack=(80.0,)))
    assert row[2] == "1 to 2"


def test_a_table_that_nothing_was_run_for_is_left_as_it_is() -> None:
    table = only("churn")
    assert table.markdown([]) == {}
    assert list(table.markdown(runs(table, 0, fgd=(90.0,)))) == ["churn"]
    assert only("units").markdown(runs(table, 0, fgd=(90.0,))) == {}


def test_tables_are_chosen_with_files_policies_and_seeds_instead_of_their_own() -> None:
    churn, lifetimes = chosen(["churn", "lifetimes"], ["gpuspec33"], ["fgd"], [7])
    assert [line.labels["load"] for line in churn.lines] == [1.0, 1.1, 1.3]
    assert len(lifetimes.lines) == 1
    assert (churn.policies, churn.seeds) == (("fgd",), (7,))
    assert len(only("inflation").seeds) == 10


@pytest.mark.parametrize(
    ("names", "files", "says"),
    [
        (["none"], [], "no table is called 'none'; there are: inflation, churn, waiting"),
        (["churn"], ["none"], "no shipped trace is called 'none': cpu050"),
        (["waiting"], ["cpu050"], "the table waiting has no line for cpu050"),
    ],
)
def test_what_is_not_there_cannot_be_chosen(names: list[str], files: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        chosen(names, files, (), ())


def test_tables_are_renewed_between_their_marks() -> None:
    document = "Before.\n\n" + "\n\n".join(
        f"<!-- simulate:{name} -->\nold\n<!-- /simulate -->" for name in ("one", "two")
    )
    new = renew(document, {"two": "| new |"})
    assert new == document.replace("old", "| new |", 2).replace("| new |", "old", 1)
    assert renew(new, {"two": "| new |"}) == new
    with pytest.raises(SettingsError, match="no marks for the table three"):
        renew(new, {"three": ""})
