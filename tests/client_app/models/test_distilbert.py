"""DistilBERT through the settings, where transformers is installed."""

import sys
from pathlib import Path

import pytest
import torch

from client_app.models import DistilBERT, build_model
from conf import SettingsError, compose_settings

SMALL = "model=distilbert model.layers=1 model.width=8 model.heads=2 model.dropout=0"


def build(
    overrides: str = SMALL, num_tokens: int = 11, length: int = 7, seed: int = 1
) -> DistilBERT:
    settings = compose_settings("custom", overrides).settings.model
    model = build_model(settings, (length,), 2, seed=seed, num_tokens=num_tokens)
    assert isinstance(model, DistilBERT)
    return model


@pytest.mark.slow
def test_the_paper_s_size() -> None:
    """66 million parameters with the vocabulary of BERT."""
    with torch.device("meta"):
        model = DistilBERT(30522, 2, 200)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == 67
    encoder = [p.numel() for name, p in model.named_parameters() if ".distilbert." in name]
    assert round(sum(encoder) / 1e6) == 66


@pytest.mark.slow
def test_padding_is_not_attended_to() -> None:
    """More of it behind a text changes no logits; another token does."""
    model = build().eval()
    x = torch.tensor([[3, 1, 2, 9, 0, 0, 0]])
    longer = torch.nn.functional.pad(x, (0, 4))
    torch.testing.assert_close(model(x), model(longer))
    longer[0, 5] = 4
    assert not torch.allclose(model(x), model(longer))


def test_long_texts_have_positions() -> None:
    """More than the base model's 512."""
    assert build(length=600)(torch.ones((1, 600), dtype=torch.int64)).shape == (1, 2)


def test_published_weights(tmp_path: Path) -> None:
    """They are the start of the server's model; other sizes or no folder are one line."""
    published = build(seed=5)
    published.classifier.save_pretrained(tmp_path / "weights")  # type: ignore[operator]
    overrides = f"{SMALL} model.pretrained={tmp_path / 'weights'}"
    model = build(overrides)
    for name, tensor in published.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    published.classifier.bfloat16().save_pretrained(tmp_path / "half")  # type: ignore[operator]
    tensors = build(f"{SMALL} model.pretrained={tmp_path / 'half'}").state_dict().values()
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    wanted = "^model.pretrained must be a folder with a DistilBERT of these sizes, got '"
    for mistake, size in ((overrides, 12), (f"{SMALL} model.pretrained={tmp_path / 'none'}", 11)):
        with pytest.raises(SettingsError, match=wanted) as caught:
            build(mistake, num_tokens=size)
        assert "\n" not in str(caught.value)


def test_sizes_that_do_not_go_together() -> None:
    """The heads share the width."""
    message = r"model.width must be a multiple of model.heads \(2\), got 9"
    with pytest.raises(SettingsError, match=message):
        build(f"{SMALL} model.width=9")


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SettingsError, match=r"pip install transformers\), which is not installed"):
        build()
