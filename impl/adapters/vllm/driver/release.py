"""What differs between releases: a table of probes, one function a row.

Each looks for a symbol, a field or an argument; none asks for a version. What a release has no word
for is left out; a symbol that cannot be done without is `Gone`.
"""

import inspect
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, get_args

import torch

from kvexact.impl.adapters.vllm.driver.shapes import Shape
from kvexact.impl.adapters.vllm.driver.symbols import accepted, find, first_of, need

_INTERFACE = "vllm.v1.kv_cache_interface"
_OFFLOADING = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"
#: Kinds of attention of a model's groups, and how many tokens the second one looks back.
_ATTENTION = ("FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec")
WINDOW = 16
#: The older layouts of a page by the orders of the newer ones; then with all layers side by side.
LEGACY = {"LBNHC": ("NHD", False), "LBHNC": ("HND", False)}
LEGACY_CROSS = {"BLNHC": ("NHD", True), "BHLNC": ("HND", True)}


def planning(name: str) -> Any:
    """A function that groups layers or sizes the pool."""
    return need(f"vllm.v1.core.kv_cache_planning:{name}", f"vllm.v1.core.kv_cache_utils:{name}")


@cache
def backend() -> Any:
    """The attention backend that publishes specs and views of keys and values."""
    return need("vllm.v1.attention.backends.triton_attn:TritonAttentionBackend")


@cache
def with_kernel_blocks(own: Any, kernel_block_size: int) -> Any:
    """A backend whose kernels take blocks of this size only, as some backends say."""
    sizes = staticmethod(lambda *_spec: [kernel_block_size])
    return type(own.__name__, (own,), {"get_supported_kernel_block_sizes": sizes})


def kernel_block_sizes(kv_config: Any, groups: list[list[Any]]) -> list[int]:
    """Tokens of a kernel's block in each group, as the runner chooses them."""
    choose = need("vllm.v1.worker.utils:prepare_kernel_block_sizes")
    return list(choose(kv_config, groups))


def layouts() -> Any:
    """The six layouts by name; None before them."""
    return find("vllm.v1.kv_cache_layout:KVCacheLayout")


def is_one_buffer(kv_config: Any) -> bool:
    """Whether all layers lie in one buffer by the configuration; a connector may ask for one too.

    So it is wherever there are layouts; once, where unequal pages lie side by side in a block.
    """
    strides = {getattr(tensor, "block_stride", 0) for tensor in kv_config.kv_cache_tensors}
    return layouts() is not None or strides != {0}


def splits_halves() -> bool:
    """Whether a page holds all keys before all values, by the shape that the backend publishes."""
    shape_of = getattr(backend(), "get_kv_cache_shape", None)
    if layouts() is not None or shape_of is None:
        return False
    return (
        len(shape_of(5, 16, 3, 64, cache_dtype_str="auto")) == 5
    )  # blocks, halves, tokens, heads, size


def row_alignment() -> int:
    """Bytes that rows of the host tier are a multiple of, on CUDA."""
    spec = need("vllm.v1.kv_offload.cpu.spec:CPUOffloadingSpec")
    return int(spec.BLOCK_SIZE_ALIGNMENT)


def knows(cache_dtype: str) -> bool:
    """Whether the backend takes this cache type."""
    return cache_dtype in getattr(backend(), "supported_kv_cache_dtypes", ())


def cache_types() -> list[str]:
    """What a user may write as the cache's type."""
    return sorted(get_args(need("vllm.config.cache:CacheDType")))


def spec_names() -> list[str]:
    """Kinds of layers, by the specs that a release has for them."""
    module = need(_INTERFACE)
    every = [one for one in vars(module).values() if isinstance(one, type)]
    bases = module.KVCacheSpec, module.AttentionSpec
    return sorted(one.__name__ for one in every if issubclass(one, bases[0]) and one not in bases)


def quant_mode(shape: Shape) -> Any:
    """The quantisation mode of a cache type; its number differs between releases."""
    return need(f"{_INTERFACE}:get_kv_quant_mode")(shape.cache_dtype)


