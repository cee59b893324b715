"""Settings of cells: what could be both is refused."""

import pytest
from fedquorum.errors import SettingsError

from conf.compose import compose_settings

BASE = "data=csv data.path=x data.client_column=a data.target=b"
REFUSED = {
    "data.numbers=[b]": "data.numbers must be columns other than .* got 'b'$",
    "data.numbers=[c] data.categories=[c]": "data.numbers must be columns other than .* got 'c'$",
    "data.categories=[c] data.drop_columns=[c]": "data.categories must be columns .* got 'c'$",
    "data.missing=[nan]": r"data\.missing must be a list of numbers and texts, words such as nan,",
    "data.missing=[null]": r"words such as nan, null and true in quotes, got \[None\]$",
    "data.missing=[true]": r"got \[True\]$",
    "data.missing=[1,'1.0']": r"data\.missing must be values that match different cells, got \[1,",
    "data.missing=[1,1.0]": "different cells",
    "data.replace=5": r"data\.replace must be a mapping such as .*, got 5$",
    "data.replace={c: d}": r"data\.replace must be a mapping",
    "data.replace=[[c,d]]": r"data\.replace must be a mapping",
    "data.replace=[[c,1,d],[c,'1',e]]": r"data\.replace of c must be values that match different",
    "data.columns={numbers: [c], classes: [1, '1.0']}": r"data\.columns\.classes must be values",
    "data.columns={numbers: [c], classes: [u, v]} data.numbers=[c]": (
        r"data\.numbers must be empty where data\.columns names the columns, got \['c'\]$"
    ),
    "data.invalid_cells=drop": r"data\.invalid_cells must be",
    "data.max_categories=1": r"data\.max_categories must be",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_settings_that_could_mean_two_things(overrides: str) -> None:
    """One line, before any work."""
    words = [f"data.{word}" for word in f" {overrides}".split(" data.")[1:]]
    text = " ".join([BASE, *(f'"{word}"' for word in words)])
    with pytest.raises(SettingsError, match=REFUSED[overrides]) as caught:
        compose_settings("custom", text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    ["data.missing=[-999,unknown,'01','1']", "data.replace=[[c,'1',a],[c,'1.0',a],[d,1,null]]"],
)
def test_settings_that_mean_one_thing(overrides: str) -> None:
    """Texts that differ are different values."""
    assert compose_settings("custom", f'{BASE} "{overrides}"')
