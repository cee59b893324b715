"""Clients clip their own updates, alone or on their way into a sum."""

import numpy as np
import pytest
import torch
from fedquorum.flower.codec import NamedArrays, TrainTask
from fedquorum.rules.robustness import clip_update

from client_app.node.clipping import clip_row, clip_stacked_models

MODEL: NamedArrays = {"w": np.array([1.0, 2.0], dtype=np.float32), "b": np.zeros(1, np.float32)}


def stack_models(*shifts: float) -> list[np.ndarray]:
    """Return the stacked models of clients with the updates (by, 0) and 0."""
    w = np.array([MODEL["w"] + np.array([by, 0], np.float32) for by in shifts])
    return [w, np.array([MODEL["b"]] * len(shifts))]


def test_every_client_is_clipped_alone() -> None:
    """With C = 1, an update of norm 5 is shortened to 1; those of 0.5, 0.8 and 0 do not change."""
    lengths = (0.5, 5.0, 0.8, 0.0)
    stacked = stack_models(*lengths)
    before = [array.copy() for array in stacked]
    for index, length in enumerate(lengths):
        bit = clip_row(MODEL, stacked, index, TrainTask(0, 1, clipping_norm=1.0))
        assert bit == float(length > 1)
        shift = float(stacked[0][index, 0] - MODEL["w"][0])
        assert shift == pytest.approx(min(1.0, length), rel=1e-6)
    assert np.delete(stacked[0], 1, axis=0).tobytes() == np.delete(before[0], 1, axis=0).tobytes()
    assert {array.dtype for array in stacked} == {np.dtype(np.float32)}


def test_updates_at_the_edges_of_float32() -> None:
    """A norm that float32 has as 0 is no failure; an infinite update stays, without a bit."""
    stacked = stack_models(0.0, 0.0)
    stacked[1][0], stacked[1][1] = 1e-30, np.inf
    task = TrainTask(0, 1, clipping_norm=1.0)
    assert [clip_row(MODEL, stacked, index, task) for index in (0, 1)] == [0.0, None]
    assert stacked[1].reshape(-1).tolist() == [np.float32(1e-30), np.inf]


def test_a_model_for_a_sum_is_that_which_the_server_would_add() -> None:
    """To the bit: clipped, rounded to float32, sent, and clipped once more by the server."""
    rng = np.random.default_rng(0)
    received = {"w": rng.normal(size=(30, 7)).astype(np.float32), "b": np.zeros(3, np.float32)}
    models = [
        {k: (x + s * rng.normal(size=x.shape)).astype(np.float32) for k, x in received.items()}
        for s in (1e-6, 0.3, 5.0)
    ]
    tasks = [TrainTask(k, 1, clipping_norm=norm) for k, norm in enumerate((1.0, 1.0, 0.7))]
    stacked = [torch.from_numpy(np.array([one[name] for one in models])) for name in received]
    clipped, bits = clip_stacked_models(received, stacked, tasks)
    assert bits == [0.0, 1.0, 1.0]
    for i, (model, task) in enumerate(zip(models, tasks, strict=True)):
        assert task.clipping_norm is not None
        sent = {
            name: array.astype(np.float32)
            for name, array in clip_update(received, model, task.clipping_norm)[0].items()
        }
        added = clip_update(received, sent, task.clipping_norm)[0]
        for name, tensor in zip(received, clipped, strict=True):
            assert tensor[i].numpy().tobytes() == added[name].astype(np.float64).tobytes()
        length = clip_update(
            received,
            {k: tensor[i].numpy() for k, tensor in zip(received, clipped, strict=True)},
            np.inf,
        )[1]
        assert length <= task.clipping_norm * (1 + 1e-15)
