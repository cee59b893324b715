"""Test the manifest's entry for the clients' arithmetic."""

from pathlib import Path

import pytest
import torch
from fedquorum.errors import SettingsError

import server_app.runs.numerics
from client_app.data import load_data
from client_app.training.numerics import NUMERICS_VERSION, NumericsInfo
from conf import compose_settings
from server_app.runs.numerics import build_manifest_entry, check_numerics, detect_numerics

SMALL = "data=synth data.num_clients=3 data.num_priority=1 data.sizes=equal"
NO_CLOSED_FORM = (
    "model=module model.path=torch.nn.Linear 'model.args={in_features: 60, out_features: 10}'"
)


def detect(overrides: str, *, in_process: bool = True) -> NumericsInfo:
    composed = compose_settings("custom", f"{SMALL} {overrides}")
    data = load_data(composed.settings.data, composed.settings.seed)
    return detect_numerics(composed, data, in_process=in_process)


@pytest.mark.parametrize(
    ("overrides", "in_process", "mode", "device", "same_bits"),
    [
        ("client.device=cpu", True, "batched, closed form", "cpu", True),
        ("client.device=cpu client.batching=sequential", True, "batched, closed form", "cpu", True),
        ("client.device=cpu", False, "batched, closed form", "cpu", True),
        ("", False, "batched, closed form", None, None),
        (f"client.device=cpu {NO_CLOSED_FORM}", True, "sequential, autograd", "cpu", True),
        (f"client.device=cpu {NO_CLOSED_FORM}", False, "sequential, autograd", "cpu", True),
        (NO_CLOSED_FORM, False, None, None, None),
        (f"{NO_CLOSED_FORM} client.batching=sequential", False, None, None, None),
        (
            f"client.device=cpu client.batching=batched {NO_CLOSED_FORM}",
            True,
            "batched, autograd",
            "cpu",
            False,
        ),
        ("client.device=cuda", False, "batched, closed form", "cuda", False),
    ],
)
def test_the_server_detects_the_arithmetic(
    overrides: str, in_process: bool, mode: str | None, device: str | None, same_bits: bool | None
) -> None:
    """In process all facts are known; elsewhere only those that settings and model determine."""
    arithmetic = detect(f"{overrides} client.threads_per_op=2", in_process=in_process)
    on_this_cpu = in_process and device == "cpu"
    instructions = torch.backends.cpu.get_cpu_capability() if on_this_cpu else None
    assert arithmetic == NumericsInfo(mode, device, 2, instructions=instructions)
    assert arithmetic.same_bits is same_bits
    assert arithmetic.version == NUMERICS_VERSION


def test_auto_in_process_is_the_device_of_this_process() -> None:
    """The clients train in this process."""
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert detect("").device == expected


def test_a_trial_detects_the_mode_only_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the mode is unknown, as it is if the trial fails."""
    overrides = f"client.device=cpu {NO_CLOSED_FORM}"
    monkeypatch.setattr(server_app.runs.numerics, "find_training_mode", lambda *_: None)
    assert detect(overrides).mode == "sequential, autograd"
    assert detect(overrides, in_process=False).mode is None

    def fail(_: object) -> None:
        raise SettingsError("there is no GPU")

    monkeypatch.setattr(server_app.runs.numerics, "get_node", fail)
    assert detect(overrides).mode is None


CPU = NumericsInfo("sequential, autograd", "cpu", 1, instructions="AVX2")


@pytest.mark.parametrize(
    ("before", "earlier", "same_bits"),
    [
        (NumericsInfo("sequential, autograd", "cpu", 1), 0, True),
        (NumericsInfo(None, None, 1), 0, None),
        (NumericsInfo("sequential, autograd", None, 1), 0, None),
        (NumericsInfo("sequential, autograd", "cuda", 1), 1, False),
        (NumericsInfo("batched, autograd", "cpu", 1), 1, False),
        (NumericsInfo("sequential, autograd", "cpu", 1, version=NUMERICS_VERSION - 1), 1, False),
        (NumericsInfo("sequential, autograd", "cpu", 1, instructions="AVX512"), 1, False),
    ],
)
def test_a_resumed_run_has_the_same_bits_only_if_all_rounds_do(
    before: NumericsInfo, earlier: int, same_bits: bool | None
) -> None:
    """Rounds with another arithmetic are recorded, also after the next resume."""
    first = build_manifest_entry(before)
    assert (first["same_bits"], first["earlier"]) == (before.same_bits, [])
    manifest = {"arithmetic": build_manifest_entry(CPU, {"arithmetic": first})}
    assert manifest["arithmetic"]["same_bits"] is same_bits
    assert len(manifest["arithmetic"]["earlier"]) == earlier
    assert build_manifest_entry(CPU, manifest) == manifest["arithmetic"]


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        (CPU, False),
        (NumericsInfo(None, None, 1), False),
        (NumericsInfo("batched, autograd", "cuda", 1), True),
        (NumericsInfo(None, None, 1, version=NUMERICS_VERSION + 1), True),
    ],
)
def test_another_version_or_mode_must_be_allowed(before: NumericsInfo, refused: bool) -> None:
    """Unknown facts are not compared."""
    manifest = {"arithmetic": build_manifest_entry(before)}
    check_numerics(Path("run"), manifest, CPU, "any")
    if not refused:
        check_numerics(Path("run"), manifest, CPU, "same")
        return
    with pytest.raises(
        SettingsError, match=r"^engine\.on_numerics_change must be any to resume .* got same"
    ):
        check_numerics(Path("run"), manifest, CPU, "same")


def test_compiled_models_do_not_promise_the_same_bits() -> None:
    """The code of ``torch.compile`` may depend on shapes that it saw before."""
    compiled = detect(f"client.device=cpu client.compile=true {NO_CLOSED_FORM}", in_process=False)
    assert compiled.same_bits is False
    assert detect("client.device=cpu client.compile=true", in_process=False).same_bits is True
