"""The tables of the documents are those that the declarations make."""

import re
from collections import Counter

import pytest
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS, NAMED_STRATEGIES

from docs.tables import PAGES, ROOT, TABLE_BUILDERS, format_table, merge_rows, render_tables


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_as_it_would_be_written(page: str) -> None:
    """``python -m docs.tables`` changes nothing; it would mend a row that somebody edited."""
    text = (ROOT / page).read_text()
    assert render_tables(text) == text
    edited = re.sub(r"(<!-- table: .*? -->\n\n).*\n", r"\1edited\n", text, count=1)
    assert edited != text == render_tables(edited)


def test_every_table_is_on_one_page() -> None:
    """None is forgotten, and none is asked for that there is not."""
    texts = [(ROOT / page).read_text() for page in PAGES]
    found = Counter(name for text in texts for name in re.findall(r"<!-- table: (.*?) -->", text))
    assert found == Counter([*TABLE_BUILDERS])
    with pytest.raises(KeyError):
        render_tables("<!-- table: nothing -->\n<!-- end of table -->")


@pytest.mark.parametrize("name", ["methods", "trust", "privacy", "secure sums"])
def test_every_strategy_has_a_row_without_a_gap(name: str) -> None:
    """By its name; the first cell after it is never empty."""
    rows = [line.split(" | ") for line in TABLE_BUILDERS[name]().splitlines()[2:]]
    found = [key for row in rows for key in re.findall(r"`(\w+)`", row[0])]
    assert sorted(found) == sorted([*NAMED_STRATEGIES, "composed", "custom"])
    assert all(row[1].strip(" |") for row in rows)


def test_the_readme_says_of_every_strategy_when_to_use_it() -> None:
    """In one row each, or in one with others."""
    rows = [line.split(" | ") for line in TABLE_BUILDERS["uses"]().splitlines()[2:]]
    found = [key for row in rows for key in re.findall(r"`(\w+)`", row[0])]
    assert sorted(found) == sorted([*NAMED_STRATEGIES, "composed", "custom"])
    assert all(row[-1].strip(" |") for row in rows)


def test_every_part_has_a_row_in_the_tables_of_compositions() -> None:
    """One each."""
    for name, parts in (("denominators", ALL_WEIGHTINGS), ("populations", ALL_SELECTIONS)):
        found = re.findall(r"^\| `(\w+)`", TABLE_BUILDERS[name](), re.MULTILINE)
        assert set(found) == {*parts}


def test_a_cell_may_have_a_bar_and_equal_rows_are_one() -> None:
    """A bar does not end its cell, and strategies of which the same is said share a row."""
    assert format_table(("a", "b"), [["|x|", ""]]) == "| a | b |\n| --- | --- |\n| \\|x\\| | |\n"
    rows = [("one", ("x",)), ("two", ("y",)), ("three", ("x",))]
    assert [*merge_rows(rows)] == [["`one`, `three`", "x"], ["`two`", "y"]]
