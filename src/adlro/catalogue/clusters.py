"""Clusters: those that ship with the package, and those that a user describes in a TOML file."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from adlro.catalogue.families import find_family
from adlro.catalogue.gpus import OwnGpuTable, find_gpu, own_gpu_models
from adlro.core.errors import CatalogueError, ConfigError
from adlro.core.records import Cluster, GpuModel, Gpus, Link, Node
from adlro.core.schema import properties_of
from adlro.core.toml import Schema, model_field, model_with, nearest, parse_toml

_MOST_GPUS: Final = 64
"""GPUs of one model on one node; the simulator keeps one bit for each in a 64-bit word."""

_MOST_NODES: Final = 100_000

_LINK_TYPES: Final = {"nvlink": "NVLink", "xgmi": "xGMI"}
"""How the datasheets begin the name of a link of that kind."""


class GpusTable(Schema):
    """GPUs of one model on a node: an entry of `gpus` where a node has several models."""

    model: str
    count: int = Field(ge=1, le=_MOST_GPUS)


_AMOUNTS: Final = tuple(each for each in properties_of(Node) if each.is_number)
"""Properties of a node that its entry gives as they are."""

PlainNode: Any = model_with("PlainNode", Schema, {each.name: model_field(each) for each in _AMOUNTS})


class NodesTable(PlainNode):  # type: ignore[misc]  # the amounts come from Node
    """One [[nodes]] entry: `count` machines alike."""

    name: str = Field(min_length=1)
    count: int = Field(1, ge=1, le=_MOST_NODES)
    gpu: str | None = None
    gpus: list[GpusTable] = Field([])
    link: Literal["nvlink", "xgmi", "pcie"] = "pcie"
    link_gb_s: float | None = Field(None, gt=0)

    @field_validator("gpus", mode="before")
    @classmethod
    def _count_or_list(cls, gpus: Any, info: ValidationInfo) -> Any:
        """`gpu` with a number of `gpus` is the short form of a list with one entry."""
        if isinstance(gpus, bool) or not isinstance(gpus, int):
            return gpus
        gpu = info.data.get("gpu")
        if gpu is None and gpus == 0:
            return []
        if not 1 <= gpus <= _MOST_GPUS:
            raise ValueError(
                f"{gpus} GPUs; expected a whole number from 1 to {_MOST_GPUS} (a node without GPUs has no such key)"
            )
        if gpu is None:
            raise ValueError(f'{gpus} GPUs without a model; add gpu = "NAME", or write a list of {{model, count}}')
        return [{"model": gpu, "count": gpus}]

    @model_validator(mode="after")
    def _one_form(self) -> "NodesTable":
        if self.gpu is not None and [entry.model for entry in self.gpus] != [self.gpu]:
            raise ValueError(
                "'gpu' needs gpus = N, a number; for several models leave 'gpu' out and write a list of {model, count}"
            )
        return self


class NetworkTable(Schema):
    """[network]: what joins the nodes."""

    kind: str
    gb_s: float = Field(gt=0)


class ClusterFile(Schema):
    """A cluster file."""

    name: str = Field(min_length=1)
    summary: str = ""
    network: NetworkTable
    nodes: list[NodesTable] = Field(min_length=1)
    gpus: dict[str, OwnGpuTable] = Field({})
    affinity: dict[str, list[str]] = Field({})


def cluster_names() -> list[str]:
    """The names of the shipped clusters, in alphabetical order."""
    return sorted(_shipped())


def load_cluster(name_or_path: str) -> Cluster:
    """A shipped cluster by name, or one from a path that ends in .toml."""
    if name_or_path in _shipped():
        return parse_cluster(_shipped()[name_or_path], f"{name_or_path}.toml")
    path = Path(name_or_path)
    if path.suffix != ".toml":
        raise CatalogueError(
            f"there is no cluster '{name_or_path}'.{nearest(name_or_path, cluster_names())} Clusters that ship: "
            f"{', '.join(cluster_names())}; a cluster of your own is a path that ends in .toml."
        )
    try:
        return parse_cluster(path.read_text(encoding="utf-8-sig"), name_or_path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise CatalogueError(f"cannot read the cluster file '{name_or_path}': {reason}.") from None


def parse_cluster(text: str, where: str) -> Cluster:
    """The cluster that a TOML text describes; `where` is the file's name for error messages."""
    return build_cluster(parse_toml(text, where, ClusterFile), where)


