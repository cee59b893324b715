"""Show clients by name, and find those that a user names."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import ParameterError, RunError
from fedquorum.records.client_names import (
    MAX_CLIENT_NAME_LENGTH,
    MAX_LABEL_LENGTH,
    MAX_NAMED_CLIENTS,
    NO_NAMES,
    ClientNames,
    parse_client,
)
from fedquorum.records.reader import read_client_names
from fedquorum.rules.types import Population

from conf.compose import parse_override
from tests.fedquorum.records.made import open_records

SITES = ClientNames.from_list(["East", "North", "St. Mary's", 'the "Old"'])
NUMBERED = ClientNames.from_list(["1", "3", "7"])


def test_a_name_is_shown_and_an_id_without_one() -> None:
    """The id follows a name that could be another client's, or another's id."""
    names = ClientNames({0: "North", 1: "North", 2: "South", 4: "5", 5: "5b", 6: "6"})
    shown = [names.format(client) for client in range(7)]
    assert shown == ["North (id 0)", "North (id 1)", "South", "3", "5 (id 4)", "5b", "6"]
    assert NO_NAMES.format(12) == "12"


def test_names_of_others_are_one_short_line() -> None:
    """Control characters become blanks; a long name is cut, in charts shorter and with the id."""
    names = ClientNames.clean({0: "a\x1b[31m\nb", 1: "x" * 500, 2: "x" * 501, 3: " \u200b "})
    assert names.format(0) == "a [31m b"
    assert names.format(1) == f"{'x' * MAX_CLIENT_NAME_LENGTH}... (id 1)"
    assert names.format(3) == "3"
    labels = {names.format_label(client) for client in range(3)}
    assert labels == {"a [31m b", *(f"{'x' * MAX_LABEL_LENGTH}... (id {k})" for k in (1, 2))}
    assert ClientNames.clean(names.names) == names


def test_many_clients_have_no_names() -> None:
    """So that a run of 100,000 people lists none of them."""
    assert ClientNames.from_list(["x"] * (MAX_NAMED_CLIENTS + 1)) == NO_NAMES
    assert len(ClientNames.from_list(["x"] * MAX_NAMED_CLIENTS).names) == MAX_NAMED_CLIENTS
    assert ClientNames.from_list(["x"], recorded=False) == ClientNames.from_list(None) == NO_NAMES


def test_a_number_is_an_id_and_a_text_a_name() -> None:
    """Blanks in a name count as they are shown."""
    assert [SITES.find(one, 4, "client") for one in (0, "North", "St.  Mary's")] == [0, 1, 2]
    assert NUMBERED.find("3", 3, "client") == 1
    assert NUMBERED.find(2, 3, "client") == 2
    assert ClientNames({0: "0", 1: "1"}).find(1, 2, "client") == 1
    assert ClientNames().find(np.int32(1), 2, "client") == 1
    assert NO_NAMES.find(7, 8, "client") == 7


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (SITES, "Nroth", "(did you mean North?), got 'Nroth'"),
        (SITES, "zzz", "(the names are East, North, St. Mary's, the \"Old\"), got 'zzz'"),
        (SITES, 4, "x must be an id from 0 to 3 or the name of a client, got 4"),
        (SITES, -1, "x must be an id from 0 to 3 or the name of a client, got -1"),
        (SITES, True, "such as true or 1E1, needs quotes"),
        (SITES, 10.0, "such as true or 1E1, needs quotes"),
        (SITES, "2", "(no client has this name; its id has no quotes: x=[2]), got '2'"),
        (NO_NAMES, "North", "(the names of the clients are not known), got 'North'"),
        (NUMBERED, 7, "(a name that is a number needs quotes: type 'x=[\"7\"]'), got 7"),
        (ClientNames({0: "A", 3: "A"}), "A", "(the clients with ids 0, 3 have this name: type an"),
    ],
)
def test_an_unknown_client_is_one_line(names: ClientNames, given: object, message: str) -> None:
    """It says what to type."""
    with pytest.raises(ParameterError, match=re.escape(message)):
        names.find(given, 4, "x", "x=[{}]")


@pytest.mark.parametrize("quoted", ["1", "St. Mary's", 'the "Old"'])
def test_what_could_be_two_clients_is_refused_with_both_spelled_out(quoted: str) -> None:
    """Each of the two texts, typed in a shell, means the one or the other client."""
    names = ClientNames.from_list(["1", quoted if quoted != "1" else "one"])
    with pytest.raises(ParameterError) as caught:
        names.find(1, 2, "data.priority", "data.priority=[{}]")
    given = f'1 is the id of "{names.names[1]}" and the name of the client with id 0'
    assert str(caught.value).startswith(f"data.priority must be one client ({given}: type ")
    by_id, by_name = str(caught.value).partition(": type ")[2].rpartition(")")[0].split(" or ")
    typed: list[Any] = [parse_override(*shlex.split(text)).value() for text in (by_id, by_name)]
    assert [names.find(value, 2, "data.priority") for (value,) in typed] == [1, 0]


def test_a_client_on_the_command_line() -> None:
    """Quotes that the shell leaves make a number a name."""
    given = [parse_client(text) for text in ("7", "-1", '"7"', "'7'", "North", '"', "St. M's")]
    assert given == [7, -1, "7", "7", "North", '"', "St. M's"]
    assert parse_client(r'"the \"Old\""') == 'the "Old"'
    with pytest.raises(ParameterError) as caught:
        NUMBERED.find(1, 3, "client", "--client {}")
    typed = re.findall(r"--client ('.*?')", str(caught.value))
    found = [parse_client(*shlex.split(text)) for text in typed]
    assert [NUMBERED.find(one, 3, "client") for one in found] == [1, 0]


def test_the_records_have_the_names_once(tmp_path: Path) -> None:
    """They are in the table of clients; records of others are sanitized."""
    run = tmp_path / "run"
    with open_records(run) as records:
        assert read_client_names(run) == NO_NAMES
        records.save_population(
            Population((0, 1, 2), frozenset({0})), None, names=ClientNames({0: "North"})
        )
    assert read_client_names(run) == ClientNames({0: "North"})
    table = pq.read_table(run / "population.parquet")
    assert table["name"].to_pylist() == ["North", None, None]
    hostile = pa.array(["\x1b]0;x\x07", "<b>", None])
    index = table.column_names.index("name")
    pq.write_table(table.set_column(index, "name", hostile), run / "population.parquet")
    assert read_client_names(run).names == {0: "]0;x", 1: "<b>"}
    pq.write_table(table.set_column(index, "name", pa.array([1, 2, 3])), run / "population.parquet")
    with pytest.raises(RunError, match="expected texts in name, got int64"):
        read_client_names(run)
