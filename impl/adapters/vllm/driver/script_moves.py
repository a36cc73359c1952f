"""What of a program moves bytes: a connector, random bytes, transfers, block copies, comparison."""

from collections.abc import Iterator
from inspect import getsource, signature
from typing import Any

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.facts import HostRows
from kvexact.impl.adapters.vllm.driver.offload import chunked, extra_config, transfers
from kvexact.impl.adapters.vllm.driver.pool import Pool, Unfit
from kvexact.impl.adapters.vllm.driver.script_words import folded
from kvexact.impl.adapters.vllm.driver.simple import disk_options, is_on_disk
from kvexact.impl.adapters.vllm.driver.symbols import need

_SIMPLE = """
{made}
worker.register_kv_caches(views){opened}{counted}
def move(side, *jobs):  # blocks and slots of each
    for blocks, slots in jobs:
        worker.bind_connector_metadata(SimpleCPUOffloadMetadata(**{{f"{{side}}_event": next(events),
            f"{{side}}_gpu_blocks": blocks, f"{{side}}_cpu_blocks": slots}}))
        worker.start_load_kv(), worker.wait_for_save(), worker.get_finished(set())
        worker.clear_connector_metadata()
    while worker._pending_store_event_indices or worker._pending_load_event_indices:
        worker.get_finished(set())
"""
_COUNTED = """
if worker.num_cpu_blocks != {slots}:
    wrong.append(f"{{worker.num_cpu_blocks}} host slots where {slots} blocks have room")"""
_UNNAMED = "\nos.unlink(worker._backend._disk_path)  # open as it is, it stays"
_OFFLOAD = """
config.kv_transfer_config = KVTransferConfig(kv_connector="OffloadingConnector",
    kv_role="kv_both", engine_id=uuid.uuid4().hex, kv_connector_extra_config={extra})
connector = OffloadingConnector(config, KVConnectorRole.WORKER, kv_config)
{register}
worker = connector.connector_worker.worker
"""
_BYTES = """
def fill():  # other random bytes everywhere
    {each}:
        {random}
{later}def content(name, block):  # the bytes of a layer in a block
    {content}
fill()
"""
_BYTES_ONCE = """
{each}:  # random bytes everywhere
    {random}
def content(name, block):  # the bytes of a layer in a block
    {content}
"""
_PART = "{view}.unflatten(0, ({blocks}, -1))[block].flatten().view(torch.uint8).clone()"
_LATER = """
def later(work):  # by the model's stream, behind what takes a while
    torch.cuda._sleep(1 << 30)
    work()
finish = torch.cuda.synchronize
"""
#: Zeroed blocks of a group's layers have no other bytes, and other blocks all that they had.
_ZEROED = (
    'wrong += [f"{{n}}, block {{b}}: {{bad}} bytes wrong" for (n, b), was in before.items() '
    "if (bad := int((content(n, b) != was * (b not in {blocks})).sum())) "
    "and (b not in {blocks} or n in groups[{group}].layer_names)]"
)
#: Bytes of layers in blocks beside what they should be.
_COMPARE = (
    'wrong += [f"{{n}}, block {{b}}: {{bad}} bytes wrong" for {each} '
    "if (bad := int((content(n, b) != {want}).sum()))]"
)


def moves(pool: Pool, call: dict[str, Any]) -> Iterator[str]:
    """The lines, behind those that make views."""
    kinds = [kind for kind, _ in call["ops"]]
    moving = bool({"offload", "restore"}.intersection(kinds))
    if call["target"] != "views" and moving:
        yield _connector(pool, call)
    cuda = call["device"] == "cuda"
    yield _bytes(pool, again=moving, cuda=cuda, of_order=call["of_order"])
    if "zero" in kinds:
        yield _zeroer(pool)
    for number, (kind, what) in enumerate(call["ops"]):
        match kind:
            case "zero":
                yield from _zeroed(pool, call, *what)
            case "copy_blocks":
                yield from _copies(*what)
            case _:
                yield from _moved(pool, call, 10 * number, kind, what)


def _connector(pool: Pool, call: dict[str, Any]) -> str:
    capacity = HostRows.of(pool).capacity_bytes
    if call["target"] == "simple":
        more = disk_options("tier", capacity) if is_on_disk(pool) else {}
        words = [str(capacity), *(f"{name}={value!r}" for name, value in more.items())]
        made = folded(f"worker = SimpleCPUOffloadWorker(config, kv_config, {', '.join(words)})")
        counted = "" if call["of_order"] else _COUNTED.format(slots=call["host_slots"])
        return _SIMPLE.format(made=made, opened=_UNNAMED * bool(more), counted=counted)
    register = "connector.register_kv_caches(views)"
    if pool.cross:
        register = "connector.register_cross_layers_kv_cache(buffer, TritonAttentionBackend)"
    return _OFFLOAD.format(extra=extra_config(pool, capacity), register=register)


