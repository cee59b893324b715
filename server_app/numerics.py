"""The arithmetic of a run: what its manifest says of it, and whether ``resume`` may change it."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fedquorum.errors import RunError, SettingsError
from fedquorum.sanitize import sanitize

from client_app.app import get_node
from client_app.data import FederatedData
from client_app.losses import build_task
from client_app.node import build_trained_model, resolve_device
from client_app.numerics import (
    BATCHED_AUTOGRAD,
    SEQUENTIAL_AUTOGRAD,
    NumericsInfo,
    find_training_mode,
)
from conf import ComposedConfig

_EARLIER_KEYS = ("version", "way", "device", "instructions")
"""What a manifest says of the arithmetic of earlier rounds."""


def detect_numerics(
    composed: ComposedConfig, data: FederatedData, *, in_process: bool, device: str | None = None
) -> NumericsInfo:
    """Return the arithmetic of a run that begins or goes on now.

    Where clients are elsewhere, ``device`` is what ``client.device=auto`` is there. If nobody
    knows, device and, unless all devices train the model alike, way are unknown.
    """
    client = composed.settings.client
    if client.device != "auto":
        device = client.device
    elif in_process:
        device = resolve_device("auto").type
    model, task = build_trained_model(composed.settings, data), build_task(composed.settings, data)
    way = find_training_mode(model, task, client.batching, device)
    if way is None and in_process:
        way = _detect_mode(composed, data)
    compiled = client.compile and way in (BATCHED_AUTOGRAD, SEQUENTIAL_AUTOGRAD)
    here = in_process and device == "cpu"
    instructions = torch.backends.cpu.get_cpu_capability() if here else None
    return NumericsInfo(
        way, device, client.threads_per_op, compiled=compiled, instructions=instructions
    )


def _detect_mode(composed: ComposedConfig, data: FederatedData) -> str | None:
    """Return how the clients of this process train where only a trial tells."""
    try:
        node = get_node(composed.run_config)
        node.load_clients(range(data.num_clients))
    except Exception:  # no GPU, or a client's data: the clients will say so themselves
        return None
    return node.trainer.mode


def build_manifest_entry(
    now: NumericsInfo, manifest: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what the manifest says of a run's arithmetic.

    Parameters
    ----------
    now : Arithmetic
        Of the rounds to come.
    manifest : mapping, optional
        The manifest so far, of a run that goes on.

    Returns
    -------
    dict
        The fields of ``now``; ``same_bits``; and ``earlier``: version, way, device and instructions
        of earlier rounds, where they were others. Such a run promises no bits.
    """
    earlier: list[Any] = []
    same_bits = now.same_bits
    if manifest is not None:
        known = _read_numerics(manifest)
        earlier = [*known["earlier"]]
        moved = _is_change(known["device"], now.device) or _is_change(
            known["instructions"], now.instructions
        )
        if moved or _has_changed(known, now):
            earlier.append({key: known[key] for key in _EARLIER_KEYS})
        same_bits = None if known.get("same_bits") is None else same_bits
    return {**asdict(now), "same_bits": False if earlier else same_bits, "earlier": earlier}


def check_numerics(run: Path, manifest: Mapping[str, Any], now: NumericsInfo, allowed: str) -> None:
    """Refuse to go on with a run by another arithmetic than it has had, unless that is said.

    Parameters
    ----------
    run : Path
        The run's directory.
    manifest : mapping
        Its manifest.
    now : Arithmetic
        Of the rounds to come.
    allowed : str
        ``engine.on_numerics_change``.

    Raises
    ------
    SettingsError
        With both versions and ways, and what to type.
    """
    known = _read_numerics(manifest)
    if allowed == "same" and _has_changed(known, now):
        raise SettingsError(
            f"engine.on_numerics_change must be any to resume a run of {_format_numerics(known)} by "
            f"{_format_numerics(asdict(now))}, which rounds otherwise, got same; to resume it all the same: "
            + shlex.join(["fedquorum", f"resume={run}", "engine.on_numerics_change=any"])
        )


def _read_numerics(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a manifest says of the arithmetic so far.

    Raises
    ------
    RunError
        If it says other things than one does.
    """
    known: dict[str, Any] = {
        **dict.fromkeys(_EARLIER_KEYS),
        "earlier": [],
        **manifest["arithmetic"],
    }
    texts = (known["way"], known["device"], known["instructions"])
    if (
        not isinstance(known["version"], int)
        or not all(text is None or isinstance(text, str) for text in texts)
        or not isinstance(known["earlier"], list)
    ):
        raise RunError(
            "the manifest's arithmetic must have a version, and its way, device and instructions "
            "must be texts or null, got "
            f"{sanitize(manifest['arithmetic'])}"
        )
    return known


def _has_changed(known: Mapping[str, Any], now: NumericsInfo) -> bool:
    return known["version"] != now.version or _is_change(known["way"], now.way)


def _is_change(before: str | None, now: str | None) -> bool:
    """Say whether two that are known differ."""
    return None not in (before, now) and before != now


def _format_numerics(numerics: Mapping[str, Any]) -> str:
    way = numerics["way"] or "way not known"
    return f"arithmetic {numerics['version']} ({way})"
