"""The process of an isolated target: calls come in, answers and bytes go out, one by one."""

import gc
import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from kvexact.fuzz.channel import DAMAGED, Channel
from kvexact.fuzz.messages import (
    DONE,
    Answer,
    Apply,
    Ask,
    Call,
    Load,
    Odd,
    OddParts,
    Prepare,
    Raised,
)
from kvexact.fuzz.orphans import die_with_parent
from kvexact.fuzz.printing import print_to_stderr
from kvexact.fuzz.segment import Shapes
from kvexact.fuzz.shown import as_view, is_bytes, launches_of, plain_facts, view_of
from kvexact.fuzz.targets import NamedTarget, UnknownTarget, find_target
from kvexact.fuzz.wrong import Wrong, raised, said
from kvexact.impl.engine.cpu import guarded
from kvexact.impl.target import Area, Bytes, Target, Unavailable
from kvexact.refmodel.answer import Answer as Decided
from kvexact.refmodel.answers import in_short
from kvexact.refmodel.ops import Op
from kvexact.refmodel.spec import Refused


def serve(
    name: str, memory_limit: int, parent: int, bell: int, other_bell: int, *descriptors: int
) -> None:
    """Answer calls until the parent ends, or ends this process, or none can be heard any more.

    Args:
        name: of the target.
        memory_limit: bytes of address space; 0: no limit.
        parent: the number of its process.
        bell, other_bell, descriptors: as `Channel` has them.
    """
    die_with_parent(parent)
    print_to_stderr()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent hears it too, and decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if memory_limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    channel = Channel(bell, other_bell, list(descriptors))
    try:
        server = _Server(channel, find_target(name))
    except (Unavailable, UnknownTarget) as error:
        channel.send(Answer(unavailable=str(error)))
        return
    with suppress(Exception):  # all that may fail here is the channel, by what the target does
        channel.send(DONE)
        gc.freeze()
        while True:
            channel.send(server.answer(channel.call()))
    os._exit(DAMAGED)


class _Server:
    """A target, and how it answers."""

    def __init__(self, channel: Channel, named: NamedTarget) -> None:
        self._segments = channel.segments
        self._named = named
        self._areas: tuple[Area, ...] = tuple(sorted(named.target_type.declared))
        self._sizes: dict[Area, int] = {}
        self._shared: dict[Area, Bytes] = {}
        self._target = self._make()
        self._is_new = True
        self._does: dict[type, Callable[[Any], Answer]] = {
            Prepare: self._prepare,
            Load: self._load,
            Ask: self._ask,
        }

    def _make(self) -> Target:
        target = self._named.make()
        for area in self._areas:
            target.share(area, partial(self._allocate, area))
        return target

    def _allocate(self, area: Area, nbytes: int) -> tuple[Bytes, int]:
        """Memory for an area in the very place that the parent looks at."""
        segment = self._segments[area]
        segment.grow(nbytes)
        self._shared[area], address = guarded(nbytes, segment.descriptor)
        return self._shared[area], address

    def answer(self, call: Call | Apply) -> Answer:
        """Do what a call says."""
        try:
            return self._apply(*call) if type(call) is tuple else self._does[type(call)](call)
        except Unavailable as error:
            return Answer(unavailable=str(error))
        except BaseException as error:  # noqa: BLE001 - a target's own code may raise anything
            return Answer(raised=_told(error))

    def _prepare(self, call: Prepare) -> Answer:
        if call.anew and not self._is_new:
            self._target = self._make()
        self._is_new = False
        self._sizes, self._shared = {}, {}
        if call.schedule is not None:
            self._target.schedule(call.schedule)
        try:
            facts = getattr(self._target, call.what)(call.geometry)
        except Refused as refusal:
            return Answer(refused=(said(refusal.reason), said(refusal.text)))
        answer = Answer(plain_facts(facts) if isinstance(facts, Mapping) else None)
        return self._seen(answer) if call.what == "open" else answer

    def _apply(self, shapes: Shapes | None, op: Op) -> Answer:
        rows = None if shapes is None else self._segments["rows"].arrays(shapes)
        try:
            read: object = self._target.apply(op, rows)
        except Refused as refusal:
            return self._seen(Answer(refused=(said(refusal.reason), said(refusal.text))))
        if read is None:
            return self._seen()
        if isinstance(read, bool):
            return self._seen(Answer(told=read))
        if isinstance(read, Decided):
            return self._seen(Answer(told=_as_sent(read)))
        if isinstance(read, tuple) and all(map(is_bytes, read)):
            return self._seen(Answer(read=self._segments["read"].put(read)))
        return self._seen(Answer(told=Odd(in_short(read))))

    def _load(self, call: Load) -> Answer:
        data = self._segments["rows"].arrays(call.shapes)[0].copy()
        self._target.load(call.area, data)
        kept = np.may_share_memory(data, view_of(self._target, call.area))
        return self._seen(Answer(kept=bool(kept)))

    def _ask(self, call: Ask) -> Answer:
        if call.what == "launches":
            return Answer(launches_of(self._target))
        getattr(self._target, call.what)()
        return DONE

    def _seen(self, answer: Answer = DONE) -> Answer:
        """The answer, now that the bytes of all areas are where the parent looks for them."""
        sizes: dict[Area, int] = {}
        unseen: dict[Area, Raised] = {}
        target, shared = self._target, self._shared
        for area in self._areas:
            try:
                view = target.view(area)
                if area in self._sizes and view is shared.get(area, self):
                    continue
                size = self._show(area, as_view(view, area))
                if self._sizes.get(area) != size:
                    self._sizes[area] = sizes[area] = size
            except BaseException as error:  # noqa: BLE001 - as above
                unseen[area] = _told(error)
        return replace(answer, sizes=sizes, unseen=unseen) if sizes or unseen else answer

    def _show(self, area: Area, view: Bytes) -> int:
        """Have the bytes of an area where the parent looks for them; how many there are."""
        shared = self._shared.get(area)
        if shared is None:
            self._segments[area].put((view,))
        elif view is not shared:
            text = f"view({area!r}) returned other memory than what it took from `share`"
            raise Wrong("exception", None, text, name="view")
        return view.size


def _as_sent(answer: Decided) -> Decided | OddParts:
    """The same, with all that is no plain tuple, int or bool shown apart."""
    crossed = _crossed(answer, Decided)
    if isinstance(crossed, Decided):
        return crossed
    parts = {item.name: _crossed(getattr(answer, item.name), item.type) for item in fields(Decided)}
    odd = {name: part.text for name, part in parts.items() if isinstance(part, Odd)}
    plain = {name: part for name, part in parts.items() if name not in odd}
    return OddParts(Decided(**{"free": (0, 0), **plain}), odd)


def _crossed(value: object, kind: Any) -> Any:
    """What comes out at the other end, if that is the same; else an `Odd` for it."""
    try:
        crossed = msgspec.convert(msgspec.to_builtins(value), kind)
        if repr(crossed) == repr(value):
            return crossed
    except Exception:  # noqa: BLE001, S110 - what an answer holds may raise anything
        pass
    return Odd(in_short(value))


def _told(error: BaseException) -> Raised:
    wrong: Wrong = raised(error)
    return Raised(wrong.outcome, wrong.text, wrong.name)
