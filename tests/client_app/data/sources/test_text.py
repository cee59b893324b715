"""Texts in a CSV file: the next token, or classes of pairs."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import DataError, SettingsError

from client_app.data import load_data
from client_app.data.coding.text import WordCoding
from client_app.data.coding.vocabulary import (
    Vocabulary,
    hash_token,
    select_common_tokens,
    split_words,
)
from client_app.data.sources.base import LabeledArrays
from client_app.data.sources.text import load_text_arrays
from conf.compose import compose_settings
from conf.schema.data import TextSettings
from tests.client_app.clients import assert_one_line

PAIRS = """\
2,"Is it, doctor?",It is,1
2,"Is it, doctor?",No,0
1,Can I eat?,Eat,1
1,Can I eat?,"Drink,
please",0
1,Why?,Because,0
1,Why?,Why not?,1
2,How?,So,0
2,How?,How come?,1
"""
HEADER = "doctor,one,two,label"
COLUMNS = "data.path=x data.client_column=c data.text_columns="
ROLES = "role,text\nLEAR,abcab\nFOOL,ba\nLEAR,ca\n"


def save(folder: Path, text: str, name: str = "texts.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        path.write_text(text, encoding="utf-8")
    return path


def make_pairs(path: Path, **others: Any) -> TextSettings:
    given: dict[str, Any] = {
        "path": str(path),
        "client_column": "doctor",
        "text_columns": ["one", "two"],
        "target": "label",
        "group_column": "one",
        "length": 7,
        "vocabulary_size": 1000,
        **others,
    }
    return TextSettings(**given)


def make_roles(path: Path, **others: Any) -> TextSettings:
    given: dict[str, Any] = {
        "path": str(path),
        "client_column": "role",
        "text_columns": ["text"],
        "tokens": "characters",
        "length": 4,
        **others,
    }
    return TextSettings(**given)


def build_for_all(settings: TextSettings) -> LabeledArrays:
    arrays = load_text_arrays(settings)
    assert arrays.build_for_training is not None
    return arrays.build_for_training(np.arange(len(arrays.y_train)))


def get_rows(x: Any) -> list[list[int]]:
    listed: list[list[int]] = np.asarray(x[:]).tolist()
    return listed


def test_words_of_a_text() -> None:
    """Words are in lower case, with their apostrophes; punctuation stands alone."""
    assert split_words("Don't eat IT, doctor!") == ["don't", "eat", "it", ",", "doctor", "!"]
    assert split_words("  ") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("我们用iPhone12吃饭。Très bien!", "我 们 用 iphone12 吃 饭 。 très bien !"),
        ("カタカナと漢字ー", "カ タ カ ナ と 漢 字 ー"),
        ("𠮷野家", "𠮷 野 家"),
        ("อาหารดี", "อ า ห า ร ดี"),
        ("ភាសា", "ភា សា"),
        ("ພາສາ", "ພ າ ສ າ"),
        ("မြန်မာ", "မြ န် မာ"),
        ("한국어 문장", "한국어 문장"),
        ("хорошо, it's ok", "хорошо , it's ok"),
    ],
)
def test_words_without_blanks(text: str, words: str) -> None:
    """A letter of a language without blanks is a word with its marks; other words stay whole."""
    assert split_words(text) == words.split()


def test_classes_by_characters(tmp_path: Path) -> None:
    """data.tokens=characters has a sample's characters, blanks too, hashed like words."""
    path = save(tmp_path, "role,text,label\nLEAR,Ab  c,0\nLEAR,abcdef,1\n")
    arrays = load_text_arrays(make_roles(path, target="label", vocabulary_size=1000))
    numbers = {sign: hash_token(sign, 1000) for sign in "abcd "}
    assert get_rows(arrays.x_train) == [
        [numbers[sign] for sign in word] for word in ("ab c", "abcd")
    ]
    (line,) = arrays.warnings
    assert line == (
        "1 of 2 texts is longer than 4 characters and cut there (data.length=4); the longest has 6"
    )


