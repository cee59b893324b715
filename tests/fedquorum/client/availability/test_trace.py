"""Traces: availability from a CSV file, and every mistake with its line."""

from pathlib import Path

import pytest
from fedquorum.client.availability.trace import read_trace
from fedquorum.errors import DataError

HEADER = "round,client,available\n"


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        HEADER + "1,0,1\n1,1,0\n2,0,0\n2,1,1\n3,0,1\n",
        HEADER + "3,0,true\n2,1,TRUE\n1,0,True\n2,0,false\n",
        "\n" + HEADER + "\n1, 0 ,1\n\n   \n,,\n3,0,1\n2,1,1\n\n",
        "client,note,available,round\n0,a,1,1\n1,,1,2\n0,b,1,3\n",
        HEADER.replace("\n", "\r\n") + "1,0,1\r\n3,0,1\r\n2,1,1",
        "\ufeff" + HEADER + '"1","0","1"\n"3",0,1\n2,1,1\n',
    ],
    ids=["numbers", "words", "blank lines", "other columns", "Windows", "BOM and quotes"],
)
def test_rounds_of_each_client(tmp_path: Path, content: str) -> None:
    """A client is available in rounds with 1 or true, and in no round without a line."""
    path = write(tmp_path, content)
    assert read_trace(str(path), 3) == {0: frozenset({1, 3}), 1: frozenset({2})}


def test_a_trace_may_have_no_available_client(tmp_path: Path) -> None:
    """Such a trace is read without an error."""
    assert read_trace(str(write(tmp_path, HEADER + "1,0,0\n")), 1) == {}


MISTAKES: dict[str | bytes, str] = {
    "": ", line 1: the header must have round, client, available, each once, got none",
    "round,client\n1,0\n": ", line 1: the header must have .*, got round, client$",
    "\n\nround,client,there\n": ", line 3: the header must have .*, got round, client, there$",
    "round,round,client,available\n1,1,0,1\n": (
        ", line 1: the header must have .* each once, got round, round, client, available$"
    ),
    HEADER: ", line 1: there is nothing below the header",
    HEADER + "\n \n": ", line 1: there is nothing below the header",
    HEADER + "1,0,1\nx,0,1\n": ", line 3: round must be a whole number >= 1, got 'x'",
    HEADER + "1,0,1\n\n\n0,0,1\n": ", line 5: round must be a whole number >= 1, got '0'",
    HEADER + "-1,0,1\n": ", line 2: round must be a whole number >= 1, got '-1'",
    HEADER + "1.0,0,1\n": ", line 2: round must be a whole number >= 1, got '1.0'",
    HEADER + "1_0,0,1\n": ", line 2: round must be a whole number >= 1, got '1_0'",
    HEADER + "\u0663,0,1\n": ", line 2: round must be a whole number >= 1, got '\u0663'",
    HEADER + "9" * 5000 + ",0,1\n": ", line 2: round must be a whole number >= 1, got '9999",
    HEADER + ",0,1\n": ", line 2: round must be a whole number >= 1, got ''",
    HEADER + "1,3,1\n": ", line 2: client must be a whole number from 0 to 2, got '3'",
    HEADER + "1,-1,1\n": ", line 2: client must be a whole number from 0 to 2, got '-1'",
    HEADER + "1,a,1\n": ", line 2: client must be a whole number from 0 to 2, got 'a'",
    HEADER + "1,0,2\n": ", line 2: available must be 0, 1, true or false, got '2'",
    HEADER + "1,0,yes\n": ", line 2: available must be 0, 1, true or false, got 'yes'",
    HEADER + "1,0,\n": ", line 2: available must be 0, 1, true or false, got ''",
    HEADER + "1,0\n": ", line 2: 2 cells, the header has 3",
    HEADER + "1,0,1\n1,1,1,1\n": ", line 3: 4 cells, the header has 3",
    HEADER + "1,0,1\n2,0,1\n1,0,0\n": ", line 4: round 1, client 0 is in line 2 already",
    HEADER.encode() + b"1,0,1\n2,0,\xff\n": ", line 3: it is not UTF-8",
    b"\xef\xbb\xbf" + HEADER.encode() + b"\n\xff": ", line 3: it is not UTF-8",
    HEADER + '1,0,"1\n': ", line 2: unexpected end of data",
}


@pytest.mark.parametrize("content", MISTAKES, ids=[repr(c)[:40] for c in MISTAKES])
def test_mistakes_have_their_line(tmp_path: Path, content: str | bytes) -> None:
    """The error is one line with the setting, the file, the line and the mistake."""
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=MISTAKES[content]) as caught:
        read_trace(str(path), 3)
    text = str(caught.value)
    assert "\n" not in text
    start = "a trace must be a CSV file with the columns round, client, available, got "
    assert text.startswith(f"{start}{path}, line ")


def test_no_file(tmp_path: Path) -> None:
    """The error names a path that is missing or a folder."""
    with pytest.raises(DataError, match=r"nowhere\.csv: No such file or directory$"):
        read_trace(str(tmp_path / "nowhere.csv"), 3)
    with pytest.raises(DataError, match=r"Is a directory$"):
        read_trace(str(tmp_path), 3)


def test_path_may_start_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` is the user's home, as in a shell."""
    write(tmp_path, HEADER + "1,0,1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_trace("~/trace.csv", 1) == {0: frozenset({1})}
