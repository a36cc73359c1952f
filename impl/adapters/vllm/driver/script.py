"""A trace in a release's own words: a short program that uses vLLM alone."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.pool import Pool, Unfit
from kvexact.impl.adapters.vllm.driver.script_moves import moves
from kvexact.impl.adapters.vllm.driver.script_words import folded, imports, layers, written

_CONFIG = """
config = VllmConfig()
config.model_config = SimpleNamespace(dtype={dtype}, is_hybrid={hybrid}, use_mla=False, model="",
    max_model_len=64, get_total_num_kv_heads=lambda: 1, hf_config=SimpleNamespace())
cache = config.cache_config
cache.block_size, cache.num_gpu_blocks_override, cache.cache_dtype = {size}, {blocks}, "{type}"
{layout}
(stack := ExitStack()).enter_context(set_current_vllm_config(config))
"""
_RUNNER = """
attention = [[AttentionGroup({backend}, {names}, group.kv_cache_spec{of}, n)
              for name in group.layer_names{first}] for n, group in enumerate(groups)]
runner = object.__new__(GPUModelRunner)
vars(runner).update(device=torch.device(DEVICE), cache_config=cache, kv_cache_config=kv_config,
    attn_groups=attention, runner_only_attn_layers=set(), shared_kv_cache_layers={{}})
"""
_SCALES = """
def reach(view, block):  # addresses of a block's first byte and last element
    inner = sum((n - 1) * s for n, s in zip(view.shape[1:], view.stride()[1:]))
    return view[block].data_ptr(), view[block].data_ptr() + inner * view.element_size()
for name, view in views.items():
    impl = object.__new__(TritonAttentionImpl)
    impl._k_scale_cache, impl._v_scale_cache, impl._kv_quant_mode = None, None, {mode}
    impl._ensure_scale_caches(view)
    for scales, block in product((impl._k_scale_cache, impl._v_scale_cache), range(len(view))):
        (low, high), (first, last) = reach(view, block), reach(scales, block)
        if first < low or last > high:
            wrong.append(f"{name}, block {block}: scales {first - low:+}, in {high - low} bytes")
"""


def backends_of(pool: Pool) -> list[str]:
    """The backend of each layer, in the order of the layers."""
    of_name = {
        name: group.backend.__name__
        for of_group in pool.groups
        for group in of_group
        for name in group.layer_names
    }
    return [of_name[name] for name in pool.specs]


class Script:
    """What a trace comes to, for a geometry that a release has laid out.

    Args:
        call: the target's session; what it "shows", "scales" for views at opening, else "ops";
            "ops" as (kind, content) of "offload", "restore", "copy_blocks" and "zero", block ids
            in them.
    """

    def __init__(self, pool: Pool, call: dict[str, Any]) -> None:
        self._pool, self._call = pool, call
        self._geometry = pool.geometry

    def lines(self) -> dict[str, list[str]]:
        """Imports, and the scenario.

        Raises:
            Unfit: it cannot be told in this way.
        """
        scales = self._call["shows"] == "scales"
        parts = [
            self._config(),
            *self._planned(),
            *self._views(),
            "wrong, kept, events = [], {}, count()",
            *([self._scales()] if scales else moves(self._pool, self._call)),
            'sys.exit(print(*wrong or ["sound"], sep="\\n") or bool(wrong))',
        ]
        text = "\n".join(part.strip("\n") for part in parts)
        return {"imports": list(imports(text)), "scenario": text.splitlines()}

    def _config(self) -> str:
        config = self._pool.config
        order, known = self._geometry["order"], release.layouts()
        layout = f'cache.kv_cache_layout = "{order}"'
        if known is None:
            name = {**release.LEGACY, **release.LEGACY_CROSS}[order][0]
            layout = f'set_kv_cache_layout("{name}")'
        if config.model_config.is_hybrid:
            layout += '\ncache.mamba_cache_mode = "align"'
        return _CONFIG.format(
            dtype=config.model_config.dtype,
            hybrid=config.model_config.is_hybrid,
            size=config.cache_config.block_size,
            blocks=self._geometry["blocks"],
            type=config.cache_config.cache_dtype,
            layout=layout,
        )

    def _planned(self) -> Iterator[str]:
        specs = groupby(self._pool.specs.values())
        yield from layers([(spec, len(list(names))) for spec, names in specs])
        yield "groups = get_kv_cache_groups(config, specs)"
        yield "kv_config = get_kv_cache_config_from_groups(config, groups, 1 << 40)"

    def _views(self) -> Iterator[str]:
        sizes = [group["kernel_block_size"] for group in self._geometry["groups"]]
        if release.layouts() is not None:
            layout = f"KVCacheLayout.{self._geometry['order']}"
            yield f"views = allocate_kv_cache(kv_config, torch.device(DEVICE), {layout}, {sizes})"
            return
        unequal = any(hasattr(g.kv_cache_spec, "kv_cache_specs") for g in self._pool.kv_groups)
        backends = backends_of(self._pool)
        if len(set(backends)) > 1 and not unequal:
            raise Unfit("groups of several backends are not told")
        if len(set(backends)) > 1:
            yield folded(f"takes = dict(zip(specs, [{', '.join(backends)}]))")
        yield _RUNNER.format(
            backend=backends[0] if len(set(backends)) == 1 else "takes[name]",
            names="[name]" if unequal else "group.layer_names",
            of=".kv_cache_specs[name]" if unequal else "",
            first="" if unequal else "[:1]",
        )
        if self._pool.cross:
            yield "views, buffer, _ = runner.allocate_uniform_kv_caches("
            yield f"    kv_config, attention, cache.cache_dtype, torch.device(DEVICE), {sizes})"
        else:
            raw = "runner._allocate_kv_cache_tensors(kv_config)"
            yield f"views = runner._reshape_kv_cache_tensors({raw}, {sizes})"

    def _scales(self) -> str:
        shape = next(layer.shape for layer in self._pool.every_layer if layer.shape.scaled)
        return _SCALES.replace("{mode}", written(release.quant_mode(shape)))