def test_cut_texts_are_counted(tmp_path: Path) -> None:
    """In the summary, which a run prints; none where all fit."""
    text = f"{HEADER}\n{PAIRS}"
    assert load_text_arrays(make_pairs(save(tmp_path, text), length=11)).warnings == ()
    data = load_data(make_pairs(save(tmp_path, text)), 1)
    (line,) = data.summary.warnings
    assert line == (
        "4 of 16 texts are longer than 3 words and cut there (data.length=7 for 2 texts); the "
        "longest has 5"
    )


def test_common_tokens_first() -> None:
    """The most common first, of equally common ones the alphabet's first; no more than asked."""
    assert select_common_tokens("abcbcc", 9) == ["c", "b", "a"]
    assert select_common_tokens("ba", 1) == ["a"]
    vocabulary = Vocabulary(["c", "b"])
    assert (vocabulary.encode("cbx"), len(vocabulary)) == ([2, 3, 1], 4)


def test_hashes_depend_on_the_word_alone() -> None:
    """A number is never that of padding, the unknown or the separator, and is the same always."""
    numbers = [hash_token(f"word {i}", 50) for i in range(2000)]
    assert set(numbers) == set(range(3, 50))
    check = 0xCBF43926  # the published check value of CRC-32
    assert hash_token("123456789", 10_000) == 3 + check % 9_997


def test_pairs_of_texts(tmp_path: Path) -> None:
    """Both texts in hashed words with a separator between, cut to half of the length, padded."""
    arrays = load_text_arrays(make_pairs(save(tmp_path, f"{HEADER}\n{PAIRS}")))

    def number(word: str) -> int:
        return hash_token(word, 1000)

    assert get_rows(arrays.x_train)[0] == [
        *map(number, ("is", "it", ",")),
        2,
        *map(number, ("it", "is")),
        0,
    ]
    assert get_rows(arrays.x_train)[3] == [
        *map(number, ("can", "i", "eat")),
        2,
        *map(number, ("drink", ",", "please")),
    ]
    assert arrays.y_train.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]
    assert arrays.client_train is not None
    assert arrays.client_train.tolist() == [1, 1, 0, 0, 0, 0, 1, 1]
    assert (arrays.num_classes, arrays.num_tokens, arrays.pooled) == (2, 1000, True)


def test_header_of_a_file_without(tmp_path: Path) -> None:
    """data.header names the columns, and does no harm where the first line has them."""
    header = HEADER.split(",")
    with_header = load_text_arrays(make_pairs(save(tmp_path, f"{HEADER}\n{PAIRS}"), header=header))
    without = load_text_arrays(make_pairs(save(tmp_path, PAIRS), header=header))
    assert len(without.y_train) == 8
    assert get_rows(with_header.x_train) == get_rows(without.x_train)
    assert with_header.y_train.tolist() == without.y_train.tolist()


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("partition", ["natural", "iid"])
def test_pairs_of_one_question_stay_together(tmp_path: Path, seed: int, partition: str) -> None:
    """No question is in a training and in a test part."""
    settings = make_pairs(
        save(tmp_path, f"{HEADER}\n{PAIRS}"), partition=partition, test_fraction=0.4
    )
    settings.num_clients = 2
    data = load_data(settings, seed)
    sides: dict[str, set[int]] = {"train": set(), "test": set()}
    for k in range(2):
        client = data.get_client(k)
        sides["train"] |= set(client.x_train[:, 0].tolist())
        sides["test"] |= set(client.x_test[:, 0].tolist())
        assert client.x_train.dtype == np.int64
    assert sides["train"]
    assert sides["test"]
    assert not sides["train"] & sides["test"]


