"""What `kvexact bench` prints: ratios of the least times of all rounds, and what they may be."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from kvexact.fuzz.bench_rounds import Round

#: Most that a ratio may be.
BUDGETS = {
    "machine_added_over_empty_step": 1.0,
    "prng_op_over_empty_step": 0.7,
    "values_machine_step_over_raw": 1.5,
    "values_prng_op_over_raw": 2.5,
    "isolation_added_over_empty_step": 0.4,
    "timed_machine_added_over_empty_step": 1.5,
    "timed_prng_op_over_empty_step": 1.05,
}

Pieces = dict[str, Round]


@dataclass(slots=True)
class Samples:
    """What the rounds measured, one element a round; times of work by the name of its piece."""

    empty: list[Pieces] = field(default_factory=list)
    machine: list[Pieces] = field(default_factory=list)
    prng: list[Pieces] = field(default_factory=list)
    values_machine: list[Pieces] = field(default_factory=list)
    draws: list[Pieces] = field(default_factory=list)
    values_draws: list[Pieces] = field(default_factory=list)
    values_prng: list[Pieces] = field(default_factory=list)
    timed_machine: list[Pieces] = field(default_factory=list)
    timed_prng: list[Pieces] = field(default_factory=list)
    formats: list[Pieces] = field(default_factory=list)
    isolated: list[Pieces] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    values_parts: list[dict[str, float]] = field(default_factory=list)
    journal_us: list[float] = field(default_factory=list)
    compare: list[float] = field(default_factory=list)
    memcmp: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """What `--json` prints. Where nothing else is said, of families that write raw bytes.

    Attributes:
        machine_added_over_empty_step: what an op, drawn, run on both sides and compared, adds to a
            step of a Hypothesis machine, over a step of a machine with two empty rules.
        prng_op_over_empty_step: an op of the PRNG over the same step.
        values_machine_step_over_raw: a step of the machine of families that write real values, over
            one of those that write raw bytes.
        values_prng_op_over_raw: the same of an op of the PRNG.
        timed_machine_added_over_empty_step, timed_prng_op_over_empty_step: the same two of families
            about pending work, on the engine on streams.
        setup_over_empty_step: a geometry, drawn, opened and closed, over the same step.
        isolation_added_over_empty_step: what isolating the target adds to an op of the PRNG.
        journal_added_over_empty_step: noting an op in the journal over the same step.
        compare_over_memcmp: speed of the comparison of long arrays over that of a plain one.
        parts_us: parts of a PRNG op, in microseconds; what is left is bookkeeping.
        values_parts_us: the same for families that write real values.
        ops_per_s: PRNG ops of each family, geometries included.
        format_ops_per_s: the same where all pages are of one format.
    """

    machine_added_over_empty_step: float
    prng_op_over_empty_step: float
    values_machine_step_over_raw: float
    values_prng_op_over_raw: float
    isolation_added_over_empty_step: float
    timed_machine_added_over_empty_step: float
    timed_prng_op_over_empty_step: float
    setup_over_empty_step: float
    journal_added_over_empty_step: float
    compare_over_memcmp: float
    compare_gb_per_s: float
    memcmp_gb_per_s: float
    empty_step_us: float
    machine_step_us: float
    prng_op_us: float
    values_machine_step_us: float
    values_prng_op_us: float
    parts_us: dict[str, float]
    values_parts_us: dict[str, float]
    ops_per_s: dict[str, float]
    format_ops_per_s: dict[str, float]

    def over_budget(self) -> list[str]:
        """What costs more than it may."""
        found = asdict(self)
        return [
            f"{name} is {found[name]:.2f}, more than {most}"
            for name, most in BUDGETS.items()
            if found[name] > most
        ]


def result(samples: Samples) -> Result:
    """The least times of all rounds, and their ratios."""
    empty, machine = _step_us(samples.empty), _step_us(samples.machine)
    values_machine = _step_us(samples.values_machine)
    timed_machine = _step_us(samples.timed_machine)
    op, values_op = _step_us(samples.prng), _step_us(samples.values_prng)
    setup = _least(samples.prng, lambda done: done.setup_s)
    setup /= sum(done.geometries for done in samples.prng[0].values())
    compare, memcmp = max(samples.compare), max(samples.memcmp)
    return Result(
        machine_added_over_empty_step=(machine - empty) / empty,
        prng_op_over_empty_step=op / empty,
        values_machine_step_over_raw=values_machine / machine,
        values_prng_op_over_raw=values_op / op,
        isolation_added_over_empty_step=(_step_us(samples.isolated) - op) / empty,
        timed_machine_added_over_empty_step=(timed_machine - empty) / empty,
        timed_prng_op_over_empty_step=_step_us(samples.timed_prng) / empty,
        setup_over_empty_step=setup * 1e6 / empty,
        journal_added_over_empty_step=min(samples.journal_us) / empty,
        compare_over_memcmp=compare / memcmp,
        compare_gb_per_s=compare,
        memcmp_gb_per_s=memcmp,
        empty_step_us=empty,
        machine_step_us=machine,
        prng_op_us=op,
        values_machine_step_us=values_machine,
        values_prng_op_us=values_op,
        parts_us=_parts(samples.draws, samples.parts, op),
        values_parts_us=_parts(samples.values_draws, samples.values_parts, values_op),
        ops_per_s=_speeds(samples.prng)
        | _speeds(samples.values_prng)
        | _speeds(samples.timed_prng),
        format_ops_per_s=_speeds(samples.formats),
    )


def _least(rounds: list[Pieces], time_s: Callable[[Round], float]) -> float:
    """Seconds of all pieces together, of each the least."""
    return sum(min(time_s(pieces[name]) for pieces in rounds) for name in rounds[0])


def _step_us(rounds: list[Pieces]) -> float:
    steps = sum(done.steps for done in rounds[0].values())
    return _least(rounds, lambda done: done.steps_s) / steps * 1e6


def _parts(draws: list[Pieces], measured: list[dict[str, float]], op_us: float) -> dict[str, float]:
    """Parts of an op, the rest of it last."""
    parts = {"draw": _step_us(draws)}
    parts |= {name: min(part[name] for part in measured) for name in measured[0]}
    return parts | {"rest": op_us - sum(parts.values())}


def _speeds(rounds: list[Pieces]) -> dict[str, float]:
    """Ops a second of each family or format."""
    return {name: max(_ops_per_s(of_each[name]) for of_each in rounds) for name in rounds[0]}


def _ops_per_s(done: Round) -> float:
    return done.steps / (done.steps_s + done.setup_s)
