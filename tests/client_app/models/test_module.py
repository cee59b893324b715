"""Models by import path: what works, and every mistake in one line."""

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fedquorum.flower.codec import decode_arrays, encode_arrays
from torch import nn

from client_app.models import build_model
from client_app.training.local_sgd import load_arrays
from conf import SettingsError, compose_settings


class Net(nn.Module):
    """A linear model of a user's own."""

    def __init__(self, features: int, classes: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes)."""
        logits: torch.Tensor = self.linear(x.flatten(start_dim=1))
        return logits


class Tagger(nn.Module):
    """Logits of each token."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(7, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, length, classes)."""
        logits: torch.Tensor = self.table(x)
        return logits


class Several(Net):
    """Returns more than the logits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x), x)  # type: ignore[return-value]


class Extended(Net):
    """Has another tensor or entry in its state_dict."""

    def __init__(self, features: int, kind: str) -> None:
        super().__init__(features)
        self._kind = kind
        if kind in TENSORS:
            self.register_buffer("extra", TENSORS[kind]())
        elif kind == "lazy":
            self.unused = nn.LazyLinear(2)
        else:
            self.to(getattr(torch, kind))

    def get_extra_state(self) -> Any:
        return {"steps": 3} if self._kind == "state" else torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.linear.weight.dtype)).float()


def make_inference_tensor() -> torch.Tensor:
    """Return a tensor that torch never changes again."""
    with torch.inference_mode():
        return torch.ones(2)


class Frozen(Net):
    """Has nothing to train."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.requires_grad_(False)


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "state": lambda: torch.ones(2),
    "int32": lambda: torch.ones((), dtype=torch.int32),
    "bool": lambda: torch.ones((2, 0), dtype=torch.bool),
    "uint16": lambda: torch.ones(2, dtype=torch.uint16),
    "strided": lambda: torch.arange(6.0).unfold(0, 2, 1),
    "complex64": lambda: torch.ones(2, dtype=torch.complex64),
    "float8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "rows": lambda: torch.eye(2).to_sparse_csr(),
    "meta": lambda: torch.ones(2, device="meta"),
    "expanded": lambda: torch.ones(1).expand(2),
    "inference": make_inference_tensor,
    "mask": lambda: torch.full((2, 2), -math.inf).triu(1),
    "lowest": lambda: torch.full((2, 2), torch.finfo(torch.float32).min).triu(1),
}


def number(features: int) -> int:
    """Return no model."""
    return features


NUMBER = 5
HERE = "tests.client_app.models.test_module"


def build(path: str, args: str = "{features: 6}", num_outputs: int = 3) -> nn.Module:
    overrides = f"model=module model.path={path} 'model.args={args}'"
    return build_model(
        compose_settings("custom", overrides).settings.model, (2, 3), num_outputs, seed=1
    )


def test_a_class_with_arguments() -> None:
    """The model is the class's, in training mode, with initial values that follow from the seed."""
    model = build(f"{HERE}.Net", "{features: 6, classes: 4}", num_outputs=4)
    assert isinstance(model, Net)
    assert model.training
    assert model(torch.rand(5, 2, 3)).shape == (5, 4)
    torch.manual_seed(3)
    again = build(f"{HERE}.Net", "{features: 6, classes: 4}", num_outputs=4)
    assert torch.equal(model.linear.weight, again.state_dict()["linear.weight"])


def test_a_model_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file's path, relative to the working directory, without any PYTHONPATH."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "small.py").write_text(f"from {HERE} import Net as Small\n")
    model = build("./nets/small.py:Small", "{features: 6, classes: 4}", num_outputs=4)
    assert isinstance(model, Net)
    with pytest.raises(SettingsError, match=r"^model\.path must be .*: there is no Python file"):
        build("./nets/no.py:Small")


def test_a_function_that_makes_a_model() -> None:
    """Libraries have functions for their models: torchvision's networks for example."""
    overrides = (
        "model=module model.path=torchvision.models.squeezenet1_1 'model.args={num_classes: 4}'"
    )
    settings = compose_settings("custom", overrides).settings.model
    model = build_model(settings, (3, 32, 32), 4, seed=1)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 4)


def test_a_model_of_tokens() -> None:
    """It gets int64, and has an output at each position where each has a target."""
    overrides = f"model=module model.path={HERE}.Tagger 'model.args={{classes: 4}}'"
    settings = compose_settings("custom", overrides).settings.model
    model = build_model(settings, (9,), 4, seed=1, num_tokens=7, sequence=True)
    assert model(torch.zeros((2, 9), dtype=torch.int64)).shape == (2, 9, 4)
    message = r"a model with outputs \(n, 4\), got .*Tagger' with \(n, 9, 4\)"
    with pytest.raises(SettingsError, match=message):
        build_model(settings, (9,), 4, seed=1, num_tokens=7)


MISTAKES = {
    "nowhere.at.all.Net": "import path of .*got 'nowhere.at.all.Net': No module named 'nowhere'",
    f"{HERE}.Nat": "import path of .*: there is no Nat in it; did you mean Net?",
    f"{HERE}.NUMBER": "import path of .*NUMBER', which is int",
    f"{HERE}.number": "import path of .*number', which makes int",
    f"{HERE}.Several": r"a model with outputs \(n, 3\), got .*Several' with tuple",
}


