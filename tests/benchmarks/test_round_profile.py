"""Tests of the parts of a round's profile."""

import pytest

from benchmarks.round_profile import OTHER_PART, PART_PATTERNS, find_part, format_profile_table


@pytest.mark.parametrize(
    ("file", "function", "part"),
    [
        ("~", "<method 'baddbmm_' of 'torch._C.TensorBase' objects>", "products and convolutions"),
        ("~", "<built-in method torch.convolution>", "products and convolutions"),
        ("~", "<built-in method torch.index_select>", "rows gathered and scaled"),
        ("~", "<built-in method torch.softmax>", "other arithmetic of PyTorch and NumPy"),
        ("/x/client_app/batched/linear.py", "step", "Python: clients"),
        ("/x/strategies/fedquorum/rules/round.py", "decide", "Python: rules, messages, records"),
        ("/x/site-packages/flwr/app/message.py", "__init__", "Python: Flower"),
        ("/x/site-packages/ray/actor.py", "_remote", "Python: Ray"),
        ("~", "<built-in method _pickle.loads>", "pickling and Ray's core"),
        ("~", "{method 'get' of 'ray._raylet.CoreWorker' objects}", "pickling and Ray's core"),
        ("/x/json/encoder.py", "encode", OTHER_PART),
    ],
)
def test_functions_have_parts(file: str, function: str, part: str) -> None:
    """The name of a built-in decides its part, else the file does."""
    assert find_part(file, function) == part


def test_a_table_has_all_parts() -> None:
    """The table includes parts that took no time."""
    lines = format_profile_table({"synth": {OTHER_PART: 0.25, "Python: Ray": 0.75}}).splitlines()
    assert len(lines) == 2 + len(PART_PATTERNS) + 1
    assert lines[-2:] == ["| Python: Ray | 75% |", f"| {OTHER_PART} | 25% |"]
