"""The GPU models: those that ship with the package, and those that a user describes in the same form."""

from collections.abc import Mapping
from functools import cache
from importlib import resources

from pydantic import Field

from adlro.core.errors import CatalogueError, ConfigError
from adlro.core.records import GpuModel
from adlro.core.toml import Schema, nearest, parse_toml


class GpuTable(Schema):
    """One [gpus.NAME] table. Rates are dense, links are both directions summed; leave out what is not known."""

    title: str
    vendor: str
    memory_gb: float = Field(gt=0)
    memory_bandwidth_gb_s: float = Field(gt=0)
    tdp_w: float = Field(gt=0)
    architecture: str = ""
    form_factor: str = ""
    launch_year: int | None = Field(None, ge=1999, le=2100)
    fp64_tflops: float | None = Field(None, gt=0)
    fp32_tflops: float | None = Field(None, gt=0)
    fp16_vector_tflops: float | None = Field(None, gt=0)
    fp16_tensor_tflops: float | None = Field(None, gt=0)
    memory_type: str = ""
    link_type: str | None = None
    link_gb_s: float | None = Field(None, gt=0)
    pcie: str = ""
    pcie_gb_s: float = Field(32.0, gt=0)
    aliases: list[str] = Field([])
    source: str = ""
    cells_without_a_page: list[str] = Field([])


class OwnGpuTable(GpuTable):
    """A model that a user adds: without an FP32 rate most families would have no speed on it."""

    fp32_tflops: float = Field(gt=0)


class GpuFile(Schema):
    """The file of the shipped models."""

    gpus: dict[str, GpuTable]


def gpu_from_table(name: str, table: GpuTable) -> GpuModel:
    """The record of one table."""
    figures = table.model_dump(exclude={"pcie", "aliases", "cells_without_a_page"})
    return GpuModel(
        name=name,
        aliases=tuple(table.aliases),
        cells_without_a_page=tuple(table.cells_without_a_page),
        **figures,
    )


@cache
def gpu_models() -> dict[str, GpuModel]:
    """The shipped models by name."""
    text = resources.files("adlro.catalogue").joinpath("gpus.toml").read_text(encoding="utf-8")
    tables = parse_toml(text, "gpus.toml", GpuFile).gpus
    return {name: gpu_from_table(name, table) for name, table in tables.items()}


def own_gpu_models(tables: Mapping[str, OwnGpuTable], where: str) -> dict[str, GpuModel]:
    """The models that a user's file adds; none may take a name that is in the catalogue already."""
    taken = dict(_names_of_shipped())
    own = {}
    for name, table in tables.items():
        own[name] = gpu_from_table(name, table)
        for word in own[name].words:
            if word in taken:
                raise ConfigError(
                    f"{where}: the name '{word}' of 'gpus.{name}' belongs to the model '{taken[word]}' already. "
                    "Choose another name."
                )
            taken[word] = name
    return own


def find_gpu(name: str, extra: Mapping[str, GpuModel] = {}) -> GpuModel:
    """The model of that name, title or alias, upper or lower case; `extra` are the user's own."""
    word = name.strip().lower()
    for model in extra.values():
        if word in model.words:
            return model
    if word in _names_of_shipped():
        return gpu_models()[_names_of_shipped()[word]]
    known = [*(word for model in extra.values() for word in model.words), *_names_of_shipped()]
    raise CatalogueError(
        f"there is no GPU model '{name}' in the catalogue.{nearest(name, known)} "
        "'adlro gpus' lists the models; a [gpus.NAME] table in the cluster file adds one."
    )


@cache
def _names_of_shipped() -> dict[str, str]:
    return {word: model.name for model in gpu_models().values() for word in model.words}
