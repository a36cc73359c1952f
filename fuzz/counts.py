"""What a run did: acted, refused and idle ops, bytes that had to change, features met.

A comparison of nothing proves nothing; `vacuous` says where that happened.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvexact.fuzz.features import HITS, TIMED_FEATURES
from kvexact.refmodel.ops import OPS

#: Shares that a family must reach, in percent.
ACTED_LEAST = 60
RESTORING_LEAST = 50
VERDICT_LEAST = 20
DECLINED_MOST = 40
#: Below this many geometries a share means nothing.
GEOMETRIES_LEAST = 20
#: Below this many ops the rarest kind may be missing by chance; below so many of a kind, an effect.
_OPS_LEAST = 5000
_ACTED_LEAST = 20

#: Op kinds that change bytes.
CHANGING = (
    *("write_tokens", "write_values", "zero", "copy_blocks", "offload", "restore"),
    *("compute", "store", "mutate"),
)


@dataclass(slots=True)
class Counts:
    """Counts of one family, or of several added up.

    Attributes:
        geometries: by verdict: "accepted", "refused:<reason>", "declined:<reason>", "unsent".
        ops: by (kind, outcome); outcomes are "acted", "refused", "no-op" and "unsent".
        reasons: refused ops by (kind, reason).
        changed_bytes: content bytes that an op had to change, by kind.
        compared_bytes: bytes compared after ops.
        free_bytes: bytes that a target declared free, not compared.
        facts: facts compared.
        unchecked: names of facts that the target did not offer.
        restoring: examples that restored bytes which had changed.
        features: what was met at least once in an example, by name.
        pairs: ops that acted by (kind of the op that acted before it, kind); the first one of an
            example follows "open".
        launches: launches and copies of the target, by name.
    """

    geometries: Counter[str] = field(default_factory=Counter)
    ops: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    changed_bytes: Counter[str] = field(default_factory=Counter)
    compared_bytes: int = 0
    free_bytes: int = 0
    facts: int = 0
    unchecked: Counter[str] = field(default_factory=Counter)
    restoring: int = 0
    features: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Counts") -> None:
        """Add another run's counts to these."""
        self.geometries += other.geometries
        self.ops += other.ops
        self.reasons += other.reasons
        self.changed_bytes += other.changed_bytes
        self.compared_bytes += other.compared_bytes
        self.free_bytes += other.free_bytes
        self.facts += other.facts
        self.unchecked += other.unchecked
        self.restoring += other.restoring
        self.features += other.features
        self.pairs += other.pairs
        self.launches += other.launches

    @property
    def acted(self) -> int:
        """Ops that acted."""
        return sum(n for (_, outcome), n in self.ops.items() if outcome == "acted")

    @property
    def acted_kinds(self) -> set[str]:
        """Kinds of the ops that acted."""
        return {kind for (kind, outcome), n in self.ops.items() if n and outcome == "acted"}

    def outcome(self, outcome: str) -> int:
        """Ops of one outcome, over all kinds."""
        return sum(n for (_, found), n in self.ops.items() if found == outcome)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a report of another process."""
        return {
            "geometries": dict(self.geometries),
            "ops": [[kind, outcome, n] for (kind, outcome), n in sorted(self.ops.items())],
            "reasons": [[kind, reason, n] for (kind, reason), n in sorted(self.reasons.items())],
            "changed_bytes": dict(self.changed_bytes),
            "compared_bytes": self.compared_bytes,
            "free_bytes": self.free_bytes,
            "facts": self.facts,
            "unchecked": dict(self.unchecked),
            "restoring": self.restoring,
            "features": dict(self.features),
            "pairs": [[before, kind, n] for (before, kind), n in sorted(self.pairs.items())],
            "launches": dict(self.launches),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Counts":
        """The counts that `to_json` wrote."""
        return cls(
            Counter(data["geometries"]),
            Counter({(kind, outcome): n for kind, outcome, n in data["ops"]}),
            Counter({(kind, reason): n for kind, reason, n in data["reasons"]}),
            Counter(data["changed_bytes"]),
            data["compared_bytes"],
            data["free_bytes"],
            data["facts"],
            Counter(data["unchecked"]),
            data["restoring"],
            Counter(data["features"]),
            Counter({(before, kind): n for before, kind, n in data["pairs"]}),
            Counter(data["launches"]),
        )


def vacuous(
    counts: Counts,
    *,
    plans_only: bool,
    illegal_percent: int,
    op_kinds: Collection[str] = OPS,
    in_time: bool = False,
) -> list[str]:
    """Why a family's run proves less than it claims; empty where it does not.

    Args:
        plans_only: the family compares verdicts and facts, no bytes.
        illegal_percent: how often it draws ops to be refused.
        op_kinds: those that the target has and the family draws.
        in_time: the target is asynchronous.
    """
    total = sum(counts.geometries.values())
    accepted = counts.geometries["accepted"]
    declined = sum(n for name, n in counts.geometries.items() if name.startswith("declined"))
    complaints = []
    if not counts.facts:
        complaints.append("no fact was compared")
    if total >= GEOMETRIES_LEAST and declined * 100 > DECLINED_MOST * total:
        complaints.append(
            f"the target declined {declined} of {total} geometries, more than {DECLINED_MOST} %"
        )
    if plans_only:
        for verdict, n in (("accepted", accepted), ("refused", total - accepted)):
            if total >= GEOMETRIES_LEAST and n * 100 < VERDICT_LEAST * total:
                complaints.append(f"only {n} of {total} geometries were {verdict}")
        return complaints

    sent = counts.acted + counts.outcome("refused") + counts.outcome("no-op")
    if not sum(counts.changed_bytes.values()):
        complaints.append("no content byte had to change")
    if not counts.compared_bytes:
        complaints.append("no byte was compared")
    wanted = ACTED_LEAST * (100 - illegal_percent) // 100
    if counts.acted * 100 < wanted * sent:
        complaints.append(f"only {counts.acted} of {sent} ops acted, fewer than {wanted} %")
    for kind in OPS:
        acted = counts.ops[kind, "acted"]
        if kind in op_kinds and not acted and sent >= _OPS_LEAST:
            complaints.append(f"no {kind} acted")
        if kind in CHANGING and acted >= _ACTED_LEAST and not counts.changed_bytes[kind]:
            complaints.append(f"{acted} {kind} acted, but no byte had to change")
    restores = {"offload", "restore"}.issubset(op_kinds)
    few = counts.restoring * 100 < RESTORING_LEAST * accepted
    if restores and accepted >= GEOMETRIES_LEAST and few:
        complaints.append(
            f"only {counts.restoring} of {accepted} examples restored bytes that had changed"
        )
    if in_time and accepted >= GEOMETRIES_LEAST:
        complaints += [f"never met: {name}" for name in TIMED_FEATURES if not counts.features[name]]
    if "admit" in op_kinds and sent >= _OPS_LEAST:
        complaints += [f"never met: {name}" for name in HITS if not counts.features[name]]
    return complaints
