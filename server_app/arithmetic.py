"""The arithmetic of a run: what its manifest says of it, and whether ``resume`` may change it."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fedquorum.errors import RunError, SettingsError
from fedquorum.intake import shown

from client_app.app import node_of
from client_app.arithmetic import ALONE, TOGETHER, Arithmetic, way_of
from client_app.data import FederatedData
from client_app.node import compute_device, trained_model
from client_app.tasks import build_task
from conf import Composed

_TOLD = ("version", "way", "device", "instructions")
"""What a manifest says of the arithmetic of earlier rounds."""


def arithmetic_of(
    composed: Composed, data: FederatedData, *, in_process: bool, device: str | None = None
) -> Arithmetic:
    """Return the arithmetic of a run that begins or goes on now.

    Where clients are elsewhere, ``device`` is what ``client.device=auto`` is there. If nobody
    knows, device and, unless all devices train the model alike, way are unknown.
    """
    client = composed.settings.client
    if client.device != "auto":
        device = client.device
    elif in_process:
        device = compute_device("auto").type
    model, task = trained_model(composed.settings, data), build_task(composed.settings, data)
    way = way_of(model, task, client.batching, device)
    if way is None and in_process:
        way = _tried(composed, data)
    compiled = client.compile and way in (TOGETHER, ALONE)
    here = in_process and device == "cpu"
    instructions = torch.backends.cpu.get_cpu_capability() if here else None
    return Arithmetic(
        way, device, client.threads_per_op, compiled=compiled, instructions=instructions
    )


def _tried(composed: Composed, data: FederatedData) -> str | None:
    """Return how the clients of this process train where only a trial tells."""
    try:
        node = node_of(composed.run_config)
        node.host(range(data.num_clients))
    except Exception:  # no GPU, or a client's data: the clients will say so themselves
        return None
    return node.trainer.way


def recorded(now: Arithmetic, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what the manifest says of a run's arithmetic.

    Parameters
    ----------
    now : Arithmetic
        Of the rounds to come.
    before : mapping, optional
        The manifest so far, of a run that goes on.

    Returns
    -------
    dict
        The fields of ``now``; ``same_bits``; and ``earlier``: version, way, device and instructions
        of earlier rounds, where they were others. Such a run promises no bits.
    """
    earlier: list[Any] = []
    same_bits = now.same_bits
    if before is not None:
        known = _known(before)
        earlier = [*known["earlier"]]
        moved = _unlike(known["device"], now.device) or _unlike(
            known["instructions"], now.instructions
        )
        if moved or _differs(known, now):
            earlier.append({key: known[key] for key in _TOLD})
        same_bits = None if known.get("same_bits") is None else same_bits
    return {**asdict(now), "same_bits": False if earlier else same_bits, "earlier": earlier}


def check_arithmetic(run: Path, before: Mapping[str, Any], now: Arithmetic, allowed: str) -> None:
    """Refuse to go on with a run by another arithmetic than it has had, unless that is said.

    Parameters
    ----------
    run : Path
        The run's directory.
    before : mapping
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
    known = _known(before)
    if allowed == "same" and _differs(known, now):
        raise SettingsError(
            f"engine.on_numerics_change must be any to resume a run of {_shown(known)} by "
            f"{_shown(asdict(now))}, which rounds otherwise, got same; to resume it all the same: "
            + shlex.join(["fedquorum", f"resume={run}", "engine.on_numerics_change=any"])
        )


def _known(before: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a manifest says of the arithmetic so far.

    Raises
    ------
    RunError
        If it says other things than one does.
    """
    known: dict[str, Any] = {**dict.fromkeys(_TOLD), "earlier": [], **before["arithmetic"]}
    texts = (known["way"], known["device"], known["instructions"])
    if (
        not isinstance(known["version"], int)
        or not all(text is None or isinstance(text, str) for text in texts)
        or not isinstance(known["earlier"], list)
    ):
        raise RunError(
            "the manifest's arithmetic must have a version, and its way, device and instructions "
            "must be texts or null, got "
            f"{shown(before['arithmetic'])}"
        )
    return known


def _differs(known: Mapping[str, Any], now: Arithmetic) -> bool:
    return known["version"] != now.version or _unlike(known["way"], now.way)


def _unlike(before: str | None, now: str | None) -> bool:
    """Say whether two that are known differ."""
    return None not in (before, now) and before != now


def _shown(arithmetic: Mapping[str, Any]) -> str:
    way = arithmetic["way"] or "way not known"
    return f"arithmetic {arithmetic['version']} ({way})"
