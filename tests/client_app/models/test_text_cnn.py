"""The convolutional network for texts, by hand."""

import numpy as np
import torch

from client_app.models import TextCNN


def test_text_cnn_by_hand() -> None:
    """Windows of 3, 4 and 5 tokens with padding around, ReLU, maxima over positions, logits."""
    model = TextCNN(11, 4, embedding=3, channels=5, dropout=0.5).double().eval()
    state = {name: t.numpy() for name, t in model.state_dict().items()}
    tokens = np.random.default_rng(0).integers(11, size=(6, 7))
    features = []
    for i, width in enumerate((3, 4, 5)):
        x = np.pad(state["embedding.weight"][tokens], ((0, 0), (width - 1, width - 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, width, axis=1)  # (n, l, d, width)
        weight, bias = (state[f"convolutions.{i}.{split}"] for split in ("weight", "bias"))
        found = np.einsum("nldw,cdw->nlc", windows, weight) + bias
        features.append(np.maximum(found, 0).max(axis=1))
    expected = np.concatenate(features, axis=1) @ state["logits.weight"].T + state["logits.bias"]
    logits = model(torch.from_numpy(tokens)).detach().numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-12)


def test_padding_means_nothing() -> None:
    """Its embedding is 0 and stays so; more of it behind a text changes no logits."""
    model = TextCNN(11, 4, embedding=3, channels=5)
    x = torch.tensor([[3, 1, 2, 9, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0, 0, 0]])
    torch.testing.assert_close(model(x), model(torch.nn.functional.pad(x, (0, 6))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(x).square().sum().backward()
    optimizer.step()
    table = model.embedding.weight.detach()
    assert not table[0].any()
    assert not torch.equal(table[3], TextCNN(11, 4, embedding=3, channels=5).embedding.weight[3])


def test_dropout_is_before_the_logits() -> None:
    """Active in training only."""
    model = TextCNN(11, 4, dropout=0.5)
    x = torch.arange(10)[None]
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_the_paper_s_size() -> None:
    """CNN-rand: 300 numbers for a word, 100 features of each width."""
    model = TextCNN(50, 2, embedding=300, channels=100)
    numbers = 50 * 300 + 100 * (300 * (3 + 4 + 5) + 3) + 2 * 301
    assert sum(p.numel() for p in model.parameters()) == numbers
