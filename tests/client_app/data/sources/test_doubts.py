"""Every doubt says what to type, and what it says works on the command line."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from client_app.data.overrides import format_override, list_replacements
from client_app.data.sources.client_table import ClientTable
from client_app.data.sources.csv_table import read_csv_table
from conf.compose import compose_settings
from conf.schema.data import CsvSettings


def load(folder: Path, columns: dict[str, list[str]], **settings: Any) -> ClientTable:
    path = folder / "table.csv"
    n = len(next(iter(columns.values())))
    columns = {"site": ["a", "b"] * (n // 2), "y": ["0", "1", "1", "0"] * (n // 4)} | columns
    rows = [",".join(f'"{cell}"' for cell in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *rows]) + "\n", encoding="utf-8")
    return read_csv_table(CsvSettings(path=str(path), client_column="site", target="y", **settings))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("missing", [-999, "unknown", "?", "#N/A", "nan", "null", "it's", 'a"b', "1", "N/A", "-"]),
        ("categories", ["icd", "Größe (cm)", "a b"]),
        ("replace", {"ill": {"YES": "yes", "Yes": "yes"}}),
        ("replace", {"ill": {">50K.": ">50K"}}),
        ("replace", {"größe": {"é": "e"}, "b": {"x, y": "true"}}),
        ("replace", {"x": {"1": "yes", "0": "no"}}),
        ("replace", {"x": {"01": "1", "true": "1"}}),
    ],
)
def test_a_printed_setting_works_on_the_command_line(key: str, value: Any) -> None:
    """Hydra reads what the shell leaves of it."""
    overrides = (
        f"data=csv data.path=x data.client_column=s data.target=t {format_override(key, value)}"
    )
    data = compose_settings("custom", overrides).settings.data
    got = getattr(data, key)
    if key == "replace":
        got = {n: {str(o): str(w) for o, w in p.items()} for n, p in list_replacements(got).items()}
    else:
        got = [str(each) for each in got]
        value = [str(each) for each in value]
    assert got == value


CODES = [-999, 9999, -9, 999]


@pytest.mark.parametrize("code", CODES)
def test_codes_for_missing_are_doubted(tmp_path: Path, code: int) -> None:
    """Far outside the other numbers, in several rows; the printed setting removes the doubt."""
    cells = [str(code) if i % 5 == 0 else str(i % 7 + 0.5) for i in range(40)]
    (doubt,) = load(tmp_path, {"x": cells}).warnings
    assert f"return in x ({code}); data.missing=[{code}] takes them as missing" in doubt
    table = load(tmp_path, {"x": cells}, missing=[code])
    assert (table.warnings, table.missing) == ((), {"x": 0.2})


@pytest.mark.parametrize(
    "cells",
    [
        ["99", *map(str, range(59, 98))],  # an age
        ["-999", *["1.5", "2.5", "3.5"] * 13],  # once
        ["9", "8", "7", "10"] * 10,
        ["-9", "-20", "30", "-9"] * 10,
        ["-1", "1"] * 20,
        ["999"] * 40,
    ],
)
def test_other_numbers_are_not(tmp_path: Path, cells: list[str]) -> None:
    """They may be measured."""
    assert load(tmp_path, {"x": cells, "z": ["1.5", "2"] * 20}).warnings == ()


def test_a_site_called_na_stays_one(tmp_path: Path) -> None:
    """As rhesus - and a class unknown do, each with a doubt."""
    table = load(
        tmp_path,
        {
            "site": ["NA", "DE"] * 20,
            "rhesus": ["+", "-"] * 20,
            "y": ["ill", "ill", "unknown", "unknown"] * 10,
        },
    )
    assert (table.client_names, table.classes) == (("DE", "NA"), ("ill", "unknown"))
    assert table.columns == ("rhesus=+", "rhesus=-")
    target, category, site = table.warnings
    assert site.startswith("NA in site is taken as one of the clients, not as missing;")
    assert target.startswith("unknown in y is taken as one of the classes, not as missing;")
    assert "in rhesus (-); 'data.missing=" in category or "in rhesus (-); data.missing" in category


def test_two_spellings_in_three_roles(tmp_path: Path) -> None:
    """One line each for clients, classes and categories, with the setting that merges them."""
    table = load(
        tmp_path,
        {
            "site": ["North", "north", "NORTH", "South"] * 10,
            "job": ["nurse", "Nurse", "nurse", "smith"] * 10,
            "y": [*["yes", "1", "no", "0"] * 5, *["0", "no", "1", "yes"] * 5],
        },
    )
    for column, line in zip(("y", "job", "site"), table.warnings, strict=True):
        assert line.startswith(f"{column} has ")
        override = re.search(r"('?data\.replace=.*) merges them", line)
        assert override is not None
        (text,) = shlex.split(override[1])
        overrides = f"data=csv data.path=x data.client_column=s data.target=t {shlex.quote(text)}"
        assert compose_settings("custom", overrides).settings.data.replace  # type: ignore[attr-defined]


def test_codes_among_numbers(tmp_path: Path) -> None:
    """Leading zeros, and many numbers in a column of categories, are doubted."""
    zip_code = [f"0{1000 + i % 9}" for i in range(40)]
    (doubt,) = load(tmp_path, {"zip": zip_code}).warnings
    assert "lost in zip; data.categories=[zip] takes them as categories" in doubt
    assert load(tmp_path, {"zip": zip_code}, categories=["zip"]).columns[0] == "zip=01000"
    mixed = [str(i) for i in range(24)] * 2 + ["word", "other", "third", "much"] * 15
    (doubt,) = load(tmp_path, {"x": mixed}).warnings
    assert "data.numbers=[x] takes them as columns of numbers" in doubt


def test_many_numbers_in_a_column_that_is_left_out(tmp_path: Path) -> None:
    """Half of the cells say low: the column is words, and the doubt says how it becomes numbers."""
    cells = ["low" if i % 2 else f"{i}.25" for i in range(40)]
    fine = {"z": ["1.5", "2"] * 20}
    (doubt,) = load(tmp_path, {"x": cells} | fine).warnings
    assert doubt == (
        "x is left out, but 20 of its 40 cells are numbers; data.numbers=[x] takes it as a column "
        "of numbers"
    )
    for others in ([f"P{i}" for i in range(40)], [f"{i}" for i in range(40)]):
        assert load(tmp_path, {"x": others} | fine).warnings == ()


def test_all_words_for_missing_are_typed(tmp_path: Path) -> None:
    """The setting has each of them, so that one change is enough."""
    (doubt,) = load(tmp_path, {"x": ["n/a", "NA", "-", "?", "yes"] * 8}).warnings
    assert '\'data.missing=["-","?",NA,"n/a"]\' takes them as missing' in doubt


@pytest.mark.parametrize(
    "form", ["{}*", "{} (0.4)", "{} \u00b1 1", "120/{}", "<{}", "ca. {}", "{}k"]
)
def test_numbers_in_unknown_forms_that_are_left_out(tmp_path: Path, form: str) -> None:
    """A measured column does not vanish as words without a word."""
    cells, fine = [form.format(i) for i in range(40)], {"z": ["1.5", "2"] * 20}
    (doubt,) = load(tmp_path, {"x": cells} | fine).warnings
    assert doubt == (
        "x is left out, but its cells begin with numbers: write plain numbers if it is measured"
    )


@pytest.mark.parametrize("form", ["P{}", "{:032x}", "A-{}", "name{}@b.org"])
def test_identifiers_that_are_left_out(tmp_path: Path, form: str) -> None:
    """They do not begin with numbers."""
    cells = [form.format(i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for i in range(1, 41)]
    assert load(tmp_path, {"x": cells, "z": ["1.5", "2"] * 20}).warnings == ()
