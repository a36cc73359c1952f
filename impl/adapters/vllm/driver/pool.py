"""A geometry as a release lays it out: specs, groups, configuration, memory, views."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from kvexact.impl.adapters.vllm.driver import release, rows, sparse
from kvexact.impl.adapters.vllm.driver.shapes import Shape, read_shapes
from kvexact.impl.adapters.vllm.driver.symbols import need

#: What a release refuses in words of its own.
REFUSALS = (AssertionError, NotImplementedError, ValueError, RuntimeError, KeyError)
_PLENTY = 1 << 40


class Unfit(Exception):
    """A geometry that this release would lay out otherwise, or not at all."""


@dataclass
class Layer:
    """A layer's name, and where the release has put it.

    Attributes:
        view: a tensor [block, head, token, content], or of halves [block, 2, token, head, size];
            of states one tensor, or a list.
        scales: of keys and of values, [block, token, head]; None where there are none.
    """

    name: str
    shape: Shape
    spec: Any
    view: Any = None
    scales: tuple[Any, Any] | None = None


@dataclass
class Pool:
    """What a release made of a geometry.

    Attributes:
        layers: by group, layer set and layer.
        specs: what each layer publishes, by its name.
        kv_groups: the release's groups of them.
        cross: all layers lie in one buffer, in the way of the older releases.
        storages: the allocations, in the order of the pool.
    """

    geometry: dict[str, Any]
    config: Any
    kv_config: Any
    specs: dict[str, Any]
    kv_groups: list[Any]
    layers: list[list[list[Layer]]]
    groups: list[list[Any]]
    cross: bool
    views: dict[str, Any] = field(default_factory=dict)
    buffer: Any = None
    storages: list[Any] = field(default_factory=list)

    @property
    def every_layer(self) -> list[Layer]:
        return [layer for group in self.layers for shape in group for layer in shape]

    @property
    def met(self) -> list[str]:
        """What this is an example of, once allocated."""
        specs = [*self.specs.values(), *(group.kv_cache_spec for group in self.kv_groups)]
        met = {f"spec {type(spec).__name__}" for spec in specs}
        met |= {"one buffer of all layers"} if self.cross else set()
        layers = {len(group.layer_names) for group in self.kv_groups}
        met |= {"unequal groups"} if len(layers) > 1 else set()
        met |= {"scales on first use"} if any(one.scales for one in self.every_layer) else set()
        return sorted(met)

    def allocate(self) -> None:
        """Memory, views, and the scale views that first use makes.

        Raises:
            Unfit: the release says that it has no such views.
        """
        sizes = [group["kernel_block_size"] for group in self.geometry["groups"]]
        try:
            self.views, self.buffer = release.allocate(
                self.config, self.kv_config, self.groups, sizes, cross=self.cross
            )
        except ValueError as error:
            if any(layer.shape.is_row for layer in self.every_layer):
                raise  # their views are in no user's hand
            raise Unfit(f"ValueError: {error}") from error
        seen: dict[int, Any] = {}
        for layer in self.every_layer:
            layer.view = self.views[layer.name]
            first = layer.view[0] if isinstance(layer.view, list) else layer.view
            storage = first.untyped_storage()
            seen.setdefault(storage.data_ptr(), storage)
        self.storages = list(seen.values())
        for layer in self.every_layer:
            if layer.shape.scaled:
                layer.scales = release.scale_views(layer.view, layer.shape)


def lay_out(geometry: dict[str, Any], *, prefers_one_buffer: bool) -> Pool:
    """What a release resolves for a geometry, without memory.

    Raises:
        Unfit: it would be laid out otherwise, or refuses it.
    """
    shapes = [read_shapes(group) for group in geometry["groups"]]
    config = configuration(geometry, shapes)
    try:
        release.set_layout(config, geometry["order"])
        specs, names = _specs(geometry, shapes, config)
        groups = release.planning("get_kv_cache_groups")(config, dict(specs))
        _same_groups(geometry, shapes, groups, names)
        kv_config = release.planning("get_kv_cache_config_from_groups")(config, groups, _PLENTY)
    except REFUSALS as error:
        raise Unfit(f"{type(error).__name__}: {error}") from error
    layers = _layers(shapes, groups)
    attention = _attention_groups(geometry, groups, names)
    _same_kernel_blocks(geometry, kv_config, attention)
    cross = release.shares_one_buffer(attention, prefers=prefers_one_buffer)
    known = release.layouts()
    if known is None:
        side_by_side = cross or release.is_one_buffer(kv_config)
        expected = release.LEGACY_CROSS if side_by_side else release.LEGACY
        if geometry["order"] not in expected:
            raise Unfit(f"this release lays these layers out as {' or '.join(expected)}")
    return Pool(geometry, config, kv_config, specs, groups, layers, attention, cross)


def configuration(geometry: dict[str, Any], shapes: list[list[Shape]]) -> Any:
    """The engine's configuration for a geometry."""
    config = need("vllm.config:VllmConfig")()
    every = [shape for group in shapes for shape in group]
    types = {shape.cache_dtype for shape in every if not shape.is_state} - {"auto"}
    if len(types) > 1:
        raise Unfit("one cache has one type")
    dtypes = {shape.model_dtype for shape in every if shape.model_dtype} or {torch.bfloat16}
    if len(dtypes) > 1:
        raise Unfit("one model has one type")
    first = geometry["groups"][0]
    config.model_config = SimpleNamespace(
        model="kvexact",
        dtype=dtypes.pop(),
        use_mla=any(shape.is_latent for shape in every),
        max_model_len=64,
        original_max_model_len=64,
        is_hybrid=any(shape.is_state for shape in every),
        get_total_num_kv_heads=lambda: every[0].kv_heads,
        get_num_kv_heads=lambda *_: every[0].kv_heads,
        supports_kv_cache_grouping=False,
        hf_config=SimpleNamespace(model_type="kvexact"),
    )
    cache = config.cache_config
    cache.block_size = first["block_size"]
    cache.cache_dtype = types.pop() if types else "auto"
    cache.num_gpu_blocks_override = geometry["blocks"]
    cache.mamba_cache_mode = "align"
    cache.enable_prefix_caching = True
    return config