@pytest.mark.parametrize("path", MISTAKES)
def test_paths_that_lead_to_no_model(path: str) -> None:
    """One line, with the path and what is wrong with it."""
    with pytest.raises(SettingsError, match=rf"^model\.path must be .*{MISTAKES[path]}") as caught:
        build(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("{}", r"got {}: .*missing 1 required positional argument: 'features'"),
        ("{features: 6, width: 2}", r"got .*: .*unexpected keyword argument 'width'"),
        ("{features: many}", r"got {'features': 'many'}: "),
    ],
)
def test_wrong_arguments(args: str, message: str) -> None:
    """What the class says of them ends the line."""
    wanted = rf"^model\.args must be arguments of {HERE}.Net, {message}"
    with pytest.raises(SettingsError, match=wanted) as caught:
        build(f"{HERE}.Net", args)
    assert "\n" not in str(caught.value)


def test_models_for_other_inputs_or_outputs() -> None:
    """Found out before the run, by two inputs of zeros."""
    with pytest.raises(SettingsError, match=r"outputs \(n, 5\), got .*Net' with \(n, 3\)"):
        build(f"{HERE}.Net", num_outputs=5)
    with pytest.raises(SettingsError, match=r"\(n, 2, 3\) of float32, got .*Net': .*shapes"):
        build(f"{HERE}.Net", "{features: 7}")


@pytest.mark.parametrize("kind", ["float16", "float64", "int32", "bool", "uint16", "strided"])
def test_types_that_messages_carry(kind: str) -> None:
    """Floats of 16 and 64 bits, whole numbers and booleans are the arrays of the first message."""
    model = build(f"{HERE}.Extended", f"{{features: 6, kind: {kind}}}")
    record = encode_arrays({name: t.numpy() for name, t in model.state_dict().items()})
    load_arrays([*decode_arrays(record).values()], model)
    state = model.state_dict()
    tensor = state["extra" if "extra" in state else "linear.weight"]
    assert tensor.dtype == {"strided": torch.float32}.get(kind, getattr(torch, kind, None))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (
            "bfloat16",
            r"linear\.weight .* of type bfloat16, not float32, .*: float\(\) makes it one",
        ),
        ("float8", r"extra .* of type float8_e4m3fn, .*: float\(\) makes it one"),
        ("complex64", r"extra .* of type complex64, .*: torch\.view_as_real makes it two"),
        ("sparse", r"extra .* is sparse or nested: to_dense\(\) makes it dense"),
        ("rows", r"extra .* is sparse or nested: to_dense\(\) makes it dense"),
        ("meta", "extra .* is on the device meta: build the model on the CPU, with its numbers"),
        ("expanded", r"extra .* cannot be overwritten .*: clone\(\) it"),
        ("inference", r"extra .* cannot be overwritten .*: clone\(\) it"),
        ("mask", r"extra .* holds NaN or Inf: register_buffer\(\.\., persistent=False\) leaves .*"),
        ("lowest", r"extra .* holds values up to 3\.4e\+38, not 1e\+15: register_buffer.*"),
        ("lazy", r"unused\.weight .* has no shape yet, as the model does not use it: leave it out"),
        ("state", "_extra_state .* is dict, no tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_tensors_that_messages_cannot_carry(kind: str, problem: str) -> None:
    """One line with the name, its type and what to do, before anything trains."""
    path = f"{HERE}.Extended"
    start = f"model.path must be of a model that messages can carry, got '{path}': "
    with pytest.raises(SettingsError, match=f"^{re.escape(start)}{problem}$"):
        build(path, f"{{features: 6, kind: {kind}}}")


@pytest.mark.parametrize("path", ["''", "Net", "a..b", "a.b-c", "nets/net.py", "nets/net.txt:Net"])
def test_invalid_import_paths(path: str) -> None:
    """Refused when composed."""
    message = (
        "model.path must be an import path such as package.module.Class or folder/file.py:Class"
    )
    with pytest.raises(SettingsError, match=message):
        compose_settings("custom", f"model=module model.path={path}")


@pytest.mark.parametrize("args", ["3", "[1, 2]", "{1: 2}"])
def test_invalid_arguments(args: str) -> None:
    """Arguments have names."""
    message = "model.args must be null, or a mapping such as {hidden: 200}, got "
    with pytest.raises(SettingsError, match=message):
        compose_settings("custom", f"model=module model.path=a.B 'model.args={args}'")


def make_scripted(features: int) -> nn.Module:
    """Return a model in TorchScript."""
    with warnings.catch_warnings(action="ignore"):  # newer versions of PyTorch advise against it
        return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(features, 3)))


def test_a_scripted_model_is_one_line() -> None:
    """It would fail at every node, in PyTorch's words."""
    with pytest.raises(SettingsError, match=r"^model\.path must be of a model in Python, got "):
        build(f"{HERE}.make_scripted")


def test_a_model_without_anything_to_train_is_one_line() -> None:
    """It would end only after all rounds, when no update has counted."""
    message = (
        rf"model\.path must be of a model that can be trained, got '{HERE}.Frozen', which has no "
        r"parameter with requires_grad=True$"
    )
    with pytest.raises(SettingsError, match=message):
        build(f"{HERE}.Frozen")