def test_the_vocabulary_excludes_validation_texts(tmp_path: Path) -> None:
    """The vocabulary is of what clients train on; groups of texts are validated together."""
    text = "town,words\n" + "".join(f"a,word{i} word{i}\n" for i in range(30))
    settings = TextSettings(
        path=str(save(tmp_path, text)),
        client_column="town",
        text_columns=["words"],
        length=4,
        validation_fraction=0.5,
    )
    data = load_data(settings, 1)
    sizes = [
        len(data.get_pooled_split(split, [0]).rows[0]) for split in ("train", "test", "validation")
    ]
    assert sizes[2] == round(0.5 * (sizes[0] + sizes[2]))
    settings.validation_fraction = 0.0
    assert data.num_classes < load_data(settings, 1).num_classes


def test_next_characters(tmp_path: Path) -> None:
    """A role's lines are one text, cut into pieces; the target is the character after."""
    arrays = build_for_all(make_roles(save(tmp_path, ROLES)))
    # With the last target of LEAR's first piece, b is there 4 times like a.
    a, b, end, c = 2, 3, 4, 5
    # Clients in the alphabet's order: FOOL "ba|", LEAR "abcab|ca|".
    assert get_rows(arrays.x_train) == [[b, a, 0, 0], [a, b, c, a], [b, end, c, a]]
    assert get_rows(arrays.y_train) == [[a, end, -100, -100], [b, c, a, b], [end, c, a, end]]
    assert arrays.client_train is not None
    assert arrays.client_train.tolist() == [0, 1, 1]
    assert arrays.num_tokens == arrays.num_classes == 6


def test_next_words(tmp_path: Path) -> None:
    """Words beyond the vocabulary are unknown, and no targets."""
    text = "role,text\nLEAR,the cat the cat the dog\nFOOL,the cat\n"
    arrays = build_for_all(make_roles(save(tmp_path, text), tokens="words", vocabulary_size=8))
    the, cat, end, dog = 2, 3, 4, 5
    assert get_rows(arrays.x_train) == [[the, cat, 0, 0], [the, cat, the, cat], [the, dog, 0, 0]]
    small = build_for_all(make_roles(save(tmp_path, text), tokens="words", vocabulary_size=5))
    assert get_rows(small.x_train)[2] == [the, 1, 0, 0]
    assert get_rows(small.y_train)[1:] == [[cat, the, cat, the], [-100, end, -100, -100]]


def test_roles_with_one_piece(tmp_path: Path) -> None:
    """They cannot be divided: refused, or left out by data.min_samples."""
    path = save(tmp_path, ROLES)
    with pytest.raises(DataError, match=r"1 row of client FOOL \(data\.min_samples=2"):
        load_data(make_roles(path), 1)
    data = load_data(make_roles(path, min_samples=2), 1)
    assert (data.num_clients, data.input_shape) == (1, (4,))
    assert (len(data.get_client(0).y_train), len(data.get_client(0).y_test)) == (1, 1)


