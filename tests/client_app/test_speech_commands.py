"""Speech Commands, on tiny sounds in the official folders."""

from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import DataError, SettingsError
from numpy.typing import NDArray
from scipy.io import wavfile

from client_app.data import load_data
from client_app.data.sources import speech_commands
from client_app.data.sources.base import LabelledArrays
from client_app.data.sources.speech_commands import speech_commands_arrays
from conf.compose import compose
from conf.schema.data import SpeechCommandsSettings

WORDS = ("bird", "yes")
SPEAKERS = {"train": ("0a", "0c"), "testing": ("0b",), "validation": ("0d",)}
FOLDER = Path("SpeechCommands/speech_commands_v0.02")


def sound(word: str, speaker: str, number: int, length: int = 16_000) -> NDArray[np.int16]:
    """Return a tone of its own for every file."""
    frequency = 100 * (1 + WORDS.index(word)) + 10 * number + int(speaker, 16)
    seconds = np.arange(length) / 16_000
    tone: NDArray[np.float64] = 20_000 * np.sin(2 * np.pi * frequency * seconds)
    return tone.round().astype(np.int16)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two words, three times by each speaker, the lists, and background noise."""
    folder = tmp_path / FOLDER
    lists: dict[str, list[str]] = {"train": [], "testing": [], "validation": []}
    for word in WORDS:
        (folder / word).mkdir(parents=True)
        for part, speakers in SPEAKERS.items():
            for speaker in speakers:
                for number in range(3):
                    name = f"{word}/{speaker}_nohash_{number}.wav"
                    length = 12_000 if number == 2 else 16_000
                    wavfile.write(folder / name, 16_000, sound(word, speaker, number, length))
                    lists[part].append(name)
    (folder / "_background_noise_").mkdir()
    wavfile.write(folder / "_background_noise_" / "hum.wav", 16_000, np.zeros(9, np.int16))
    for part in ("testing", "validation"):
        (folder / f"{part}_list.txt").write_text("\n".join(lists[part]) + "\n")
    monkeypatch.setattr(speech_commands, "FILE_COUNT", 24)
    return tmp_path


def load(root: Path, rate: int = 16_000) -> LabelledArrays:
    return speech_commands_arrays(SpeechCommandsSettings(root=str(root), sample_rate=rate))


def assert_refused(root: Path, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        load(root)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"data.root must be a folder with {FOLDER}, in it a folder of wav files")
    assert "speech_commands_v0.02.tar.gz" in text


def test_words_speakers_and_parts(root: Path) -> None:
    """Training files are those of neither list; the class is the word, the client the speaker."""
    arrays = load(root)
    assert (arrays.num_classes, arrays.x_train.shape, arrays.x_test.shape) == (
        2,
        (12, 16_000),
        (6, 16_000),
    )
    assert arrays.y_train.tolist() == [0] * 6 + [1] * 6
    assert arrays.client_train is not None
    assert arrays.client_test is not None
    assert arrays.client_train.tolist() == [0, 0, 0, 2, 2, 2] * 2
    assert arrays.client_test.tolist() == [1] * 6


def test_sounds_are_those_of_the_files(root: Path) -> None:
    """A sound of a second stays as it is, a shorter one ends in silence."""
    x = load(root).x_train
    np.testing.assert_array_equal(x[6:7][0], sound("yes", "0a", 0), strict=True)
    short = x[np.array([8])][0]
    np.testing.assert_array_equal(short[:12_000], sound("yes", "0a", 2, 12_000))
    assert not short[12_000:].any()


def test_half_the_rate(root: Path) -> None:
    """At 8 kHz a tone is the same tone, with half as many samples."""
    arrays = load(root, 8_000)
    assert arrays.x_train.shape == (12, 8_000)
    expected = sound("bird", "0a", 0)[::2].astype(float)
    error = arrays.x_train[:1][0][200:-200] - expected[200:-200]
    assert np.abs(error).max() < 0.02 * 20_000


def test_speakers_are_clients(root: Path) -> None:
    """The test list has other speakers, so a client's test part is of its own training files."""
    data = load_data(SpeechCommandsSettings(root=str(root)), 1)
    assert (data.num_clients, data.input_shape, data.num_classes) == (2, (1, 16_000), 2)
    client = data.client(1)
    assert (client.x_train.shape, client.x_test.shape) == ((5, 1, 16_000), (1, 1, 16_000))
    assert client.x_train.dtype == np.float32
    words = sorted([*client.y_train.tolist(), *client.y_test.tolist()])
    assert words == [0, 0, 0, 1, 1, 1]


