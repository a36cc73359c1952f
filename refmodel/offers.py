"""Rules of hits: how long one may be, what is offered in it, and what is loaded for it."""

from kvexact.refmodel.answer import HOLE, Answer
from kvexact.refmodel.answers import Inadmissible
from kvexact.refmodel.ops import block_id
from kvexact.refmodel.requests import Key, Request, Requests

#: A place in the tables of an answer: group, entry.
Place = tuple[int, int]


def judge_prefix(state: Requests, hit: int, known: int, who: str) -> None:
    """Check the length of a hit for so many known tokens."""
    for group, size in enumerate(state.sizes):
        if hit % size:
            text = f"the hit of {who} is {hit}, no multiple of {size}, the block size of group"
            raise Inadmissible("prefix", f"{text} {group}", "multiple")
    if not 0 <= hit < known:
        text = f"the hit of {who} is {hit}; it must be less than the {known} tokens that are known"
        raise Inadmissible("prefix", text, "length")


def judge_hit(state: Requests, request: Request, answer: Answer) -> None:
    """Check a hit with its tables and loads; ``request`` knows its tokens."""
    who = f"request a{request.id}"
    judge_prefix(state, answer.hit, len(request.known), who)
    for group, (size, table) in enumerate(zip(state.sizes, answer.tables, strict=True)):
        if len(table) != answer.hit // size:
            text = f"group {group} has {len(table)} entries for a hit of {answer.hit}; blocks of"
            raise Inadmissible("offered", f"{text} {size} make {answer.hit // size}", "entries")
    loaded = _loaded(state, request, answer)
    for group, table in enumerate(answer.tables):
        for entry, block in enumerate(table):
            what = f"group {group} entry {entry} of {who}"
            if block == HOLE:
                if state.is_seen(group, entry, answer.hit):
                    text = f"{what} is a hole, but the token at {answer.hit} sees it"
                    raise Inadmissible("offered", text, "hole")
            elif (group, entry) not in loaded:
                _judge_block(state, block, request.key(group, entry, state.sizes[group]), what)


def _judge_block(state: Requests, block: int, key: Key, what: str) -> None:
    if state.keys.get(block) != key:
        cause, words = state.why_not(block, key)
        raise Inadmissible("offered", f"{what} was offered, but {words} (block {block})", cause)


def _loaded(state: Requests, request: Request, answer: Answer) -> set[Place]:
    """Places that are filled by a load, each judged."""
    places: dict[int, list[Place]] = {}
    for group, table in enumerate(answer.tables):
        for entry, block in enumerate(table):
            places.setdefault(block, []).append((group, entry))
    found: set[Place] = set()
    for job in answer.loads:
        for move in job.moves:
            block = block_id(move.block)
            what = f"block {block}, loaded from host slot {move.host_slot} part {move.part},"
            stands = places.get(block, [])
            if len(stands) != 1 or stands[0][0] != job.group or stands[0] in found:
                text = f"{what} must stand in one entry of group {job.group}, and be loaded once"
                raise Inadmissible("loaded", text, "entry")
            if state.references[block]:
                text = f"{what} stands in the table of another request; it must be free"
                raise Inadmissible("loaded", text, "references")
            group, entry = stands[0]
            key = request.key(group, entry, state.sizes[group])
            held = state.parts.get(move.host_slot, {}).get(move.part)
            if held != key:
                cause, words = _why_not_in_host(held, key)
                text = f"group {group} entry {entry} of request a{request.id} is {what} {words}"
                raise Inadmissible("offered", text, cause)
            found.add(stands[0])
    return found


def _why_not_in_host(held: Key | None, key: Key) -> tuple[str, str]:
    if held is None:
        return "evicted", "which holds nothing"
    if held[:2] != key[:2]:
        return "other entry", f"which holds entry {held.entry} of group {held.group}"
    return "other tokens", "which holds other tokens"


def judge_lookup(state: Requests, tokens: tuple[int, ...], hit: int) -> None:
    """Check how many of these tokens are said to be cached."""
    judge_prefix(state, hit, len(tokens), "the lookup")
    cached = {*state.keys.values(), *state.in_host()}
    for group, size in enumerate(state.sizes):
        for entry in range(hit // size):
            key = Key(group, entry, tokens[: (entry + 1) * size])
            if state.is_seen(group, entry, hit) and key not in cached:
                cause, words = state.why_nowhere(key)
                text = f"group {group} entry {entry} of the lookup was offered, but {words}"
                raise Inadmissible("offered", text, cause)
