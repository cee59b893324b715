"""Test how the interpretation of data is said in words."""

import math
from typing import Any

import pytest
from fedquorum.records.data_facts import (
    get_constant_accuracy,
    list_data_facts,
    list_data_lines,
    suggest_metric,
)

DATA: dict[str, Any] = {
    "clients": 3,
    "rows": 1200,
    "target": "ill, one of 2 classes",
    "inputs": "1 column of numbers (age)",
    "classes": {"no": 0.916, "yes": 0.084},
    "dropped_clients": {"West": 1},
    "dropped_columns": {"seen": "dates"},
    "missing": {"dose": 0.1, "age": 0.25},
    "invalid": {"dose": 3},
    "other_categories": {"icd": 7},
    "files_passed_over": {".gif": 24},
    "constant_accuracy": {"all": 0.92},
    "warnings": ["the 15 different numbers of score are taken as classes"],
}


def test_a_terminal_has_a_line_for_each_fact() -> None:
    """The shares are of the rows; the columns with most missing cells come first."""
    assert list_data_lines("csv", DATA, ("North", "South", "East")) == [
        (
            "Data csv: 3 clients (North, South, East), 1,200 rows; target ill, one of 2 classes; "
            "inputs 1 column of numbers (age)"
        ),
        "Classes: no 91.6%, yes 8.4%",
        "Left out by data.min_samples: 1 client with too few rows: West (1)",
        "Columns left out: seen (dates). data.columns takes the columns that it names.",
        "Missing, share of rows: age 25.0%, dose 10.0%",
        "Taken as missing by data.invalid_cells: dose (3 cells)",
        "Rare categories taken as other: icd (7)",
        "Files passed over: 24 .gif",
        "Warning: the 15 different numbers of score are taken as classes",
    ]


def test_a_page_has_the_accuracy_of_no_model() -> None:
    """Long lists are cut to the limit."""
    facts = dict(list_data_facts({**DATA, "missing": {f"x{i}": 0.5 for i in range(9)}}, limit=2))
    assert facts["Clients"] == "3 clients"
    assert facts["Always guessing the largest class"] == "92.0% test accuracy"
    assert facts["Missing, share of rows"] == "x0 50.0%, x1 50.0%, and 7 more"


@pytest.mark.parametrize("wrong", [None, "text", [1], {"all": "x", 3: [None]}, math.inf, True])
@pytest.mark.parametrize("key", list(DATA))
def test_an_entry_of_another_form_is_no_error(key: str, wrong: object) -> None:
    """A manifest may come from anyone; what is not understood is left out."""
    data = {**DATA, key: wrong}
    assert all(text.isprintable() for _, text in list_data_facts(data))
    assert all(line.isprintable() for line in list_data_lines("x", data, ()))
    suggest_metric(data, "accuracy")
    assert math.isnan(get_constant_accuracy(data, "priority"))


@pytest.mark.parametrize(
    ("classes", "metric", "suggested"),
    [
        ({"no": 0.916, "yes": 0.084}, "accuracy", "evaluation.metric=auroc"),
        ({"no": 0.8, "yes": 0.2}, "accuracy", "evaluation.metric=auroc"),
        ({"a": 0.9, "b": 0.05, "c": 0.05}, "accuracy", "evaluation.metric=f1"),
        ({"no": 0.79, "yes": 0.21}, "accuracy", ""),
        ({"no": 0.916, "yes": 0.084}, "auroc", ""),
        ({}, "accuracy", ""),
    ],
)
def test_unbalanced_classes_need_another_metric(
    classes: dict[str, float], metric: str, suggested: str
) -> None:
    """At 8 % prevalence, a model that has learned nothing is right in 91.6 % of the rows."""
    text = suggest_metric({"classes": classes}, metric)
    assert suggested in text
    assert bool(text) == bool(suggested)
