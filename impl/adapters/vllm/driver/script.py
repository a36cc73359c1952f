"""A trace in a release's own words: a short program that uses vLLM alone."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from inspect import getsource
from itertools import groupby
from typing import Any

import torch

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.facts import HostRows
from kvexact.impl.adapters.vllm.driver.offload import chunked, extra_config, transfers
from kvexact.impl.adapters.vllm.driver.pool import Pool, Unfit
from kvexact.impl.adapters.vllm.driver.symbols import find, need

#: Whatever a program may import, each from the first place that has it.
_NAMES = (
    "vllm.config:VllmConfig",
    "vllm.config:KVTransferConfig",
    "vllm.config:set_current_vllm_config",
    "vllm.v1.attention.backends.utils:set_kv_cache_layout",
    "vllm.v1.attention.backends.triton_attn:TritonAttentionBackend",
    "vllm.v1.attention.backends.triton_attn:TritonAttentionImpl",
    "vllm.v1.core.kv_cache_planning:get_kv_cache_groups",
    "vllm.v1.core.kv_cache_planning:get_kv_cache_config_from_groups",
    "vllm.v1.core.kv_cache_utils:get_kv_cache_groups",
    "vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups",
    "vllm.v1.core.kv_cache_utils:KVCacheBlockCopy",
    "vllm.v1.kv_cache_interface:FullAttentionSpec",
    "vllm.v1.kv_cache_interface:SlidingWindowSpec",
    "vllm.v1.kv_cache_interface:MambaSpec",
    "vllm.v1.kv_cache_interface:KVQuantMode",
    "vllm.v1.kv_cache_layout:KVCacheLayout",
    "vllm.v1.worker.utils:AttentionGroup",
    "vllm.v1.worker.utils:allocate_kv_cache",
    "vllm.v1.worker.utils:copy_kv_cache_blocks_inplace",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
    "vllm.v1.kv_offload.base:GPULoadStoreSpec",
    "vllm.v1.kv_offload.cpu.common:CPULoadStoreSpec",
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorRole",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector:OffloadingConnector",
    "vllm.v1.simple_kv_offload.metadata:SimpleCPUOffloadMetadata",
    "vllm.v1.simple_kv_offload.worker:SimpleCPUOffloadWorker",
)
_CONFIG = """
config = VllmConfig()
config.model_config = SimpleNamespace(dtype={dtype}, is_hybrid={hybrid}, use_mla=False, model="",
    max_model_len=64, original_max_model_len=64, supports_kv_cache_grouping=False,
    get_num_kv_heads=lambda *_: 1, get_total_num_kv_heads=lambda: 1, hf_config=SimpleNamespace())
