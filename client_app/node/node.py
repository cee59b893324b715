"""Host the clients of a process: their data, and one model for training and evaluation."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from fedquorum.errors import ProtocolError
from fedquorum.flower.codec import CLIENT_ID
from fedquorum.flower.mods import (
    AvailabilityMod,
    NodeAvailability,
    NodeResponseTimes,
    ResponseTimeMod,
)
from fedquorum.rules.parameters import Interval
from fedquorum.sanitize import abbreviate
from flwr.clientapp.typing import Mod
from torch import nn

from client_app.data import load_data
from client_app.data.agreed import ClientMoments
from client_app.data.base import FederatedData, Split
from client_app.data.coding.table import ClientScale, TableCoding, TableScaling
from client_app.data.examples import Examples
from client_app.data.fingerprint import compute_device_fingerprint
from client_app.data.scaling import AgreedScales
from client_app.data.single_client import SingleClientData
from client_app.evaluation.evaluator import CachedEvaluator
from client_app.losses import build_task
from client_app.models import build_model_for, create_example_inputs
from client_app.node.client import FederatedClient
from client_app.node.failures import get_failure_reason
from client_app.simulation.availability import build_processes
from client_app.simulation.response_times import build_latency_model
from client_app.training.augmentation import check_augmentation
from client_app.training.dropout import replace_dropout
from client_app.training.flops import count_sample_activations, count_sample_flops
from client_app.training.local_sgd import LocalSGDConfig, TheoremLR, TrainingSetup
from client_app.training.trainer import Trainer
from client_app.training.workers import retain_freed_memory
from conf import Settings, SettingsError
from conf.schema.data import is_on_device, needs_agreement
from conf.schema.privacy import CLIENT_MODES
from conf.schema.settings import get_evaluation_metric

SUPERNODE_MODULE = "flwr.supernode.runtime.run_clientapp"
"""Flower's module that runs an app on a SuperNode; a simulation never loads it."""

DATA_SPLITS: tuple[Split, ...] = ("train", "test")
ALL_SPLITS: tuple[Split, ...] = (*DATA_SPLITS, "validation")
CUBLAS_WORKSPACE = ":4096:8"  # a separate workspace for each stream makes cuBLAS deterministic
MAX_EVALUATION_NUMBERS = {"cpu": 2**24, "cuda": 2**28}
"""The numbers of all layers in one pass. On a CPU, more are newly allocated in every pass. A GPU
needs many: a pass of few samples takes as long as one of many, up to 1 GiB of float32."""


