"""Response times of simulated clients."""

import math
from pathlib import Path

import numpy as np
import pytest
from fedquorum.client.latency import (
    LognormalLatency,
    ScaledLatency,
    TraceLatency,
    read_response_times,
)
from fedquorum.errors import DataError, ParameterError


def write(folder: Path, text: str) -> Path:
    path = folder / "times.csv"
    path.write_text(text)
    return path


def test_lognormal_times_have_their_median_and_spread() -> None:
    """The logarithms of 4,000 clients have the right mean and spread, within 4 standard errors."""
    clients = 4000
    times = LognormalLatency(median=20.0, between=0.8, within=0.3)
    logs = np.log([times.get_seconds(1, k, 5) for k in range(clients)])
    spread = math.hypot(0.8, 0.3)
    assert abs(logs.mean() - math.log(20.0)) < 4 * spread / math.sqrt(clients)
    assert abs(logs.std() - spread) < 4 * spread / math.sqrt(2 * clients)
    # One client over the rounds has its own mean and the spread ``within``.
    rounds = np.log([times.get_seconds(1, 7, t) for t in range(1, clients + 1)])
    assert abs(rounds.std() - 0.3) < 4 * 0.3 / math.sqrt(2 * clients)


def test_a_time_depends_on_seed_client_and_round_alone() -> None:
    """Earlier calls do not matter; without spread all clients take the median."""
    times = LognormalLatency()
    assert times.get_seconds(3, 4, 5) == LognormalLatency().get_seconds(3, 4, 5)
    assert len({times.get_seconds(s, k, t) for s in (1, 2) for k in (0, 1) for t in (1, 2)}) == 8
    assert LognormalLatency(7.0, 0.0, 0.0).get_seconds(1, 2, 3) == 7.0


def test_times_of_many_clients_are_those_of_each() -> None:
    """Drawn together or one after the other, to the bit."""
    times = LognormalLatency()
    expected = [times.get_seconds(8, k, 3) for k in range(40)]
    assert times.list_seconds(8, range(40), 3) == expected
    scaled = ScaledLatency(times, lambda client: 1.0 + client)
    assert scaled.list_seconds(8, [2, 5], 3) == [3.0 * expected[2], 6.0 * expected[5]]
    trace = TraceLatency({0: [(1, 2.0)], 1: [(2, 5.0)]})
    assert trace.list_seconds(8, [1, 0], 3) == [5.0, 2.0]


@pytest.mark.parametrize("wrong", [{"median": 0.0}, {"between": -1.0}, {"within": math.nan}])
def test_impossible_parameters(wrong: dict[str, float]) -> None:
    """The error names the parameter."""
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        LognormalLatency(**wrong)


def test_times_from_a_file(tmp_path: Path) -> None:
    """A line holds from its round to the client's next; the first also holds before it."""
    path = write(tmp_path, "round,seconds,client\n4,2.5,0\n1,1.0,0\n3,9,1\n")
    times = read_response_times(str(path), 2)
    assert [times.get_seconds(1, 0, t) for t in (1, 3, 4, 99)] == [1.0, 1.0, 2.5, 2.5]
    assert [times.get_seconds(1, 1, t) for t in (1, 3, 5)] == [9.0] * 3
    path = write(tmp_path, "client,seconds,note\n1,2,x\n0,1e3,\n")
    assert read_response_times(str(path), 2) == TraceLatency({0: [(1, 1000.0)], 1: [(1, 2.0)]})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("client,seconds\n0,1\n0,2\n", "line 3: client 0 of round 1 is in line 2 already"),
        ("client,seconds\n0,1\n", "line 2: client 1 has no line"),
        ("client,seconds\n0,0\n", "line 2: seconds must be a number above 0, got '0'"),
        ("client,seconds\n0,nan\n", "line 2: seconds must be a number above 0, got 'nan'"),
        ("client,seconds\n0,fast\n", "line 2: seconds must be a number above 0, got 'fast'"),
        ("client,seconds\n2,1\n", "line 2: client must be a whole number from 0 to 1, got '2'"),
        ("client,seconds,round\n0,1,0\n", "line 2: round must be a whole number >= 1, got '0'"),
        (
            "client,time\n0,1\n",
            "line 1: the header must have client, seconds, each once, got client, time",
        ),
        ("client,seconds,round,round\n", "line 1: the header must have client, seconds"),
        ("client,seconds\n", "line 1: there is nothing below the header"),
        ("client,seconds\n0,1,2\n", "line 2: 3 cells, the header has 2"),
    ],
)
def test_mistakes_name_their_line(tmp_path: Path, text: str, problem: str) -> None:
    """The error is one line with the file."""
    path = write(tmp_path, text)
    with pytest.raises(DataError, match="response times must be a CSV file") as raised:
        read_response_times(str(path), 2)
    assert f"{path}, {problem}" in str(raised.value)


def test_no_file(tmp_path: Path) -> None:
    """The error names the path."""
    with pytest.raises(DataError, match="No such file"):
        read_response_times(str(tmp_path / "nowhere.csv"), 2)