def test_the_test_list_serves_other_partitions(root: Path) -> None:
    """Divided at random, clients are tested on the official test set."""
    settings = SpeechCommandsSettings(root=str(root), partition="iid", num_clients=3)
    data = load_data(settings, 1)
    assert [len(data.client(k).y_test) for k in range(3)] == [2, 2, 2]
    assert [len(data.client(k).y_train) for k in range(3)] == [4, 4, 4]


def test_missing_folder(tmp_path: Path) -> None:
    """Without the files one line says what to fetch and where to put it."""
    assert_refused(tmp_path, "is no folder$")


@pytest.mark.parametrize("part", ["testing", "validation"])
def test_missing_list(root: Path, part: str) -> None:
    """Without a list it is not known what is for testing."""
    (root / FOLDER / f"{part}_list.txt").unlink()
    assert_refused(root, f"{part}_list.txt")


def test_missing_sound(root: Path) -> None:
    """A file that was not unpacked shows in the number of files."""
    (root / FOLDER / "yes/0a_nohash_1.wav").unlink()
    assert_refused(root, "must have 24 wav files of words, got 23$")


def test_list_of_another_version(root: Path) -> None:
    """A list that names files that are not there is refused."""
    with (root / FOLDER / "testing_list.txt").open("a") as file:
        file.write("yes/ff_nohash_0.wav\n")
    assert_refused(root, r"1 files of the lists are missing, such as yes/ff_nohash_0\.wav$")


def test_foreign_file(root: Path) -> None:
    """A file whose name has no speaker is refused."""
    path = root / FOLDER / "yes/0a_nohash_1.wav"
    path.rename(path.with_name("hello.wav"))
    assert_refused(root, r"yes/hello\.wav has no _nohash_ after the speaker in its name$")


def test_word_without_sounds(root: Path) -> None:
    """An empty folder would be a class that nobody says."""
    (root / FOLDER / "zero").mkdir()
    assert_refused(root, "zero has no wav files$")


@pytest.mark.parametrize("keep", [0, 30, None])
def test_damaged_sound(root: Path, keep: int | None) -> None:
    """A file that is no wav file is one line when it is read."""
    path = root / FOLDER / "bird/0a_nohash_0.wav"
    path.write_bytes(b"<html>no</html>" if keep is None else path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"^data\.root must lead to wav files, got .*0a_nohash_0"):
        load(root).x_train[:1]


def test_truncated_sound(root: Path) -> None:
    """A file that has less than its header says is refused, and not taken for a short word."""
    path = root / FOLDER / "bird/0a_nohash_0.wav"
    path.write_bytes(path.read_bytes()[:9_000])
    with pytest.raises(DataError, match=r"^data\.root must lead to wav files, got .*0a_nohash_0"):
        load(root).x_train[:1]


@pytest.mark.parametrize(
    ("rate", "shape", "dtype"),
    [(8_000, (9,), "int16"), (16_000, (9, 2), "int16"), (16_000, (9,), "uint8")],
)
def test_sound_of_another_kind(root: Path, rate: int, shape: tuple[int, ...], dtype: str) -> None:
    """Another rate, two channels or 8 bits are refused with what they are."""
    path = root / FOLDER / "bird/0a_nohash_0.wav"
    wavfile.write(path, rate, np.zeros(shape, dtype))
    with pytest.raises(DataError, match=rf"one channel of 16 bits .* {dtype} .* at {rate} Hz$"):
        load(root).x_train[:1]


def test_rates_to_choose_from() -> None:
    """Another rate is refused before any work."""
    message = r"^data\.sample_rate must be one of 8000, 16000, got 44100$"
    with pytest.raises(SettingsError, match=message):
        compose("custom", "data=speech_commands data.sample_rate=44100")