def _zeroer(pool: Pool) -> str:
    if release.layouts() is not None:
        raise Unfit("zeroing is told where a runner has groups of its own")
    sizes = [group["kernel_block_size"] for group in pool.geometry["groups"]]
    given = {
        "device": "torch.device(DEVICE)",
        "pin_memory": "False",
        "attn_groups_iter": "sum(attention, [])",
        "kernel_block_sizes": f"{sizes}",
        "cache_dtype": "cache.cache_dtype",
        "static_forward_context": "{n: SimpleNamespace(kv_cache=v) for n, v in views.items()}",
    }
    known = signature(need("vllm.v1.worker.utils:KVBlockZeroer").__init__).parameters
    words = [f"{name}={word}" for name, word in given.items() if name in known]
    return folded(f"zeroer = KVBlockZeroer({', '.join(words)})")


def _zeroed(pool: Pool, call: dict[str, Any], group: int, blocks: list[int]) -> Iterator[str]:
    """Blocks are zeroed; nothing else is."""
    count = pool.geometry["blocks"]
    yield f"before = {{(n, b): content(n, b) for n, b in product(views, range({count}))}}"
    wait = "; torch.cuda.synchronize()" if call["device"] == "cuda" else ""
    yield f"zeroer.zero_block_ids({blocks}){wait}"
    yield folded(_ZEROED.format(group=group, blocks=blocks))


def _bytes(pool: Pool, *, again: bool, cuda: bool, of_order: bool) -> str:
    """Random bytes, ``again`` wherever others are needed."""
    lists = release.layouts() is None and any(layer.shape.is_state for layer in pool.every_layer)
    part = _PART.format(view="view" if lists else "views[name]", blocks=pool.geometry["blocks"])
    empty = "torch.empty(0, dtype=torch.uint8, device=DEVICE)"
    first = "(view[0] if isinstance(view, list) else view)" if lists else "view"
    wait = "; torch.cuda.synchronize()" if cuda and not of_order else ""
    return (_BYTES if again else _BYTES_ONCE).format(
        each="for view in views.values()",
        random=f"{empty}.set_({first}.untyped_storage()).random_(){wait}",
        content=f"parts = views[name] if isinstance(views[name], list) else [views[name]]\n"
        f"    return torch.cat([{part} for view in parts])"
        if lists
        else f"return {part}",
        later=_LATER.lstrip("\n") if cuda and of_order else "",
    )


def _moved(
    pool: Pool, call: dict[str, Any], number: int, kind: str, jobs: list[Any]
) -> Iterator[str]:
    """A store, what was there before kept; or a load, compared with it."""
    moved = [(group, *move) for group, of_group in jobs for move in of_group]
    each = f"g, b, s, p in {moved} for n in groups[g].layer_names"
    if kind == "restore" and call["of_order"]:
        yield "later(fill)  # whoever had the blocks before"
    if kind == "offload":
        yield folded(f"kept |= {{(s, p, n): content(n, b) for {each}}}")
    if call["target"] == "simple":
        side = "store" if kind == "offload" else "load"
        steps = [([m[0] for m in of], [m[1] for m in of]) for _, of in jobs if of]
        yield folded(f'move("{side}", {", ".join(map(str, steps))})')
    else:
        yield from _transfers(pool, number, kind, jobs)
    if kind == "offload":
        yield from () if call["of_order"] else ("fill()",)
    else:
        first = "finish(); " if call["of_order"] else ""
        yield folded(first + _COMPARE.format(each=each, want="kept[s, p, n]"))


def _transfers(pool: Pool, number: int, kind: str, jobs: list[Any]) -> Iterator[str]:
    """Transfers, each of them waited for."""
    parts, groups = pool.geometry["host"]["chunk_blocks"], len(pool.layers)
    for job, taken in enumerate(transfers(jobs, parts), number + 1):
        blocks, sizes, first, chunks = chunked(taken, groups)
        ends = f"GPULoadStoreSpec({blocks}, {sizes}, {first})", f"CPULoadStoreSpec({chunks})"
        yield folded(_submit(job, ends, store=kind == "offload"))
        yield "while not worker.get_finished(): pass  # a list of what is done"


def _submit(job: int, ends: tuple[str, str], *, store: bool) -> str:
    """The call that starts a transfer from one end to the other."""
    between = ", ".join(ends if store else ends[::-1])
    if "def submit_store" in getsource(need("vllm.v1.kv_offload.cpu.gpu_worker")):
        return f"worker.submit_{'store' if store else 'load'}({job}, {between})"
    return f"worker.transfer_async({job}, ({between}))"


def _copies(group: int, pairs: list[Any]) -> Iterator[str]:
    yield f"for source, b in {pairs}:"
    yield f"    want = {{n: content(n, source) for n in groups[{group}].layer_names}}"
    yield "    pair = [KVCacheBlockCopy(source, b)]"
    yield "    copy_kv_cache_blocks_inplace(list(views.values()), kv_config.num_blocks, pair)"
    compared = folded(_COMPARE.format(each="n in want", want="want[n]"))
    yield "    " + compared.replace("\n", "\n    ")