def _specs(
    geometry: dict[str, Any], shapes: list[list[Shape]], config: Any
) -> tuple[dict[str, Any], dict[str, Shape]]:
    """Specs and shapes, each of one layer, by its name; a release pads attention itself."""
    specs: dict[str, Any] = {}
    names: dict[str, Shape] = {}
    full = next((g for g, of_group in enumerate(shapes) if not of_group[0].is_state), 0)
    for g, group in enumerate(geometry["groups"]):
        size = _natural_block_size(geometry, g, shapes)
        kind = _kind(g - full, geometry["blocks"])
        for shape in shapes[g]:
            own = _backend_of(geometry, group, shape)
            for _ in range(shape.layers):
                name = f"model.layers.{len(specs)}.attn"
                if sparse.is_sparse(geometry):
                    spec = sparse.spec(name, group, shape, config, own)
                elif shape.is_state:
                    spec = release.state_spec(shape, group["block_size"])
                elif shape.is_row:
                    spec = rows.spec(shape, config, size, kind, own)
                else:
                    spec = release.attention_spec(shape, size, kind, own)
                specs[name], names[name] = spec, replace(shape, layers=1)
    return specs, names


def _kind(number: int, blocks: int) -> int:
    """What a group attends to: all, a window, then local chunks, or where blocks are odd a window.

    A geometry has no word for it; most models have several groups with the same window.
    """
    return min(number, 1 if blocks % 2 else 2)


def _backend_of(geometry: dict[str, Any], group: dict[str, Any], shape: Shape) -> Any:
    """The backend of a group's layer set, whose kernels take the blocks of the group."""
    if sparse.is_sparse(geometry):
        return sparse.backend(group, shape)
    own = rows.backend(shape.page_format) if shape.is_row else release.backend()
    kernel = group["kernel_block_size"]
    return own if kernel == group["block_size"] else release.with_kernel_blocks(own, kernel)


