"""What hardware does with an option: remarks, and options that are switched off or refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from clew.config.load import load
from clew.errors import ConfigError
from clew.training.hardware import Hardware, fit_to_hardware
from clew.training.precision import variant_name

CPU = Hardware(
    "a processor",
    torch.device("cpu"),
    float16=False,
    bfloat16=False,
    tf32=False,
    compiles_bfloat16=False,
)
WITH_UNITS = replace(CPU, bfloat16=True, compiles_bfloat16=True)
HALF = {"optimizations.use_mixed_precision": True}
FLOAT16 = HALF | {"optimizations.mixed_precision_dtype": "float16"}
BFLOAT16 = HALF | {"optimizations.mixed_precision_dtype": "bfloat16"}


def gpu(name: str) -> Hardware:
    return Hardware.named(name, torch.device("cuda"))


@pytest.mark.parametrize(
    ("hardware", "settings", "remarks"),
    [
        (CPU, {}, 0),
        (CPU, HALF, 1),
        (CPU, FLOAT16, 1),
        (WITH_UNITS, HALF, 0),
        (WITH_UNITS, FLOAT16, 1),
        (gpu("Tesla T4"), HALF, 0),  # float16
        (gpu("Tesla T4"), BFLOAT16, 1),
        (gpu("NVIDIA A100-SXM4-40GB"), BFLOAT16, 0),
        (gpu("a card of tomorrow"), BFLOAT16, 0),
    ],
)
def test_half_precision_without_units_stays_and_says_its_cost(
    hardware: Hardware, settings: dict[str, Any], remarks: int
) -> None:
    config = load("umls", settings)
    fitted, lines = fit_to_hardware(config, hardware)
    assert fitted == config
    assert len(lines) == remarks
    assert all(hardware.name in line for line in lines)
    assert fit_to_hardware(config, hardware, strict=True)[0] == config


@pytest.mark.parametrize(
    ("hardware", "settings", "key", "value"),
    [
        (CPU, HALF | {"optimizations.torch_compile": True}, "torch_compile", False),
        (
            WITH_UNITS,
            HALF
            | {
                "optimizations.torch_compile": True,
                "optimizations.torch_compile_mode": "reduce-overhead",
            },
            "torch_compile_mode",
            "default",
        ),
        (CPU, {"optimizations.use_tf32": True}, "use_tf32", False),
        (gpu("T4"), {"optimizations.use_tf32": True}, "use_tf32", False),
    ],
)
def test_an_option_that_cannot_pay_is_switched_off_or_refused(
    hardware: Hardware, settings: dict[str, Any], key: str, value: object
) -> None:
    config = load("umls", settings)
    fitted, lines = fit_to_hardware(config, hardware)
    assert getattr(fitted.optimizations, key) == value
    assert sum(f"optimizations.{key} is" in line for line in lines) == 1
    assert fit_to_hardware(fitted, hardware)[0] == fitted
    with pytest.raises(ConfigError) as refused:
        fit_to_hardware(config, hardware, strict=True)
    assert f"optimizations.{key}" in str(refused.value)


@pytest.mark.parametrize(
    ("hardware", "settings"),
    [
        (CPU, {"optimizations.torch_compile": True}),
        (WITH_UNITS, HALF | {"optimizations.torch_compile": True}),
        (gpu("A100"), HALF | {"optimizations.torch_compile": True, "optimizations.use_tf32": True}),
    ],
)
def test_an_option_that_may_pay_stays(hardware: Hardware, settings: dict[str, Any]) -> None:
    config = load("umls", settings)
    assert fit_to_hardware(config, hardware, strict=True) == (config, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [("mixed_precision_dtype", "bfloat16"), ("torch_compile_mode", "max-autotune")],
)
def test_the_setting_of_an_option_that_is_off_is_told(key: str, value: str) -> None:
    config = load("umls", {f"optimizations.{key}": value})
    (line,) = fit_to_hardware(config, WITH_UNITS)[1]
    assert f"optimizations.{key}" in line


def test_this_machine_is_described() -> None:
    here = Hardware.of(torch.device("cpu"))
    assert here.name
    assert not here.tf32


def test_tf32_products_are_a_variant_where_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    options = load("umls", {"optimizations.use_tf32": True}).optimizations
    for is_gpu, variant in ((True, "fp32+tf32"), (False, "fp32")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_gpu=is_gpu: is_gpu)
        assert variant_name(options, "fp32") == variant