cache = config.cache_config
cache.block_size, cache.num_gpu_blocks_override, cache.cache_dtype = {size}, {blocks}, "{type}"
{layout}
(stack := ExitStack()).enter_context(set_current_vllm_config(config))
"""
_RUNNER = """
attention = [[AttentionGroup(TritonAttentionBackend, {names}, group.kv_cache_spec{of}, n)
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
_SIMPLE = """
worker = SimpleCPUOffloadWorker(config, kv_config, {capacity})
worker.register_kv_caches(views)
if worker.num_cpu_blocks != {slots}:
    wrong.append(f"{{worker.num_cpu_blocks}} host slots where {slots} blocks have room")
def move(event, side, blocks, slots):
    worker.bind_connector_metadata(SimpleCPUOffloadMetadata(**{{f"{{side}}_event": event,
        f"{{side}}_gpu_blocks": blocks, f"{{side}}_cpu_blocks": slots}}))
    worker.start_load_kv(), worker.wait_for_save(), worker.get_finished(set())
    worker.clear_connector_metadata()
    while worker._pending_store_event_indices or worker._pending_load_event_indices:
        worker.get_finished(set())
"""
_OFFLOAD = """
config.kv_transfer_config = KVTransferConfig(kv_connector="OffloadingConnector",
    kv_role="kv_both", engine_id=uuid.uuid4().hex, kv_connector_extra_config={extra})
connector = OffloadingConnector(config, KVConnectorRole.WORKER, kv_config)
{register}
worker = connector.connector_worker.worker
def move(job, side, blocks, sizes, parts, chunks):
    here, there = GPULoadStoreSpec(blocks, sizes, parts), CPULoadStoreSpec(chunks)
    {submit}
    while not worker.get_finished(): pass  # a list of what is done
"""
_BYTES = """
def fill():  # other random bytes everywhere
    for view in views.values():
        {empty}.set_({first}.untyped_storage()).random_(){wait}
def content(name, block):  # the bytes of a layer in a block
    {content}
def compare(name, block, want):
    if bad := int((content(name, block) != want).sum()):
        wrong.append(f"{{name}}, block {{block}}: {{bad}} bytes wrong")
fill()
"""
_PART = "{view}.unflatten(0, ({blocks}, -1))[block].flatten().view(torch.uint8).clone()"
_WIDTH = 100


class Script:
    """What a trace comes to, for a geometry that a release has laid out.

    Args:
        shows: "scales" for views at opening; "slots" for a connector at opening; else "ops".
        ops: (kind, content) of "offload", "restore" and "copy_blocks", block ids in them.
    """

    def __init__(self, pool: Pool, call: dict[str, Any]) -> None:
        self._pool, self._call = pool, call
        self._geometry = pool.geometry
        self._cuda: bool = call["device"] == "cuda"

    def lines(self) -> dict[str, list[str]]:
        """Imports, and the scenario.

        Raises:
            Unfit: it cannot be told in this way.
        """
        parts = [
            self._config(),
            *self._layers(),
            *self._views(),
            *(self._scales() if self._call["shows"] == "scales" else self._moves()),
            'sys.exit(print(*wrong or ["sound"], sep="\\n") or bool(wrong))',
        ]
        text = "\n".join(part.strip("\n") for part in parts)
        return {"imports": list(_imports(text)), "scenario": text.splitlines()}

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

    def _layers(self) -> Iterator[str]:
        start = 0
        for spec, names in groupby(self._pool.specs.values()):
            count = len(list(names))
            operator = "|=" if start else "="
            where = f"for n in range({start}, {start + count})"
            yield _folded(
                f'specs {operator} {{f"model.layers.{{n}}.attn": {_source(spec)} {where}}}'
            )
            start += count
        yield "groups = get_kv_cache_groups(config, specs)"
        yield "kv_config = get_kv_cache_config_from_groups(config, groups, 1 << 40)"

    def _views(self) -> Iterator[str]:
        sizes = [group["kernel_block_size"] for group in self._geometry["groups"]]
        if release.layouts() is not None:
            layout = f"KVCacheLayout.{self._geometry['order']}"
            yield f"views = allocate_kv_cache(kv_config, torch.device(DEVICE), {layout}, {sizes})"
        else:
            unequal = any(hasattr(g.kv_cache_spec, "kv_cache_specs") for g in self._pool.kv_groups)
            yield _RUNNER.format(
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
        yield "wrong, kept = [], {}"

    def _scales(self) -> Iterator[str]:
        shape = next(layer.shape for layer in self._pool.every_layer if layer.shape.scaled)
        yield _SCALES.replace("{mode}", _value(release.quant_mode(shape)))

    @property
    def _has_states(self) -> bool:
        return any(layer.shape.is_state for layer in self._pool.every_layer)

    def _moves(self) -> Iterator[str]:
        wait = "; torch.cuda.synchronize()" if self._cuda else ""
        if self._call["target"] != "views" and any(
            k != "copy_blocks" for k, _ in self._call["ops"]
        ):
            yield self._connector()
        lists = release.layouts() is None and self._has_states
        part = _PART.format(
            view="view" if lists else "views[name]", blocks=self._geometry["blocks"]
        )
        yield _BYTES.format(
            empty="torch.empty(0, dtype=torch.uint8, device=DEVICE)",
            first="(view[0] if isinstance(view, list) else view)" if lists else "view",
            content=f"parts = views[name] if isinstance(views[name], list) else [views[name]]\n"
            f"    return torch.cat([{part} for view in parts])"
            if lists
            else f"return {part}",
            wait=wait,
        )
        for number, (kind, what) in enumerate(self._call["ops"]):
            yield from (
                self._copies(what) if kind == "copy_blocks" else self._move(number, kind, what)
            )

    def _connector(self) -> str:
        capacity = HostRows.of(self._pool).capacity_bytes
        if self._call["target"] == "simple":
            return _SIMPLE.format(capacity=capacity, slots=self._call["host_slots"])
        register = "connector.register_kv_caches(views)"
        if self._pool.cross:
            register = "connector.register_cross_layers_kv_cache(buffer, TritonAttentionBackend)"
        return _OFFLOAD.format(
            extra=extra_config(self._pool, capacity), register=register, submit=_submit()
        )

    def _move(self, number: int, kind: str, jobs: list[Any]) -> Iterator[str]:
        side = "store" if kind == "offload" else "load"
        moves = [(group, *move) for group, of_group in jobs for move in of_group]
        if self._call["target"] == "simple":
            calls: list[tuple[list[int], ...]] = [([m[1] for m in moves], [m[2] for m in moves])]
        else:
            parts, groups = self._geometry["host"]["chunk_blocks"], len(self._pool.layers)
            calls = [chunked(taken, groups) for taken in transfers(jobs, parts)]
        called = [
            f'move({10 * number + n + 1}, "{side}", {", ".join(map(str, call))})'
            for n, call in enumerate(calls)
        ]
        loop = f"for g, b, s, p in {moves} for n in groups[g].layer_names"
        if side == "store":
            yield _folded("kept |= {(s, p, n): content(n, b) " + loop + "}")
            yield from [*called[:-1], f"{called[-1]}; fill()"]
        else:
            yield from called
            yield _folded(f"[compare(n, b, kept[s, p, n]) {loop}]")

    def _copies(self, copies: list[Any]) -> Iterator[str]:
        group, pairs = copies
        yield f"for source, target in {pairs}:"
        yield f"    want = {{n: content(n, source) for n in groups[{group}].layer_names}}"
        yield "    pair = KVCacheBlockCopy(source, target)"
        yield "    copy_kv_cache_blocks_inplace(list(views.values()), kv_config.num_blocks, [pair])"
        yield "    [compare(name, target, data) for name, data in want.items()]"


def _submit() -> str:
    """The line that submits a transfer."""
    source = getsource(need("vllm.v1.kv_offload.cpu.gpu_worker"))
    if "def submit_store" in source:
        return (
            'worker.submit_store(job, here, there) if side == "store" '
            "else worker.submit_load(job, there, here)"
        )
    return 'worker.transfer_async(job, (here, there) if side == "store" else (there, here))'


def _imports(text: str) -> Iterator[str]:
    done = set()
    for place in _NAMES:
        module, _, name = place.partition(":")
        if name not in done and re.search(rf"\b{name}\b", text) and find(place) is not None:
            done.add(name)
            yield f"from {module} import {name}"


def _source(spec: Any) -> str:
    """A spec as it would be written, defaults left out."""
    given = []
    for one in fields(spec):
        value = getattr(spec, one.name)
        default = one.default
        if one.init and (default is MISSING or value != default):
            given.append(f"{one.name}={_value(value)}")
    return f"{type(spec).__name__}({', '.join(given)})"


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_value(item)}, " for item in value) + ")"
    if isinstance(value, torch.dtype | int | str | float | None):
        return repr(value)
    raise Unfit(f"{type(value).__name__} cannot be written down")


def _folded(line: str) -> str:
    return "\n".join(textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False))