def _natural_block_size(geometry: dict[str, Any], g: int, shapes: list[list[Shape]]) -> int:
    """The block size that a user asked for: the least, as groups of small pages get larger ones."""
    sizes = [
        group["block_size"]
        for group, of_group in zip(geometry["groups"], shapes, strict=True)
        if not of_group[0].is_state
    ]
    return int(min(sizes, default=geometry["groups"][g]["block_size"]))


def _same_groups(
    geometry: dict[str, Any],
    shapes: list[list[Shape]],
    groups: list[Any],
    names: dict[str, Shape],
) -> None:
    """That the release groups layers as the geometry does.

    Raises:
        Unfit: it does not.
    """
    if len(groups) != len(shapes):
        raise Unfit(f"this release makes {len(groups)} groups of these layers")
    for group, found, of_group in zip(geometry["groups"], groups, shapes, strict=True):
        wanted = [replace(shape, layers=1) for shape in of_group for _ in range(shape.layers)]
        if [names[name] for name in found.layer_names] != wanted:
            raise Unfit("this release groups other layers")
        for shape, spec in zip(of_group, _set_specs(found, of_group), strict=True):
            if spec.block_size != group["block_size"]:
                raise Unfit(f"this release makes blocks of {spec.block_size} tokens")
            padded = getattr(spec, "page_size_padded", None) or 0
            if padded != shape.page_bytes:
                raise Unfit(f"this release pads pages to {padded} bytes")


def _set_specs(group: Any, shapes: list[Shape]) -> list[Any]:
    """The spec of each layer set."""
    each = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    if each is None:
        return [group.kv_cache_spec] * len(shapes)
    specs, start = [], 0
    for shape in shapes:
        specs.append(each[group.layer_names[start]])
        start += shape.layers
    return specs


def _layers(shapes: list[list[Shape]], groups: list[Any]) -> list[list[list[Layer]]]:
    layers = []
    for found, of_group in zip(groups, shapes, strict=True):
        names = iter(found.layer_names)
        specs = _set_specs(found, of_group)
        layers.append(
            [
                [Layer(next(names), shape, spec) for _ in range(shape.layers)]
                for shape, spec in zip(of_group, specs, strict=True)
            ]
        )
    return layers


def _same_kernel_blocks(
    geometry: dict[str, Any], kv_config: Any, attention: list[list[Any]]
) -> None:
    """That the release cuts blocks for kernels as the geometry does.

    Raises:
        Unfit: it does not.
    """
    wanted = [group["kernel_block_size"] for group in geometry["groups"]]
    try:
        found = release.kernel_block_sizes(kv_config, attention)
    except REFUSALS as error:
        raise Unfit(f"{type(error).__name__}: {error}") from error
    if found != wanted:
        raise Unfit(f"this release's kernels take blocks of {found} tokens")


def _attention_groups(
    geometry: dict[str, Any], groups: list[Any], shapes: dict[str, Shape]
) -> list[list[Any]]:
    """The groups' layers by backend and spec, as a runner keeps them."""
    attention: list[list[Any]] = []
    for number, group in enumerate(groups):
        each = getattr(group.kv_cache_spec, "kv_cache_specs", None)
        by_spec: dict[Any, list[str]] = {}
        for name in group.layer_names:
            by_spec.setdefault(each[name] if each else group.kv_cache_spec, []).append(name)
        of_group = geometry["groups"][number]
        attention.append(
            [
                release.attention_group(n, s, number, _backend_of(geometry, of_group, shapes[n[0]]))
                for s, n in by_spec.items()
            ]
        )
    return attention


def in_configuration(config: Any) -> Any:
    """Make it the current one, as code that is called by the engine finds it."""
    return need("vllm.config:set_current_vllm_config")(config)