@pytest.mark.parametrize("tokens", ["characters", "words"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_numbers_follow_from_what_is_trained_on(tmp_path: Path, tokens: str, seed: int) -> None:
    """Tokens of test rows alone, or of clients left out, are unknown and no targets."""
    signs = [chr(0x4E00 + i) for i in range(100)]
    text = f"role,text\nLEAR,{' '.join(signs)}\nFOOL,xyz\n"
    settings = make_roles(save(tmp_path, text), tokens=tokens, min_samples=3)
    data = load_data(settings, seed)
    assert data.num_clients == 1
    client = data.get_client(0)
    trained = {*client.x_train.ravel().tolist(), *client.y_train.ravel().tolist()} - {0, -100}
    assert trained == set(range(2, data.num_classes))
    assert data.num_tokens == data.num_classes < 2 + len(signs)
    assert (client.x_test == 1).any(axis=1).all()
    assert client.x_test.max() < data.num_classes
    followed = client.y_test[:, :-1][client.x_test[:, 1:] == 1]
    assert len(followed)
    assert set(followed.tolist()) == {-100}


def test_a_text_of_another_length(tmp_path: Path) -> None:
    """A truncated file of a known number of rows, or another's, is one line."""
    path = save(tmp_path, ROLES)
    assert load_text_arrays(make_roles(path, expected_rows=3)).client_train is not None
    with pytest.raises(DataError, match=r"file of data\.expected_rows 4, got .*texts\.csv of 3$"):
        load_text_arrays(make_roles(path, expected_rows=4))


def test_given_classes_are_used(tmp_path: Path) -> None:
    """Classes that are known are those, whichever there are; a label out of range is one line."""
    path = save(tmp_path, f"{HEADER}\n{PAIRS}")
    arrays = load_text_arrays(make_pairs(path, classes=["2", "1", "0"]))
    assert (arrays.num_classes, arrays.y_train.tolist()) == (3, [1, 2, 1, 2, 2, 1, 2, 1])
    with pytest.raises(DataError, match=r"column of 1, 2 in .*, got label, which is 0 in row 2$"):
        load_text_arrays(make_pairs(path, classes=["1", "2"]))


def test_numbers_are_no_classes(tmp_path: Path) -> None:
    """A target that is not whole is one line, with its row."""
    path = save(tmp_path, f"{HEADER}\n{PAIRS}".replace("Eat,1", "Eat,0.5"))
    with pytest.raises(DataError, match=r"column of classes in .*, which is 0\.5 in row 3$"):
        load_text_arrays(make_pairs(path))


def test_names_and_texts_keep_their_look(tmp_path: Path) -> None:
    """Clients, classes and groups 01 and 1 are two each, and a text 1.50 is not 1.5."""
    rows = ("01,1.50,x,01", "1,1.5,x,1", "01 ,true,x,1", "1,01,x,2")
    path = save(tmp_path, "\n".join((HEADER, *rows, "")))
    arrays = load_text_arrays(make_pairs(path))
    assert (arrays.client_names, arrays.class_names) == (("01", "1"), ("01", "1", "2"))
    assert arrays.client_train is not None
    assert arrays.client_train.tolist() == [0, 1, 0, 1]
    assert arrays.y_train.tolist() == [0, 1, 1, 2]
    # Numbers, truths and dates alone in a column would be read as such.
    for first, second in (("1.50", "1.5"), ("true", "True"), ("1", "01"), ("2020-01-01", "x")):
        path = save(tmp_path, f"{HEADER}\n0,{first},x,0\n0,{first},x,1\n0,{second},x,1\n")
        x, _ = WordCoding(("one", "two"), 7, 1000, "words", None).encode_texts(
            [[first, first, second], ["x"] * 3]
        )[:2]
        np.testing.assert_array_equal(load_text_arrays(make_pairs(path)).x_train[:], x)


def test_plain_whole_numbers_are_in_their_order(tmp_path: Path) -> None:
    """Ids and classes of existing files stay: 2 is before 10, and 10 before a."""
    for names, ordered in ((("10", "2", "9"), "2 9 10"), (("10", "a", "9"), "10 9 a")):
        rows = "".join(f"{name},x,y,{name}\n" for name in names)
        arrays = load_text_arrays(make_pairs(save(tmp_path, f"{HEADER}\n{rows}")))
        assert arrays.client_names == arrays.class_names == tuple(ordered.split())


def test_compressed_file(tmp_path: Path) -> None:
    """A file that ends in .gz is read as it is."""
    one, two = (
        load_text_arrays(make_roles(save(tmp_path, ROLES, f"t.csv{end}"))) for end in ("", ".gz")
    )
    assert get_rows(one.x_train) == get_rows(two.x_train)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"client_column": "actor"}, r"data\.client_column .* role, text, got 'actor'$"),
        ({"text_columns": ["line"]}, r"data\.text_columns must be one of the columns .*'line'$"),
        ({"target": "class"}, r"data\.target must be one of the columns of .*got 'class'$"),
        ({"group_column": "q", "target": "role"}, r"data\.group_column must be .* got 'q'$"),
    ],
)
def test_missing_column(tmp_path: Path, others: dict[str, Any], message: str) -> None:
    """A column that is not there is one line with those that are."""
    with pytest.raises(DataError, match=message):
        load_text_arrays(make_roles(save(tmp_path, ROLES), **others))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("role,text\nLEAR,\nFOOL,x\n", "text, which is missing in row 1 of "),
        ("role,text\nLEAR,x\n ,x\n", "role, which is missing in row 2 of "),
        ("role,text\n", "it has no rows$"),
        ("", "it is empty$"),
        ("role,text\nLEAR,x\nFOOL\n", "line 3 has 1 cells, its header has 2: FOOL$"),
    ],
)
def test_damaged_file(tmp_path: Path, text: str, message: str) -> None:
    """Gaps, no rows, and rows cut short are one line."""
    assert_one_line(lambda: load_text_arrays(make_roles(save(tmp_path, text))), message)


