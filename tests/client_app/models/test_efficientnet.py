"""EfficientNet through the settings."""

from pathlib import Path

import pytest
import torch

from client_app.models import build_model
from client_app.models.efficientnet import build_efficientnet
from conf import SettingsError, compose_settings


def test_the_paper_s_size() -> None:
    """B0 has 5.3 million parameters with 1,000 classes, B1 7.8 million."""
    for variant, millions in (("b0", 5.3), ("b1", 7.8)):
        count = sum(p.numel() for p in build_efficientnet(variant, 1000).parameters())
        assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("experiment", "overrides", "dropped"),
    [
        ("custom", "model=efficientnet", 0.2),
        ("custom", "model=efficientnet model.variant=b2", 0.3),
        ("aaggff/isic", "", 0.1),
    ],
)
def test_dropout_before_the_logits(experiment: str, overrides: str, dropped: float) -> None:
    """torchvision's for the variant where none is set; AAggFF's preset has its authors' 0.1."""
    settings = compose_settings(experiment, overrides).settings.model
    model = build_model(settings, (3, 32, 32), 8, seed=1)
    assert [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)] == [dropped]


def test_it_needs_color_images() -> None:
    """Gray images are refused in one line."""
    settings = compose_settings("custom", "model=efficientnet").settings.model
    message = "model=efficientnet needs images of at least 1 x 1 and 3 channels, got inputs"
    for shape in ((1, 32, 32), (60,)):
        with pytest.raises(SettingsError, match=message):
            build_model(settings, shape, 8, seed=1)


@pytest.mark.slow
def test_published_weights(tmp_path: Path) -> None:
    """They are the start of the server's model; a client, which receives it, needs no file."""
    torch.manual_seed(0)
    published = build_efficientnet("b0", 6)
    path = tmp_path / "weights.pth"
    torch.save(published.state_dict(), path)
    overrides = f"model=efficientnet model.pretrained={path}"
    settings = compose_settings("custom", overrides).settings.model
    same = build_model(settings, (3, 32, 32), 6, seed=1).state_dict()
    for name, tensor in published.state_dict().items():
        assert torch.equal(same[name], tensor)
    other = build_model(settings, (3, 32, 32), 8, seed=1).state_dict()
    for name, tensor in published.state_dict().items():
        if "classifier" in name:
            assert other[name].shape[0] == 8
        else:
            assert torch.equal(other[name], tensor)
    path.unlink()
    build_model(settings, (3, 32, 32), 6, seed=1, pretrained=False)


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    """No file, another file, another variant's weights: one line."""
    wanted = "^model.pretrained must be a file with torchvision's weights of efficientnet_b0, got"
    other = tmp_path / "b1.pth"
    torch.save(build_efficientnet("b1", 3).state_dict(), other)
    text = tmp_path / "text.pth"
    text.write_text("no weights")
    for path in (tmp_path / "nowhere.pth", text, other):
        with pytest.raises(SettingsError, match=wanted) as caught:
            build_efficientnet("b0", 3, str(path))
        assert "\n" not in str(caught.value)
    message = "model.init must be default where model.pretrained is set, got xavier"
    with pytest.raises(SettingsError, match=message):
        compose_settings("custom", "model=efficientnet model.pretrained=/x model.init=xavier")