def build_cluster(file: ClusterFile, where: str) -> Cluster:
    """The cluster of a checked description; `where` says where that comes from, for error messages."""
    own = own_gpu_models(file.gpus, where)
    models = _models_of(file, own, where)
    nodes = tuple(node for index, table in enumerate(file.nodes) for node in _nodes(table, models, where, index))
    name, times = Counter(node.name for node in nodes).most_common(1)[0]
    if times > 1:
        raise ConfigError(f"{where}: {times} nodes are called '{name}'; give every [[nodes]] entry its own name.")
    return Cluster(
        name=file.name,
        summary=file.summary,
        nodes=nodes,
        network=Link(file.network.kind, file.network.gb_s),
        models={model.name: model for model in models.values()},
        affinity=_affinity(file, own, {model.name for model in models.values()}, where),
    )


@cache
def _shipped() -> dict[str, str]:
    """The text of every shipped cluster file, by name."""
    files = resources.files("adlro.catalogue").joinpath("clusters").iterdir()
    return {
        file.name.removesuffix(".toml"): file.read_text(encoding="utf-8")
        for file in files
        if file.name.endswith(".toml")
    }


def _models_of(file: ClusterFile, own: Mapping[str, GpuModel], where: str) -> dict[str, GpuModel]:
    """The models of the cluster, by the words that the file uses for them."""
    models: dict[str, GpuModel] = {}
    for index, table in enumerate(file.nodes):
        for gpus in table.gpus:
            try:
                models.setdefault(gpus.model, find_gpu(gpus.model, own))
            except CatalogueError as error:
                raise ConfigError(f"{where}: 'nodes[{index}].gpu': {error}") from None
    return models


def _affinity(
    file: ClusterFile, own: Mapping[str, GpuModel], present: set[str], where: str
) -> dict[str, tuple[str, ...]]:
    """The operator's map from families to models of this cluster, both by their names in the catalogue."""
    homes: dict[str, tuple[str, ...]] = {}
    for word, gpus in file.affinity.items():
        key = f"{where}: 'affinity.{word}'"
        try:
            family = find_family(word).name
            found = dict.fromkeys(find_gpu(gpu, own).name for gpu in gpus)
        except CatalogueError as error:
            raise ConfigError(f"{key}: {error}") from None
        if not found or (absent := [model for model in found if model not in present]):
            problem = f"names '{absent[0]}', which no node has" if found else "is empty"
            raise ConfigError(f"{key} {problem}; expected some of {', '.join(sorted(present)) or 'its GPU models'}.")
        if family in homes:
            raise ConfigError(f"{key} is the family '{family}', which is already in the table. Remove one of the two.")
        homes[family] = tuple(found)
    return homes


def _nodes(table: NodesTable, models: Mapping[str, GpuModel], where: str, index: int) -> Iterator[Node]:
    """The machines of one entry: volta0, volta1, … if there are several."""
    counts: Counter[str] = Counter()
    for entry in table.gpus:
        counts[models[entry.model].name] += entry.count
    if too_many := [model for model, count in counts.items() if count > _MOST_GPUS]:
        raise ConfigError(
            f"{where}: 'nodes[{index}].gpus' has {counts[too_many[0]]} GPUs of the model '{too_many[0]}'; "
            f"expected at most {_MOST_GPUS} on one node."
        )
    gpus = tuple(Gpus(model, count) for model, count in counts.items())
    link = Link(table.link, _link_gb_s(table, models, where, index))
    amounts = {each.name: getattr(table, each.name) for each in _AMOUNTS}
    for number in range(table.count):
        name = table.name if table.count == 1 else f"{table.name}{number}"
        yield Node(name=name, gpus=gpus, link=link, **amounts)


def _link_gb_s(table: NodesTable, models: Mapping[str, GpuModel], where: str, index: int) -> float:
    """Bandwidth of the link inside the node: as written, or the least that the datasheets of its GPUs give."""
    if table.link_gb_s is not None:
        return table.link_gb_s
    figures = []
    for entry in table.gpus:
        model = models[entry.model]
        figure = model.pcie_gb_s if table.link == "pcie" else model.link_gb_s
        fits = table.link == "pcie" or (model.link_type or _LINK_TYPES[table.link]).startswith(_LINK_TYPES[table.link])
        if figure is None or not fits:
            has = f"a link of type {model.link_type}" if model.link_type else "no link but PCIe"
            unknown = " of unknown bandwidth" if model.link_type and figure is None else ""
            raise ConfigError(
                f"{where}: 'nodes[{index}].link' is '{table.link}', but the datasheet of {model.title} has "
                f'{has}{unknown}; write link = "pcie", or give link_gb_s.'
            )
        figures.append(figure)
    return min(figures, default=OwnGpuTable.model_fields["pcie_gb_s"].default)