def test_no_file_and_foreign_file(tmp_path: Path) -> None:
    """A path that leads nowhere and bytes that are no text are one line."""
    with pytest.raises(DataError, match=r"there is no such file$"):
        load_text_arrays(make_roles(tmp_path / "none.csv"))
    path = tmp_path / "texts.csv"
    path.write_bytes(b"role,text\nLEAR,\xff\xfe\nFOOL,x\n")
    with pytest.raises(DataError, match=r"not UTF-8 but Latin-1.*; save it as CSV UTF-8$"):
        load_text_arrays(make_roles(path))
    (tmp_path / "cut.csv.gz").write_bytes(save(tmp_path, ROLES, "t.csv.gz").read_bytes()[:30])
    with pytest.raises(DataError, match=r"^data\.path must be a \.csv file, got "):
        load_text_arrays(make_roles(tmp_path / "cut.csv.gz"))


def test_target_of_one_value(tmp_path: Path) -> None:
    """One class for all rows is nothing to learn."""
    with pytest.raises(DataError, match=r"data\.target must be a column of different values"):
        load_text_arrays(make_pairs(save(tmp_path, "doctor,one,two,label\n1,a,b,0\n1,c,d,0\n")))


@pytest.mark.parametrize(
    ("words_", "message"),
    [
        ("", r"data\.path must be the path of a \.csv file, got ''"),
        ("data.path=x", "data.client_column must be the name of a column, got ''"),
        ("data.path=x data.client_column=c", "data.text_columns must be "),
        (
            f"{COLUMNS}[a,b]",
            "data.text_columns must be one column where data.target is null",
        ),
        (
            f"{COLUMNS}[a,b,d] data.target=t data.length=4",
            "data.length must be at least 5",
        ),
        (f"{COLUMNS}[c]", "data.text_columns must be at least one column other than "),
        (f"{COLUMNS}[a] data.classes=[x,y]", "data.classes must be null where data.target is null"),
        (f"{COLUMNS}[a] data.group_column=g", "data.group_column must be null where data.target"),
        (
            f"{COLUMNS}[a] data.target=t data.tokenizer=x data.tokens=characters",
            "data.tokens must be words where data.tokenizer is set",
        ),
        (
            "data.path=x data.client_column=c data.text_columns=[a] data.tokens=bytes",
            "one of words",
        ),
    ],
)
def test_mistakes_in_the_settings(words_: str, message: str) -> None:
    """Errors that need no file are reported before it is read."""
    with pytest.raises(SettingsError, match=message) as caught:
        compose_settings("custom", f"data=text {words_}")
    assert "\n" not in str(caught.value)


def of(arrays: LabeledArrays) -> tuple[int, int]:
    assert arrays.client_train is not None
    return len(arrays.y_train), len(set(arrays.client_train.tolist()))


