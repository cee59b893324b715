"""Names keep their look, and those that may be the same are found."""

import numpy as np
import pyarrow as pa
import pytest

from client_app.data.sources.labels import find_names, find_similar_names


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10.0", "9.0"], ("9.0", "10.0")),
        (["10", "9", "01"], ("01", "10", "9")),
        (["1", "01", "001"], ("001", "01", "1")),
        (["1E1", "10E0", "2E3"], ("10E0", "1E1", "2E3")),
        (["12345678901234567891", "12345678901234567890"],
         ("12345678901234567890", "12345678901234567891")),
        (["1.0", "1"], ("1", "1.0")),
        ([10, 9], ("9", "10")),
        ([10.0, 9.0, 1.5], ("1.5", "9", "10")),
        ([True, False], ("False", "True")),
    ],
)  # fmt: skip
def test_names_keep_their_look(cells: list[object], names: tuple[str, ...]) -> None:
    """Whole numbers are in their order, all else in that of texts."""
    found, codes = find_names(pa.chunked_array([pa.array([*cells, None, cells[0]])]))
    assert found == names
    first = names.index(str(int(cells[0])) if isinstance(cells[0], float) else str(cells[0]))
    assert (codes[0], codes[-2], codes[-1]) == (first, -1, first)


@pytest.mark.parametrize(
    ("names", "similar"),
    [
        (["YES", "no", "yes"], {"YES": "yes"}),
        ([">50K", ">50K."], {">50K": ">50K."}),
        (["Genève", "Geneve"], {"Genève": "Geneve"}),
        (["St Gallen", "St.  Gallen", "st-gallen"],
         {"St Gallen": "st-gallen", "St.  Gallen": "st-gallen"}),
        (["1", "1.0", "01"], {"1": "01", "1.0": "01"}),
        (["0", "1", "no", "yes"], {"0": "no", "1": "yes"}),
        (["0", "1", "no", "unclear", "yes"], {"0": "no", "1": "yes"}),
        (["true", "yes"], {"true": "yes"}),
        (["yes", "no"], {}),
        (["-1", "1"], {}),
        (["A", "A-", "A+", "O-", "0"], {}),
        (["1.5", "15", "1-5"], {}),
        (["1E1", "10"], {}),
    ],
)  # fmt: skip
def test_similar_names(names: list[str], similar: dict[str, str]) -> None:
    """The rarer spelling leads to the most frequent one."""
    assert find_similar_names(names, np.arange(len(names)) + 1) == similar
