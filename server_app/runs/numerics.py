"""Record the arithmetic of a run in its manifest, and check it when the run resumes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fedquorum.errors import RunError, SettingsError
from fedquorum.sanitize import sanitize

from client_app.app import get_node
from client_app.data import FederatedData
from client_app.losses import build_task
from client_app.node.node import build_trained_model, resolve_device
from client_app.training.numerics import (
    BATCHED_AUTOGRAD,
    SEQUENTIAL_AUTOGRAD,
    NumericsInfo,
    find_training_mode,
)
from conf import ComposedConfig
from server_app.runs.next_commands import format_command

_EARLIER_KEYS = ("version", "mode", "device", "instructions")
"""The manifest's keys for the arithmetic of earlier rounds."""


def detect_numerics(
    composed: ComposedConfig, data: FederatedData, *, in_process: bool, device: str | None = None
) -> NumericsInfo:
    """Return the arithmetic of a run that starts or resumes now.

    For clients in other processes, ``device`` is their device for ``client.device=auto``. If it is
    unknown, so is the training mode, unless the mode is the same on all devices.
    """
    client = composed.settings.client
    if client.device != "auto":
        device = client.device
    elif in_process:
        device = resolve_device("auto").type
    model, task = build_trained_model(composed.settings, data), build_task(composed.settings, data)
    mode = find_training_mode(model, task, client.batching, device)
    if mode is None and in_process:
        mode = _detect_mode(composed, data)
    compiled = client.compile and mode in (BATCHED_AUTOGRAD, SEQUENTIAL_AUTOGRAD)
    on_this_cpu = in_process and device == "cpu"
    instructions = torch.backends.cpu.get_cpu_capability() if on_this_cpu else None
    return NumericsInfo(
        mode, device, client.threads_per_op, compiled=compiled, instructions=instructions
    )


def _detect_mode(composed: ComposedConfig, data: FederatedData) -> str | None:
    """Return the training mode of this process's clients by a trial; None if the trial fails."""
    try:
        node = get_node(composed.run_config)
        node.load_clients(range(data.num_clients))
    except Exception:  # no GPU, or damaged data: the clients report the error themselves
        return None
    return node.trainer.mode


def build_manifest_entry(
    now: NumericsInfo, manifest: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the manifest's entry for a run's arithmetic.

    Parameters
    ----------
    now : NumericsInfo
        The arithmetic of the next rounds.
    manifest : mapping, optional
        The manifest so far, if the run is resumed.

    Returns
    -------
    dict
        The fields of ``now``; ``same_bits``; and ``earlier``, a list with version, mode, device and
        instructions of earlier rounds that differ. With such rounds ``same_bits`` is False.
    """
    earlier: list[Any] = []
    same_bits = now.same_bits
    if manifest is not None:
        recorded = _read_numerics(manifest)
        earlier = [*recorded["earlier"]]
        has_moved = _is_change(recorded["device"], now.device) or _is_change(
            recorded["instructions"], now.instructions
        )
        if has_moved or _has_changed(recorded, now):
            earlier.append({key: recorded[key] for key in _EARLIER_KEYS})
        same_bits = None if recorded.get("same_bits") is None else same_bits
    return {**asdict(now), "same_bits": False if earlier else same_bits, "earlier": earlier}


def check_numerics(
    run: Path,
    manifest: Mapping[str, Any],
    now: NumericsInfo,
    allowed: str,
    trust: Sequence[str] = (),
) -> None:
    """Refuse to resume a run with a changed arithmetic, unless the settings allow the change.

    Parameters
    ----------
    run : Path
        The run's directory, for the message.
    manifest : mapping
        The run's manifest.
    now : NumericsInfo
        The arithmetic of the next rounds.
    allowed : str
        ``engine.on_numerics_change``.
    trust : sequence of str
        Further words that a command needs to resume the run.

    Raises
    ------
    SettingsError
        If the arithmetic has changed and ``allowed`` is "same". The message names both versions and
        training modes, and the command to type.
    """
    recorded = _read_numerics(manifest)
    if allowed == "same" and _has_changed(recorded, now):
        command = format_command(f"resume={run}", "engine.on_numerics_change=any", *trust)
        raise SettingsError(
            "engine.on_numerics_change must be any to resume a run of "
            f"{_format_numerics(recorded)} by {_format_numerics(asdict(now))}, which rounds "
            f"otherwise, got same; to resume it all the same: {command}"
        )


def _read_numerics(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a manifest's entry for the arithmetic so far.

    Raises
    ------
    RunError
        If the entry is malformed.
    """
    recorded: dict[str, Any] = {
        **dict.fromkeys(_EARLIER_KEYS),
        "earlier": [],
        **manifest["arithmetic"],
    }
    texts = (recorded["mode"], recorded["device"], recorded["instructions"])
    if (
        not isinstance(recorded["version"], int)
        or not all(text is None or isinstance(text, str) for text in texts)
        or not isinstance(recorded["earlier"], list)
    ):
        raise RunError(
            "the manifest's arithmetic must have a version, and its mode, device and instructions "
            "must be texts or null, got "
            f"{sanitize(manifest['arithmetic'])}"
        )
    return recorded


def _has_changed(recorded: Mapping[str, Any], now: NumericsInfo) -> bool:
    return recorded["version"] != now.version or _is_change(recorded["mode"], now.mode)


def _is_change(before: str | None, now: str | None) -> bool:
    """Say whether two values differ; an unknown value, None, is no change."""
    return None not in (before, now) and before != now


def _format_numerics(numerics: Mapping[str, Any]) -> str:
    mode = numerics["mode"] or "mode not known"
    return f"arithmetic {numerics['version']} ({mode})"