def test_real_medical_question_pairs(
    real_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,048 pairs of 11 doctors; both pairs of a question are on one side."""
    monkeypatch.setenv("FEDQUORUM_DATA", str(real_file("mqp.csv").parent))
    settings = compose_settings("custom", "data=mqp seed=91").settings.data
    assert isinstance(settings, TextSettings)
    assert of(load_text_arrays(settings)) == (3048, 11)
    data = load_data(settings, 1)
    total = [len(data.get_client(k).y_train) + len(data.get_client(k).y_test) for k in range(11)]
    assert sum(total) == 3048
    for client in map(data.get_client, range(11)):
        assert 0.17 < len(client.y_test) / (len(client.y_train) + len(client.y_test)) < 0.23
        assert set(client.y_test.tolist()) == {0, 1}


@pytest.mark.slow
def test_real_shakespeare(
    real_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of all roles, by character: every target is the next input."""
    monkeypatch.setenv("FEDQUORUM_DATA", str(real_file("tinyshakespeare_by_role.csv.gz").parent))
    settings = compose_settings("custom", "data=shakespeare seed=92").settings.data
    assert isinstance(settings, TextSettings)
    arrays = load_text_arrays(settings)
    assert of(arrays)[1] == 299
    x, y = np.asarray(arrays.x_train[:]), arrays.y_train
    inside = x[:, 1:] > 0
    np.testing.assert_array_equal(y[:, :-1][inside], x[:, 1:][inside])
    assert 0.9 < (y >= 0).mean() <= 1
    assert arrays.num_tokens is not None
    assert 60 <= arrays.num_tokens <= 70
    data = load_data(settings, 1)
    assert data.num_clients > 200


def test_ids_and_classes_keep_their_look(tmp_path: Path) -> None:
    """01 and 1 are two clients, blanks around names do not count, and the Unicode form neither."""
    sites, labels = (" 1", "01"), ("cafe\u0301", "caf\u00e9")
    rows = [f"{sites[i % 2]},a{i},{labels[i % 3 > 0]}" for i in range(8)]
    text = "role,text,label\n" + "\n".join([*rows, "1,b,no", "01,b,No"]) + "\n"
    arrays = load_text_arrays(make_roles(save(tmp_path, text), target="label"))
    assert arrays.client_names == ("01", "1")
    assert arrays.class_names == ("No", "caf\u00e9", "no")
    clients, classes = arrays.warnings
    assert clients.startswith("role has clients that may be the same: 01 and 1; ")
    assert classes.startswith("label has classes that may be the same: No and no; ")
    unnamed = load_text_arrays(make_roles(save(tmp_path, text), target="label", names=False))
    assert unnamed.warnings[0].startswith("role has clients that may be the same: client 0 and ")


def test_doubts_about_clients_of_one_sequence_each(tmp_path: Path) -> None:
    """The summary of a run that predicts the next token has them too."""
    data = load_data(make_roles(save(tmp_path, "role,text\nLEAR,abcabcabc\nLear,bacbacbac\n")), 1)
    (doubt,) = data.summary.warnings
    assert "LEAR and Lear" in doubt or "Lear and LEAR" in doubt


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("role\ttext\nLEAR\tx\n", "separated by commas, got tabs in the header"),
        ("role;text\nLEAR;x\n", "separated by commas, got semicolons in the header"),
        ("role,text\nLEAR,x\nrole,text\n", "line 3 repeats the header; delete it"),
        ("role,text\nLEAR,x\n'FOOL,'x,y\n", "line 3 has 3 cells, its header has 2"),
    ],
)
def test_other_separators_and_rows(tmp_path: Path, text: str, message: str) -> None:
    """As in tables, the line says what to change."""
    assert_one_line(lambda: load_text_arrays(make_roles(save(tmp_path, text))), message)


def test_utf_16_and_a_header_of_another_length(tmp_path: Path) -> None:
    """Both are named."""
    path = tmp_path / "texts.csv"
    path.write_text(ROLES, encoding="utf-16")
    assert_one_line(lambda: load_text_arrays(make_roles(path)), "the file is UTF-16; save it as")
    settings = make_roles(save(tmp_path, "LEAR,ab,x\n"), header=["role", "text"])
    message = "its rows have 3 cells, data.header has 2"
    assert_one_line(lambda: load_text_arrays(settings), message)
