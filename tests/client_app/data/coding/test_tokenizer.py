"""Texts as the tokens of a published model, where transformers is installed."""

import sys
from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import DataError

from client_app.data import load_data
from client_app.data.coding.tokenizer import tokenize_texts
from client_app.models import DistilBERT, build_model_for
from conf import SettingsError, compose_settings

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("is", "it", ",", "doctor", "?", "no", "can", "i", "eat", "##ing"),
]
PAIRS = "".join(
    f'{doctor},"{question}",{other},{label}\n'
    for doctor in (1, 2)
    for question in ("Is it, doctor?", "Can I eat?")
    for label, other in enumerate(("No", "Eating"))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tokenizer of 15 word pieces and a DistilBERT of one layer."""
    transformers = pytest.importorskip("transformers")

    path = tmp_path_factory.mktemp("distilbert")
    tokenizer = transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(WORDS)})
    tokenizer.save_pretrained(path)
    config = transformers.DistilBertConfig(
        vocab_size=len(WORDS), n_layers=1, dim=8, hidden_dim=32, n_heads=2
    )
    transformers.DistilBertModel(config).save_pretrained(path)
    return path


@pytest.mark.slow
def test_pairs_of_texts(folder: Path) -> None:
    """Marks around both, words in pieces, padding behind; the longer text is cut first."""
    texts = [["Is it, doctor?", "eating", "unheard"], ["no", "I eat", "no"]]
    x, count, cut = tokenize_texts(texts, 7, str(folder))
    assert count == 15
    assert x.dtype == np.int32
    assert x.tolist() == [
        [2, 5, 6, 7, 3, 10, 3],
        [2, 13, 14, 3, 12, 13, 3],
        [2, 1, 3, 10, 3, 0, 0],
    ]
    (line,) = cut
    assert line.startswith("1 of 3 texts is longer than 7 tokens of data.tokenizer and cut there")
    assert line.endswith("; the longest has 9")
    separate, _, _ = tokenize_texts(texts[:1], 5, str(folder))
    assert separate.tolist() == [[2, 5, 6, 7, 3], [2, 13, 14, 3, 0], [2, 1, 3, 0, 0]]


@pytest.mark.slow
def test_the_preset_with_published_weights(folder: Path, tmp_path: Path) -> None:
    """The words of aaggff/mqp lead to the folder's encoder on the folder's tokens."""
    path = tmp_path / "pairs.csv"
    path.write_text(PAIRS)
    overrides = f"model=distilbert model.pretrained={folder} data.tokenizer={folder}"
    small = f"model.layers=1 model.width=8 model.heads=2 data.path={path} data.expected_rows=null"
    with pytest.raises(SettingsError, match=r"model\.init must be default where model\.pretrained"):
        compose_settings("aaggff/mqp", f"{overrides} {small}")
    settings = compose_settings("aaggff/mqp", f"{overrides} {small} model.init=default").settings
    assert (settings.client.lr, settings.client.weight_decay) == (0.00316, 0.01)
    data = load_data(settings.data, settings.seed)
    assert (data.input_shape, data.num_tokens) == ((200,), 15)
    model = build_model_for(settings, data)
    assert isinstance(model, DistilBERT)
    transformers = pytest.importorskip("transformers")

    published = transformers.DistilBertModel.from_pretrained(folder).state_dict()
    found = model.state_dict()
    for name, tensor in published.items():
        assert np.array_equal(found[f"classifier.distilbert.{name}"], tensor)
    assert found["classifier.classifier.weight"].shape == (1, 8)


def test_invalid_tokenizers(folder: Path, tmp_path: Path) -> None:
    """No folder, one without a tokenizer, another padding, too few tokens: one line."""
    transformers = pytest.importorskip("transformers")

    other = tmp_path / "other"
    overrides = {word: i for i, word in enumerate(reversed(WORDS))}
    transformers.BertTokenizerFast(vocab=overrides).save_pretrained(other)
    for path, reason in (
        (tmp_path / "nowhere", "there is no such folder"),
        (tmp_path, "instantiate the backend tokenizer"),
        (other, "its padding is 14, not 0"),
    ):
        with pytest.raises(DataError, match=reason) as caught:
            tokenize_texts([["no"]], 9, str(path))
        assert str(caught.value).startswith("data.tokenizer must be a folder with a tokenizer of")
        assert "\n" not in str(caught.value)
    message = r"data\.length must be at least 5 for 2 texts and the 3 marks .*, got 4"
    with pytest.raises(DataError, match=message):
        tokenize_texts([["no"], ["no"]], 4, str(folder))


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DataError, match=r"pip install transformers\), got 'x'"):
        tokenize_texts([["no"]], 9, "x")


@pytest.mark.parametrize(
    "overrides", ["data.text_columns=[a]", "data.text_columns=[a,b,d] data.target=t"]
)
def test_settings_that_do_not_allow_a_tokenizer(overrides: str) -> None:
    """Next words have a vocabulary of their own, and more than two texts are no pair."""
    given = f"data=text data.path=x data.client_column=c data.tokenizer=x {overrides}"
    with pytest.raises(SettingsError, match=r"^data\.tokenizer must be null where .*, got 'x'$"):
        compose_settings("custom", given)
