"""Test what a data set's rows tell about it."""

import numpy as np
import pytest

from client_app.data.describe import describe_data
from client_app.data.partitioned import PartitionedData
from client_app.data.sources.base import LabeledArrays
from client_app.data.synth import SynthData
from conf.schema.data import NpzSettings, SynthSettings


def build_data() -> PartitionedData:
    """Build two clients, of 4 and 2 training rows and of 2 and 4 test rows."""
    clients = np.array([0, 0, 0, 0, 1, 1])
    x = np.ones((6, 1), np.float32)
    arrays = LabeledArrays(
        x,
        np.array([0, 0, 0, 1, 1, 1]),
        x,
        np.array([0, 1, 0, 1, 1, 1]),
        2,
        client_train=clients,
        client_test=np.array([0, 0, 1, 1, 1, 1]),
        client_names=("North", "South"),
        class_names=("no", "yes"),
    )
    settings = NpzSettings(path="x", partition="natural", num_priority=1)
    return PartitionedData(arrays, settings, 1)


def test_shares_of_classes_and_the_accuracy_of_no_model() -> None:
    """A constant model's accuracy is the mean over clients by training rows, as of any model."""
    groups = {"all": {0, 1}, "priority": {1}, "held_out": ()}
    summary = describe_data(build_data(), groups)
    assert summary.classes == {"no": 5 / 12, "yes": 7 / 12}
    yes = (4 * 0.5 + 2 * 0.75) / 6
    assert summary.constant_accuracy == pytest.approx({"all": yes, "priority": 0.75})
    assert summary.client_names == ("North", "South")
    assert "client_names" not in summary.to_dict()
    assert describe_data(build_data(), groups, names=False).client_names == ()


def test_data_that_is_built_client_by_client_is_not_built_for_it() -> None:
    """SYNTH has no shares: a server may not have its clients."""
    summary = describe_data(SynthData(SynthSettings(num_clients=20), 1), {"all": {0}})
    assert (summary.classes, summary.constant_accuracy) == ({}, {})
