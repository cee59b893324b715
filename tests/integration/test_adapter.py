"""The example whose clients train and send a low-rank adapter of a larger model."""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict

from server_app.engines.in_process import InProcessGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapter"
CONFIG: dict[str, Any] = {"num-server-rounds": 2, "local-epochs": 1, "lr": 0.02, "rank": 4}


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what imports the example's modules."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield lambda name: import_module(f"adapter.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "adapter"]:
        del sys.modules[name]


def test_the_adapter_learns_and_is_all_that_travels(
    adapter: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Far better than guessing one class in ten, with a thirtieth of the bytes."""
    grid = InProcessGrid(adapter("client_app").app, CONFIG, 3)
    context = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config=CONFIG)
    adapter("server_app").app(grid, context)
    output = capsys.readouterr().out
    sizes = re.search(r"A message: (\d+) bytes; with the whole model: (\d+)", output)
    accuracy = re.search(r"Mean accuracy at the end: ([\d.]+)", output)
    assert sizes
    assert accuracy
    assert 30 * int(sizes[1]) < int(sizes[2])
    assert float(accuracy[1]) > 0.5


def test_the_layer_is_that_of_the_paper(adapter: Any) -> None:
    """h = W_0 x + (alpha / r) B A x; B = 0 at first; W_0 is not trained."""
    frozen = torch.nn.Linear(5, 3)
    layer = adapter("lora").LowRank(frozen, rank=2, alpha=8.0)
    x = torch.randn(4, 5)
    assert torch.equal(layer(x), frozen(x))
    with torch.no_grad():
        layer.B.copy_(torch.randn(3, 2))
    merged = frozen.weight + 8.0 / 2 * layer.B @ layer.A
    torch.testing.assert_close(layer(x), x @ merged.T + frozen.bias)
    assert set(adapter("lora").get_adapter(layer)) == {"A", "B"}


def test_another_model_s_adapter_is_refused(adapter: Any) -> None:
    """A missing or unknown matrix would leave a part untrained without a word."""
    model = adapter("task").build_model(4)
    arrays = adapter("lora").get_adapter(model)
    adapter("lora").load_adapter(model, arrays)
    for wrong in (dict(list(arrays.items())[1:]), {**arrays, "9.A": torch.zeros(1)}):
        with pytest.raises(ValueError, match="not the adapter of this model"):
            adapter("lora").load_adapter(model, wrong)
