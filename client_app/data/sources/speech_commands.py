"""Speech Commands: spoken words, a speaker a client."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fedquorum.errors import DataError, one_line

from client_app.data.base import Labels
from client_app.data.sources.base import LabelledArrays
from client_app.data.sources.files import SoundFiles
from conf.schema.data import SpeechCommandsSettings

FOLDER = "SpeechCommands/speech_commands_v0.02"
SPEAKER_ENDS = "_nohash_"
BACKGROUND = "_background_noise_"
FILE_RATE = 16_000
FILE_COUNT = 105_829


def speech_commands_arrays(settings: SpeechCommandsSettings) -> LabelledArrays:
    """Return the sounds of a second each, int16 (n, ``data.sample_rate``), with their words.

    Words are the folders, ascending, but that of background noise; a speaker is what stands before
    ``_nohash_`` in the name of a file. The test set is ``testing_list.txt``; the files of
    ``validation_list.txt`` are not used. No speaker is in two parts, so of its own clients'
    training files a part becomes their test part; ``data.min_samples`` 3 leaves AAggFF's 2,005
    speakers. Sounds are read when they are asked for.

    Raises
    ------
    DataError
        If ``data.root`` does not lead to these files.
    """
    root = Path(settings.root).expanduser().resolve()
    try:
        return _read(root / FOLDER, settings.sample_rate)
    except (OSError, ValueError) as error:
        raise DataError(
            f"data.root must be a folder with {FOLDER}, in it a folder of wav files for every "
            "word, testing_list.txt and validation_list.txt (there is no download: unpack "
            "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz into it), got "
            f"{root}: {one_line(error)}"
        ) from None


def _read(folder: Path, rate: int) -> LabelledArrays:
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    words = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name != BACKGROUND)
    files = [f"{word}/{p.name}" for word in words for p in sorted((folder / word).glob("*.wav"))]
    for word in words:
        if not any(name.startswith(f"{word}/") for name in files):
            raise ValueError(f"{folder / word} has no wav files")
    if len(files) != FILE_COUNT:
        raise ValueError(f"{folder} must have {FILE_COUNT} wav files of words, got {len(files)}")
    foreign = [name for name in files if SPEAKER_ENDS not in name]
    if foreign:
        raise ValueError(f"{foreign[0]} has no {SPEAKER_ENDS} after the speaker in its name")
    testing = _listed(folder, "testing_list.txt")
    validation = _listed(folder, "validation_list.txt")
    missing = sorted((testing | validation) - set(files))
    if missing:
        raise ValueError(f"{len(missing)} files of the lists are missing, such as {missing[0]}")
    train = [name for name in files if name not in testing | validation]
    test = [name for name in files if name in testing]
    speakers = {s: i for i, s in enumerate(sorted(set(map(_speaker, files))))}

    def sounds(names: Sequence[str]) -> SoundFiles:
        paths = [folder / name for name in names]
        return SoundFiles("data.root", paths, file_rate=FILE_RATE, rate=rate)

    def classes(names: Sequence[str]) -> Labels:
        return np.array([words.index(name.split("/")[0]) for name in names], dtype=np.int64)

    def clients(names: Sequence[str]) -> Labels:
        return np.array([speakers[_speaker(name)] for name in names], dtype=np.int64)

    return LabelledArrays(
        sounds(train),
        classes(train),
        sounds(test),
        classes(test),
        len(words),
        client_train=clients(train),
        client_names=tuple(speakers),
        client_test=clients(test),
    )


def _speaker(name: str) -> str:
    return name.split("/")[1].split(SPEAKER_ENDS, maxsplit=1)[0]


def _listed(folder: Path, name: str) -> set[str]:
    return set((folder / name).read_text(encoding="utf-8").split())
