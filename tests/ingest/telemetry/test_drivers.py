"""The drivers of this machine: stand-ins that answer as the libraries do, and a machine that has none."""

import builtins
import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from adlro.cli.app import run
from adlro.ingest.telemetry.amd import scrape_amdsmi
from adlro.ingest.telemetry.nvml import scrape_nvml


def fake_nvml(broken: tuple[str, ...] = ()) -> Any:
    """NVIDIA's module with one H100 behind it; its own constants and error, so that a wrong name shows."""
    answers: dict[str, Any] = {
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "device",
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=90, memory=40),
        "nvmlDeviceGetTemperature": 60,
        "nvmlDeviceGetTemperatureThreshold": 87,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=40 << 30, total=80 << 30),
        "nvmlDeviceGetPowerUsage": 350_000,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetClockInfo": 1500,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlShutdown": None,
    }
    module: Any = SimpleNamespace(NVMLError=pynvml.NVMLError)
    for name in dir(pynvml):
        if name.startswith("NVML_"):
            setattr(module, name, getattr(pynvml, name))

    def answering(name: str, answer: Any) -> Any:
        def call(*_: Any) -> Any:
            if name in broken:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer

        return call

    for name, answer in answers.items():
        assert hasattr(pynvml, name), f"nvidia-ml-py has no {name}"
        setattr(module, name, answering(name, answer))
    return module


def test_what_nvml_says_is_read_in_our_units() -> None:
    found = scrape_nvml(fake_nvml())
    values = {reading.metric: reading.value for reading in found}
    assert found.gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert values["utilisation"] == pytest.approx(0.9)
    assert values["memory_used"] == 40 * 1024
    assert values["power"] == 350.0
    assert values["sm_clock_max"] == 1980.0
    assert sum(found.lost.values()) == 0


def test_what_a_gpu_does_not_tell_is_counted() -> None:
    found = scrape_nvml(fake_nvml(broken=("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetPowerUsage")))
    assert found.lost == {
        "NVML does not tell power": 1,
        "NVML does not tell ecc_corrected": 1,
        "NVML does not tell ecc_uncorrected": 1,
    }


class AmdSmiError(Exception):
    """Stands for AmdSmiException."""


def fake_amdsmi() -> Any:
    """AMD's module with one MI300X behind it."""
    kinds = SimpleNamespace(HOTSPOT="hotspot", VRAM="vram")
    figures = SimpleNamespace(CURRENT="now", CRITICAL="limit")
    clock = {"clk": 1500, "max_clk": 2100}
    return SimpleNamespace(
        AmdSmiException=AmdSmiError,
        AmdSmiTemperatureType=kinds,
        AmdSmiTemperatureMetric=figures,
        AmdSmiClkType=SimpleNamespace(GFX="gfx", MEM="mem"),
        amdsmi_get_processor_handles=lambda: ["device"],
        amdsmi_get_gpu_asic_info=lambda _: {"market_name": "AMD Instinct MI300X"},
        amdsmi_get_gpu_device_uuid=lambda _: "uuid",
        amdsmi_get_gpu_activity=lambda _: {"gfx_activity": 70, "umc_activity": "N/A"},
        amdsmi_get_temp_metric=lambda _, sensor, what: {"now": 65, "limit": 100}[what],
        amdsmi_get_gpu_vram_usage=lambda _: {"vram_used": 1000, "vram_total": 196592},
        amdsmi_get_power_info=lambda _: {"current_socket_power": "N/A", "average_socket_power": 400},
        amdsmi_get_clock_info=lambda _, kind: clock,
        amdsmi_get_gpu_total_ecc_count=lambda _: {"correctable_count": 2, "uncorrectable_count": 0},
        amdsmi_shut_down=lambda: None,
    )


def test_what_amd_smi_says_is_read_in_our_units() -> None:
    found = scrape_amdsmi(fake_amdsmi())
    values = {reading.metric: reading.value for reading in found}
    assert values["utilisation"] == pytest.approx(0.7)
    assert (values["temperature"], values["temperature_limit"]) == (65.0, 100.0)
    assert values["power"] == 400.0
    assert "memory_busy" not in values
    assert found.lost == {"AMD SMI does not tell memory_busy": 1}


@pytest.mark.parametrize(("flag", "module"), [("--nvml", "pynvml"), ("--amdsmi", "amdsmi")])
def test_a_missing_package_is_one_line_and_exit_code_1(
    flag: str, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert run(["ingest", flag]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "is not installed: pip install 'adlro[" in said.err


def test_a_machine_without_nvidias_driver_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    assert run(["ingest", "--nvml"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no NVIDIA driver answers on this machine" in said


def test_a_machine_without_amds_library_is_told_although_its_module_raises_what_it_likes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = builtins.__import__

    def importing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "amdsmi":
            raise KeyError("libamd_smi.so")
        return usual(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    monkeypatch.setattr(builtins, "__import__", importing)
    assert run(["ingest", "--amdsmi"]) == 1
    assert "no AMD driver or library answers on this machine (libamd_smi.so)" in capsys.readouterr().err
