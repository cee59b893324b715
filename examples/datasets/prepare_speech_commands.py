"""Write Speech Commands 0.02 into one file, which data=speech_commands reads.

Each speaker is a client. The words last one second each at 16 kHz: the files of testing_list.txt
are the test set, and those of neither list the training set. Shorter sounds are padded with
silence.
"""

import argparse
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from preparation import Rows, build_parser, prepare, write_npz

SPEAKER_ENDS = "_nohash_"
BACKGROUND = "_background_noise_"
RATE = 16_000
FORMAT = (1, 2, RATE)
FILE_COUNT = 105_829
WANTED = (
    "a folder of wav files for every word, testing_list.txt and validation_list.txt (unpack "
    "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz)"
)


def write(options: argparse.Namespace, path: Path) -> str:
    """Write the sounds word by word, in the order of their names, and return a description."""
    folder: Path = options.folder
    words = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name != BACKGROUND)
    files = [f"{word}/{p.name}" for word in words for p in sorted((folder / word).glob("*.wav"))]
    for word in words:
        if not any(name.startswith(f"{word}/") for name in files):
            raise ValueError(f"{folder / word} has no wav files")
    if len(files) != FILE_COUNT:
        raise ValueError(f"there must be {FILE_COUNT} wav files of words, got {len(files)}")
    foreign = [name for name in files if SPEAKER_ENDS not in name]
    if foreign:
        raise ValueError(f"{foreign[0]} has no {SPEAKER_ENDS} after the speaker in its name")
    testing, validation = (
        set((folder / f"{split}_list.txt").read_text(encoding="utf-8").split())
        for split in ("testing", "validation")
    )
    missing = sorted((testing | validation) - set(files))
    if missing:
        raise ValueError(f"{len(missing)} files of the lists are missing, such as {missing[0]}")
    names_by_split = {
        "train": [name for name in files if name not in testing | validation],
        "test": [name for name in files if name in testing],
    }
    speakers = {name: i for i, name in enumerate(sorted(set(map(get_speaker, files))))}
    arrays: dict[str, Any] = {}
    for split, names in names_by_split.items():
        sounds = map(read_sound, [folder / name for name in names])
        arrays[f"x_{split}"] = Rows((len(names), RATE), "int16", sounds)
        arrays[f"y_{split}"] = np.array([words.index(name.split("/")[0]) for name in names])
        arrays[f"client_{split}"] = np.array([speakers[get_speaker(name)] for name in names])
    write_npz(path, arrays)
    train, test = (len(names) for names in names_by_split.values())
    return f"{train:,} sounds for training and {test:,} for testing"


def get_speaker(name: str) -> str:
    """Return the speaker of a file ``word/speaker_nohash_0.wav``."""
    return name.split("/")[1].split(SPEAKER_ENDS, maxsplit=1)[0]


def read_sound(path: Path) -> NDArray[np.int16]:
    """Return the first second of a wav file, int16 (16000,)."""
    try:
        with wave.open(str(path)) as file:
            found = file.getnchannels(), file.getsampwidth(), file.getframerate()
            count, content = file.getnframes(), file.readframes(file.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        raise ValueError(f"{path} is no wav file: {str(error) or 'it is cut short'}") from None
    if found != FORMAT:
        raise ValueError(
            f"{path} must have one channel of 2 bytes at {RATE} Hz, got {found[0]} of {found[1]} "
            f"bytes at {found[2]} Hz"
        )
    if not content or len(content) != 2 * count:
        raise ValueError(f"{path} is cut short")
    sound = np.zeros(RATE, dtype=np.int16)
    samples = np.frombuffer(content, dtype="<i2")[:RATE]
    sound[: len(samples)] = samples
    return sound


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the file."""
    folder = "the folder speech_commands_v0.02 of the archive"
    parser = build_parser(__doc__, folder, "speech_commands.npz")
    prepare(parser.parse_args(arguments), WANTED, write)


if __name__ == "__main__":
    main()