def storage_dtype(shape: Shape) -> torch.dtype:
    """The type of a layer's view."""
    names = need("vllm.utils.torch_utils:STR_DTYPE_TO_TORCH_DTYPE")
    found: torch.dtype = shape.model_dtype or names[shape.cache_dtype]
    return found


def attention_spec(shape: Shape, block_size: int, kind: int, own: Any) -> Any:
    """What a layer of keys and values publishes.

    Args:
        kind: 0 full, 1 with a window, 2 in local chunks.
    """
    made = need(f"{_INTERFACE}:{_ATTENTION[kind]}")
    given = {
        "block_size": block_size,
        "num_kv_heads": shape.kv_heads,
        "head_size": shape.head_size_k,
        "head_size_v": shape.head_size_v,
        "dtype": storage_dtype(shape),
        "kv_quant_mode": quant_mode(shape),
        "sliding_window": WINDOW if kind else None,
        "attention_chunk_size": WINDOW * kind or None,
    }
    return completed(made(**accepted(made, given)), own)


def completed(spec: Any, own: Any) -> Any:
    """What a layer publishes, as the runner and its backend complete it."""
    if "indexes_kv_by_block_stride" in spec.__dataclass_fields__:
        spec = replace(spec, indexes_kv_by_block_stride=own.indexes_kv_by_block_stride())
    complete = find("vllm.v1.worker.utils:customize_attention_spec")
    if complete is not None:
        return complete(own, spec)
    customize = getattr(own, "customize_spec", None)
    return customize(spec) if customize is not None else spec


def state_spec(shape: Shape, block_size: int) -> Any:
    """What a layer of states publishes; padded already, as platforms give it attention's page."""
    made = need(f"{_INTERFACE}:MambaSpec")
    shapes, dtypes = shape.states()
    return made(
        block_size=block_size,
        shapes=shapes,
        dtypes=dtypes,
        page_size_padded=shape.page_bytes or None,
        mamba_cache_mode="align",
    )


def content_bytes(spec: Any) -> int | None:
    """Bytes of a page without padding, where a release has a word for it that counts scales."""
    found: int | None = getattr(spec, "unpadded_page_size_bytes", None)
    if found is None and hasattr(spec, "shapes"):
        found = replace(spec, page_size_padded=None).page_size_bytes
    return found


def attention_group(names: list[str], spec: Any, group_id: int, own: Any) -> Any:
    """Layers of a group that share a backend."""
    made = need("vllm.v1.worker.utils:AttentionGroup")
    return made(own if hasattr(spec, "num_kv_heads") else None, names, spec, group_id)


def set_layout(config: Any, order: str) -> None:
    """What the engine resolves, or a user sets."""
    known = layouts()
    if known is not None:
        config.cache_config.kv_cache_layout = known[order].name
        return
    set_legacy = need("vllm.v1.attention.backends.utils:set_kv_cache_layout")
    set_legacy({**LEGACY, **LEGACY_CROSS}[order][0])


def allocate(
    config: Any, kv_config: Any, groups: list[list[Any]], kernel_sizes: list[int], *, cross: bool
) -> tuple[dict[str, Any], Any]:
    """Memory and views of every layer; and the buffer of all layers, where they share one."""
    device = torch.device("cpu")
    whole = find("vllm.v1.worker.utils:allocate_kv_cache")
    if whole is not None:
        layout = layouts()[config.cache_config.kv_cache_layout]
        return whole(kv_config, device, layout, kernel_sizes), None
    runner = object.__new__(need("vllm.v1.worker.gpu_model_runner:GPUModelRunner"))
    vars(runner).update(
        device=device,
        cache_config=config.cache_config,
        kv_cache_config=kv_config,
        attn_groups=groups,
        runner_only_attn_layers=set(),
        shared_kv_cache_layers={},
    )
    if cross:
        dtype = config.cache_config.cache_dtype
        views, buffer, _ = runner.allocate_uniform_kv_caches(
            kv_config, groups, dtype, device, kernel_sizes
        )
        return views, buffer
    raw = runner._allocate_kv_cache_tensors(kv_config)
    return runner._reshape_kv_cache_tensors(raw, kernel_sizes), None


