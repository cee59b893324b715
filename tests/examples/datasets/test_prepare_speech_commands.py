"""Speech Commands, on tiny sounds in the official folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import wavfile

from client_app.data import load_data
from client_app.data.sources.base import LabeledArrays
from client_app.data.sources.npz import load_npz_arrays
from conf.compose import compose_settings
from conf.schema.data import NpzSettings
from tests.examples.datasets.scripts import Script, load_script

WORDS = ("bird", "yes")
SPEAKERS = {"train": ("0a", "0c"), "testing": ("0b",), "validation": ("0d",)}


def sound(word: str, speaker: str, number: int, length: int = 16_000) -> NDArray[np.int16]:
    """Return a different tone for every file."""
    frequency = 100 * (1 + WORDS.index(word)) + 10 * number + int(speaker, 16)
    seconds = np.arange(length) / 16_000
    tone: NDArray[np.float64] = 20_000 * np.sin(2 * np.pi * frequency * seconds)
    return tone.round().astype(np.int16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write two words, three times by each speaker, the lists, and background noise."""
    lists: dict[str, list[str]] = {"train": [], "testing": [], "validation": []}
    for word in WORDS:
        (tmp_path / word).mkdir()
        for split, speakers in SPEAKERS.items():
            for speaker in speakers:
                for number in range(3):
                    name = f"{word}/{speaker}_nohash_{number}.wav"
                    length = 12_000 if number == 2 else 16_000
                    wavfile.write(tmp_path / name, 16_000, sound(word, speaker, number, length))
                    lists[split].append(name)
    (tmp_path / "_background_noise_").mkdir()
    wavfile.write(tmp_path / "_background_noise_" / "hum.wav", 16_000, np.zeros(9, np.int16))
    for split in ("testing", "validation"):
        (tmp_path / f"{split}_list.txt").write_text("\n".join(lists[split]) + "\n")
    return tmp_path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return the script, for 24 files."""
    wanted = "a folder of wav files for every word, testing_list.txt and validation_list.txt ("
    return load_script("prepare_speech_commands", wanted, monkeypatch, {"FILE_COUNT": 24})


def read(path: Path) -> LabeledArrays:
    return load_npz_arrays(NpzSettings(path=str(path), partition="natural"))


def test_words_speakers_and_parts(folder: Path, script: Script) -> None:
    """Training files are those of neither list; the class is the word, the client the speaker."""
    arrays = read(script.run(folder))
    assert arrays.num_classes == 2
    assert (arrays.x_train.shape, arrays.x_test.shape) == ((12, 16_000), (6, 16_000))
    assert arrays.y_train.tolist() == [0] * 6 + [1] * 6
    assert arrays.y_test.tolist() == [0] * 3 + [1] * 3
    assert arrays.client_train is not None
    assert arrays.client_test is not None
    assert arrays.client_train.tolist() == [0, 0, 0, 2, 2, 2] * 2
    assert arrays.client_test.tolist() == [1] * 6


def test_sounds_are_those_of_the_files(folder: Path, script: Script) -> None:
    """A sound of a second stays as it is, a shorter one ends in silence, a longer one ends."""
    long = sound("yes", "0c", 0, 20_000)
    wavfile.write(folder / "yes/0c_nohash_0.wav", 16_000, long)
    x = read(script.run(folder)).x_train
    np.testing.assert_array_equal(x[6], sound("yes", "0a", 0), strict=True)
    np.testing.assert_array_equal(x[8][:12_000], sound("yes", "0a", 2, 12_000))
    assert not x[8][12_000:].any()
    np.testing.assert_array_equal(x[9], long[:16_000])


def test_speakers_are_clients(folder: Path, script: Script) -> None:
    """The test list has other speakers, so test splits are taken from training files."""
    data = load_data(
        compose_settings("aaggff/speech", f"data.path={script.run(folder)}").settings.data, 1
    )
    assert (data.num_clients, data.input_shape, data.num_classes) == (2, (1, 16_000), 2)
    client = data.get_client(1)
    assert (client.x_train.shape, client.x_test.shape) == ((5, 1, 16_000), (1, 1, 16_000))
    assert (client.y_train.tolist(), client.y_test.tolist()) == ([0, 0, 0, 1, 1], [1])


def test_the_test_list_serves_other_partitions(folder: Path, script: Script) -> None:
    """Divided at random, clients are tested on the official test set."""
    overrides = f"data=speech_commands data.path={script.run(folder)} data.partition=iid"
    data = load_data(compose_settings("custom", f"{overrides} data.num_clients=3").settings.data, 1)
    assert [len(data.get_client(k).y_test) for k in range(3)] == [2, 2, 2]
    assert [len(data.get_client(k).y_train) for k in range(3)] == [4, 4, 4]


@pytest.mark.parametrize("split", ["testing", "validation"])
def test_missing_list(folder: Path, script: Script, split: str) -> None:
    """Without a list it is not known what is for testing."""
    (folder / f"{split}_list.txt").unlink()
    script.assert_refused(folder, f"{split}_list.txt'$")


def test_missing_sound(folder: Path, script: Script) -> None:
    """A file that was not unpacked shows in the number of files."""
    (folder / "yes/0a_nohash_1.wav").unlink()
    script.assert_refused(folder, "there must be 24 wav files of words, got 23$")


def test_list_of_another_version(folder: Path, script: Script) -> None:
    """A list that names files that are not there is refused."""
    with (folder / "testing_list.txt").open("a") as file:
        file.write("yes/ff_nohash_0.wav\n")
    reason = r"1 files of the lists are missing, such as yes/ff_nohash_0\.wav$"
    script.assert_refused(folder, reason)


def test_foreign_file(folder: Path, script: Script) -> None:
    """A file whose name has no speaker is refused."""
    path = folder / "yes/0a_nohash_1.wav"
    path.rename(path.with_name("hello.wav"))
    script.assert_refused(folder, r"yes/hello\.wav has no _nohash_ after the speaker in its name$")


def test_word_without_sounds(folder: Path, script: Script) -> None:
    """An empty folder would be a class that nobody says."""
    (folder / "zero").mkdir()
    script.assert_refused(folder, "zero has no wav files$")


@pytest.mark.parametrize("keep", [0, 30, 9_000, None])
def test_damaged_sound(folder: Path, script: Script, keep: int | None) -> None:
    """A file that is no wav file, or has less than its header says, is one line with its path."""
    path = folder / "bird/0a_nohash_0.wav"
    path.write_bytes(b"<html>no</html>" if keep is None else path.read_bytes()[:keep])
    script.assert_refused(folder, f": {path} is (no wav file: .|cut short$)")


@pytest.mark.parametrize(
    ("rate", "samples", "got"),
    [
        (8_000, np.zeros(9, np.int16), "1 of 2 bytes at 8000 Hz"),
        (16_000, np.zeros((9, 2), np.int16), "2 of 2 bytes at 16000 Hz"),
        (16_000, np.zeros(9, np.uint8), "1 of 1 bytes at 16000 Hz"),
    ],
)
def test_sound_of_another_kind(
    folder: Path, script: Script, rate: int, samples: NDArray[Any], got: str
) -> None:
    """Another rate, two channels or 8 bits are refused with what they are."""
    path = folder / "bird/0a_nohash_0.wav"
    wavfile.write(path, rate, samples)
    reason = f"{path} must have one channel of 2 bytes at 16000 Hz, got {got}$"
    script.assert_refused(folder, reason)