class Node:
    """The clients of one process, loaded on first use and cached.

    Parameters
    ----------
    settings : Settings
    data_path : str
        The path of this device's data; empty for ``data.path``. It is ignored unless each device
        has only its own client's data.
    hides_text : bool
        Whether the texts of errors stay here, as on a real machine whose owner allows no more.
    """

    evaluator: CachedEvaluator
    trainer: Trainer

    def __init__(
        self, settings: Settings, data_path: str = "", *, hides_text: bool = False
    ) -> None:
        self._settings = settings
        self._hides_text = hides_text
        if settings.client.retain_memory:
            retain_freed_memory()
        data: Any = settings.data
        if data_path and is_on_device(data):
            data = replace(data, path=data_path)
        self._data_settings = data
        self._data = load_data(data, settings.seed)
        self._device = resolve_device(settings.client.device)
        self.set_switches()
        self._model = build_trained_model(settings, self._data).to(self._device)
        inputs = create_example_inputs(self._data.input_shape, self._data.num_tokens).to(
            self._device
        )
        self._flops = count_sample_flops(self._model, inputs)
        numbers = count_sample_activations(self._model, inputs)
        self._rows_at_once = max(1, MAX_EVALUATION_NUMBERS[self._device.type] // numbers)
        if any(isinstance(layer, torch.nn.Conv2d) for layer in self._model.modules()):
            # Convolutions are up to twice as fast in this layout, also on CPUs.
            self._model = self._model.to(memory_format=torch.channels_last)
        if settings.client.compile:
            _check_compiler(self._device)
        self._process = build_processes(settings, self._data)
        self._times = build_latency_model(settings.response_time, self._data)
        self._examples: Examples | None = None
        self._unload_clients()
        self._agreed: dict[str, Any] | None = None

    def _unload_clients(self) -> None:
        self._examples = None
        self._loaded = np.zeros(0, dtype=np.int64)
        self._loaded_groups: set[Sequence[int]] = set()  # groups of clients, all loaded

    def set_switches(self) -> None:
        """Set PyTorch's switches for the whole process as this node's settings require.

        Others may change them between two messages: another node, or the program that runs the job.
        """
        client = self._settings.client
        if self._device.type == "cuda":
            set_deterministic(client.deterministic)
        torch.set_float32_matmul_precision("high" if client.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = client.tf32

    def measure_clients(self, clients: Sequence[int]) -> dict[int, ClientMoments]:
        """Return the statistics of these clients, for scales that all clients share.

        Raises
        ------
        ProtocolError
            If the run needs none from this node.
        """
        data = self._data
        if not isinstance(data, SingleClientData) or not needs_agreement(self._settings.data):
            raise ProtocolError("this run needs no statistics of its clients")
        return {client: data.measure_client(client) for client in clients}

    @property
    def needs_agreement(self) -> bool:
        """Whether the node scales its data as all clients agree."""
        return isinstance(self._data, SingleClientData) and needs_agreement(self._settings.data)

    def agree(self, scales: AgreedScales | None) -> None:
        """Use the scales in a request, unless the node has them.

        Raises
        ------
        ProtocolError
            If the request has none.
        """
        assert isinstance(self._data, SingleClientData)
        if scales is None:
            raise ProtocolError("the request lacks the scales that all clients agree on")
        if scales.to_dict() != self._agreed:
            self._agreed = scales.to_dict()
            self._data.agree(scales)
            self._unload_clients()

    def find_own_scale(self, client: int) -> ClientScale | None:
        """Return the scale of a device's client; None if the model card has no place for it."""
        data = self._data
        if not isinstance(data, SingleClientData) or not isinstance(data.coding, TableCoding):
            return None
        own: TableScaling = data.get_client_coding(client).scaling
        if data.coding.scaling.kind != "device" or own.kind != "client":
            return None
        (known,) = own.clients
        return replace(known, client=client)

    def compute_fingerprint(self, client: int) -> Mapping[str, Any]:
        """Return the fingerprint of the data of a device's client."""
        return compute_device_fingerprint(self._data_settings, self._data, client)

    @property
    def has_clients(self) -> bool:
        """Whether the data of a client is loaded."""
        return self._examples is not None

    def load_clients(self, clients: Sequence[int]) -> None:
        """Load the data of these clients, in addition to those already loaded.

        Raises
        ------
        SettingsError
            If the augmentation does not fit their inputs, or the loss their targets.
        """
        group = clients if isinstance(clients, range) else tuple(clients)
        if group in self._loaded_groups:
            return
        loaded = np.union1d(self._loaded, np.asarray(group, dtype=np.int64))
        if len(loaded) > len(self._loaded):
            self._load_all(loaded.tolist())
            self._loaded = loaded
        self._loaded_groups.add(group)

    def _load_all(self, clients: Sequence[int]) -> None:
        """Load the data of all of these clients."""
        splits = ALL_SPLITS if self._settings.data.validation_fraction else DATA_SPLITS
        examples = {
            split: Examples(self._data.get_pooled_split(split, clients), self._device)
            for split in splits
        }
        settings = self._settings.client
        set_by_users = {item.name for item in fields(LocalSGDConfig)} - {
            "theorem_lr",
            "pixel_scale",
        }
        config = LocalSGDConfig(
            theorem_lr=TheoremLR(settings.theorem_lr.mu, settings.theorem_lr.L),
            pixel_scale=examples["train"].pixel_scale,
            **{name: getattr(settings, name) for name in set_by_users},
        )
        if config.augmentation != "none":
            for client in clients:
                inputs, _ = examples["train"].select_clients([client])
                check_augmentation(config.augmentation, inputs, config.pixel_scale)
        self._examples = examples["train"]
        task = build_task(self._settings, self._data)
        self.evaluator = CachedEvaluator(
            self._model,
            examples,
            task,
            get_evaluation_metric(self._settings),
            flops_per_sample=self._flops,
            rows_at_once=self._rows_at_once,
            threads=settings.threads_per_op,
        )
        self.trainer = Trainer(
            TrainingSetup(
                self._model,
                examples["train"],
                config,
                task,
                seed=self._settings.seed,
                compiled=settings.compile,
            ),
            batching=settings.batching,
            threads=settings.threads_per_op,
            flops_per_sample=self._flops,
        )

    def get_client(self, client_id: int) -> FederatedClient:
        """Return a client, with its data loaded."""
        if self._examples is None or client_id not in self._examples:
            self.load_clients([client_id])
        return FederatedClient(client_id, self.evaluator, self.trainer.train_client)

    def get_mods(self, hosted: Sequence[int]) -> Sequence[Mod]:
        """Return the mods that train messages to these clients need, the outermost first."""
        seed = self._settings.seed
        mods: list[Mod] = []
        if self._process is not None:
            availability = NodeAvailability(seed, hosted, self._process)
            mods.append(AvailabilityMod(lambda _: availability))
        if self._times is not None:
            response_times = NodeResponseTimes(seed, hosted, self._times)
            mods.append(ResponseTimeMod(lambda _: response_times))
        return mods

    @property
    def clips_updates(self) -> bool:
        """Whether the clients clip their updates for differential privacy."""
        return self._settings.privacy.name in CLIENT_MODES

    def get_reason(self, error: Exception) -> str:
        """Return the reason of a failure for the server."""
        return get_failure_reason(error, hides_text=self._hides_text)

    def get_hosted_clients(self, node_config: dict[str, Any]) -> Sequence[int]:
        """Return the ids of the clients that a node with this config hosts.

        Raises
        ------
        SettingsError
            If there are no such clients, or class weights are balanced on a device with one client.
        """
        if CLIENT_ID in node_config and self._settings.client.class_weights == "balanced":
            raise SettingsError(
                "client.class_weights must be null or a list where a device hosts one client, got "
                "balanced"
            )
        return compute_hosted_clients(node_config, self._data.num_clients)


def is_deployed(node_config: Mapping[str, Any]) -> bool:
    """Return whether a node is a real machine whose data must stay on it.

    A device names its client in the node config. A simulation numbers its nodes, which all belong
    to the user who runs it.

    Parameters
    ----------
    node_config : mapping
        Flower's node config.
    """
    return CLIENT_ID in node_config or SUPERNODE_MODULE in sys.modules


def compute_hosted_clients(node_config: dict[str, Any], num_clients: int) -> Sequence[int]:
    """Return the ids of the clients on a node: ``client-id``, or k with k mod M = j.

    For many clients it is a range, because every message needs it, often several times.

    Raises
    ------
    SettingsError
        If the node config names neither, or a client that does not exist.
    """
    if CLIENT_ID in node_config:
        client = node_config[CLIENT_ID]
        if not Interval(low=0, high=num_clients - 1, integer=True).contains(client):
            raise SettingsError(
                f"client-id must be a whole number from 0 to {num_clients - 1}, got {client!r}"
            )
        return (int(client),)
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise SettingsError(
            "the node config must hold client-id, or partition-id and num-partitions, got "
            f"{abbreviate(sorted(node_config)) or 'nothing'}"
        )
    return range(int(node_config["partition-id"]), num_clients, int(node_config["num-partitions"]))


def build_trained_model(settings: Settings, data: FederatedData) -> nn.Module:
    """Return the model that clients train; requests replace its initial values."""
    model = build_model_for(settings, data, pretrained=False)
    return replace_dropout(model, create_example_inputs(data.input_shape, data.num_tokens))


def set_deterministic(wanted: bool) -> None:
    """Make CUDA use deterministic algorithms, which give the same bits every time.

    A model with an operation without such an algorithm fails with torch's message. cuBLAS reads
    its setting on first use, so a value in the environment is not changed.
    """
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(wanted)


def resolve_device(name: str) -> torch.device:
    """Return the device of ``client.device``; ``auto`` is the GPU if there is one.

    Raises
    ------
    SettingsError
        For cuda without a GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("client.device must be auto or cpu where there is no GPU, got cuda")
    return torch.device(name)


def _check_compiler(device: torch.device) -> None:
    """Compile a small function: a model would only fail in the first round, client by client.

    Raises
    ------
    SettingsError
        If torch.compile does not work.
    """
    ones = torch.ones(2, device=device)
    try:
        torch.compile(torch.add)(ones, ones)
    except Exception as error:
        raise SettingsError(
            "client.compile must be false where torch.compile does not work, got true: "
            f"{str(error).splitlines()[0]}"
        ) from error