def shares_one_buffer(groups: list[list[Any]], *, prefers: bool) -> bool:
    """Whether a release lays all layers of a block side by side for a connector that prefers it."""
    module: Any = find("vllm.v1.worker.kv_connector_model_runner_mixin")
    mixin: Any = getattr(module, "KVConnectorModelRunnerMixin", None)
    if not prefers or not hasattr(mixin, "use_uniform_kv_cache"):
        return False
    module.has_kv_transfer_group = lambda: True
    module.get_kv_transfer_group = lambda: SimpleNamespace(prefer_cross_layer_blocks=True)
    return bool(mixin.use_uniform_kv_cache(groups))


def scale_views(layer: Any, shape: Shape) -> tuple[Any, Any]:
    """The views of scales as the backend makes them on first use: [block, token, head]."""
    impl = object.__new__(need("vllm.v1.attention.backends.triton_attn:TritonAttentionImpl"))
    impl._k_scale_cache = impl._v_scale_cache = None
    impl._kv_quant_mode = quant_mode(shape)
    impl._ensure_scale_caches(layer)
    return impl._k_scale_cache, impl._v_scale_cache


def connector(config: Any, kv_config: Any) -> Any:
    """The offloading connector as a worker makes it."""
    made = need(
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector:OffloadingConnector"
    )
    role = need("vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorRole").WORKER
    return made(config, role, kv_config)


def prefers_one_buffer() -> bool:
    """Whether the offloading connector asks for all layers of a block side by side."""
    made = need(
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector:OffloadingConnector"
    )
    return hasattr(made, "register_cross_layers_kv_cache")


def host_rows(spec: Any) -> tuple[int, int]:
    """Bytes of a host row and their number, as the scheduler's side counts them."""
    row = first_of(spec, "kv_bytes_per_chunk", "kv_bytes_per_offloaded_block")
    return row, first_of(spec, "num_chunks", "num_blocks")


def handlers(worker: Any) -> tuple[Any, Any]:
    """What stores and what loads, of a worker of the offloading connector."""
    if hasattr(worker, "_store_handler"):
        return worker._store_handler, worker._load_handler
    store, load = sorted(worker.handlers, key=lambda handler: not handler.gpu_to_cpu)
    return store, load


def submit(worker: Any, job: int, device_side: Any, host_side: Any, *, store: bool) -> None:
    """Start a transfer."""
    if hasattr(worker, "submit_store"):
        done = (
            worker.submit_store(job, device_side, host_side)
            if store
            else worker.submit_load(job, host_side, device_side)
        )
    else:
        sides = (device_side, host_side) if store else (host_side, device_side)
        done = worker.transfer_async(job, sides)
    assert done, "a transfer was not taken"


def chunk_option(tokens: int, blocks: int) -> dict[str, int]:
    """How a user asks for chunks of several blocks."""
    module = find(f"{_OFFLOADING}.config")
    if module is not None and "blocks_per_chunk" in inspect.getsource(module):
        return {"blocks_per_chunk": blocks}
    return {"block_size": tokens * blocks}


def request_context(name: str) -> Any:
    """What the offloading manager is told of a request."""
    return need("vllm.v1.kv_offload.base:ReqContext")(req_id=name)


def offload_key(context: Any, digest: bytes, group: int, end: int) -> bytes:
    """A block's key; a request may know at which token it ends."""
    key: bytes = need("vllm.v1.kv_offload.base:make_offload_key")(digest, group)
    if hasattr(context, "set_offload_key_position"):
        context.set_offload_key_position(key, end)
    return key


def is_hit(found: Any) -> bool:
    """Whether a key is there and loadable, by what a lookup found: once a truth value."""
    return found is True or getattr(found, "name", "") == "HIT"


def version() -> str:
    """The release's own number; empty where a checkout has none."""
    return str(find("vllm._version:__version__", "vllm.version:__version__") or "")
