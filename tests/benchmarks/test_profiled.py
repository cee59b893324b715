"""Which part of a round a function belongs to."""

import pytest

from benchmarks.profiled import PARTS, REST, part_of, table


@pytest.mark.parametrize(
    ("file", "function", "part"),
    [
        ("~", "<method 'baddbmm_' of 'torch._C.TensorBase' objects>", "products and convolutions"),
        ("~", "<built-in method torch.convolution>", "products and convolutions"),
        ("~", "<built-in method torch.index_select>", "rows gathered and scaled"),
        ("~", "<built-in method torch.softmax>", "other arithmetic of PyTorch and NumPy"),
        ("/x/client_app/batched/linear.py", "step", "Python: clients"),
        ("/x/strategies/fedquorum/round.py", "decide", "Python: rules, messages, records"),
        ("/x/site-packages/flwr/app/message.py", "__init__", "Python: Flower"),
        ("/x/site-packages/ray/actor.py", "_remote", "Python: Ray"),
        ("~", "<built-in method _pickle.loads>", "pickling and Ray's core"),
        ("~", "{method 'get' of 'ray._raylet.CoreWorker' objects}", "pickling and Ray's core"),
        ("/x/json/encoder.py", "encode", REST),
    ],
)
def test_parts(file: str, function: str, part: str) -> None:
    """By its name where it is built in, else by its file."""
    assert part_of(file, function) == part


def test_a_table_has_all_parts() -> None:
    """Those that took no time too."""
    lines = table({"synth": {REST: 0.25, "Python: Ray": 0.75}}).splitlines()
    assert len(lines) == 2 + len(PARTS) + 1
    assert lines[-2:] == ["| Python: Ray | 75% |", f"| {REST} | 25% |"]
