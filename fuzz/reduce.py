"""Reduces a failing trace to a minimal one that fails with the same signature."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvexact.fuzz.dimensions import Draft, GroupDraft, LayerSetDraft, build, draft_of
from kvexact.fuzz.edits import (
    SCHEDULES,
    Path,
    Program,
    below,
    edits,
    elements,
    numbers,
    renumbered,
    simpler_choices,
    simpler_geometries,
    simpler_schedules,
    with_number,
    without_element,
    without_ops,
)
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.pending import PENDING
from kvexact.fuzz.rewrites import (
    few_blocks,
    gathered,
    needed,
    offloaded_at_once,
    plain_names,
    regrouped,
)
from kvexact.fuzz.rewrites_serving import computed_at_once, known_at_once, shorter
from kvexact.fuzz.run import Run, execute
from kvexact.fuzz.trace import IN_ORDER
from kvexact.impl.target import Target
from kvexact.refmodel.ops import KIND_OF, TIMED_OPS, Allocate
from kvexact.refmodel.plan import plan
from kvexact.refmodel.serving_ops import Admit, Lookup
from kvexact.refmodel.spec import Refused

#: Executions after which reducing stops where it is.
BUDGET = 5000


@dataclass(slots=True)
class Reducer:
    """Greedy: each pass walks the places of one kind of edit, and passes repeat until none helps.

    Attributes:
        program: the smallest failing program so far.
        executions: programs run.
    """

    make_target: Callable[[], Target]
    signature: Signature
    program: Program
    budget: int = BUDGET
    executions: int = 0
    _target: Target = field(init=False)
    _tried: set[Program] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._target = self.make_target()

    def reduce(self) -> Program:
        """The minimal program; where the budget ends, the smallest so far.

        Its ids count from 0, unless no simple schedule fails with these.
        """
        self._pass_until_none_helps()
        while self._renumber() and self.program.schedule not in (IN_ORDER, 0):
            self._pass_until_none_helps()
        return self.program

    def _renumber(self) -> bool:
        """Whether ids count from 0 now, maybe under another schedule, as schedules hash ids."""
        plain = renumbered(self.program)
        return self._keep(plain) or (
            plain != self.program
            and self.program.schedule != IN_ORDER
            and self._keep_first(plain._replace(schedule=number) for number in SCHEDULES)
        )

    def _pass_until_none_helps(self) -> None:
        while True:
            before = self.program
            self._keep_first(simpler_schedules(self.program))
            self._rewrite(needed, gathered)
            self._drop_ops()
            self._first_values()
            self._rewrite_requests()
            self._drop_elements()
            self._keep_all(simpler_choices)
            self._keep_first(regrouped(self.program))
            self._rewrite(gathered, offloaded_at_once, few_blocks, plain_names)
            self._lower_numbers()
            self._keep_all(simpler_geometries)
            if self.program == before or self.executions >= self.budget:
                return

    def is_minimal(self) -> bool:
        """Whether no single edit of the program keeps its failure, whatever the budget."""
        return not any(self._fails(edited) for edited in edits(self.program))

    def _fails(self, program: Program) -> bool:
        """Whether a program not tried before fails with the signature."""
        if program in self._tried:
            return False
        self._tried.add(program)
        self.executions += 1
        failure = failure_of(self._target, program)
        return failure is not None and failure[1].signature == self.signature

    def _keep(self, program: Program) -> bool:
        if self.executions >= self.budget or program == self.program:
            return False
        if self._is_void(program) or not self._fails(program):
            return False
        self.program = program
        return True

    def _keep_first(self, programs: Iterable[Program]) -> bool:
        return any(self._keep(program) for program in programs)

    def _is_void(self, program: Program) -> bool:
        """Whether it plainly cannot fail like this.

        That is where no op of the signature's kind is left, and where the model refuses the
        geometry that ops need. Every trace ends with a fence.
        """
        kind = self.signature.op
        if kind in ("open", "close"):
            return False
        if kind not in (PENDING, *TIMED_OPS) and all(
            KIND_OF[type(op)] != kind for op in program.ops
        ):
            return True
        try:
            plan(program.geometry)
        except Refused:
            return True
        return False

    def _rewrite(self, *rewrites: Callable[[Program], Program]) -> None:
        for rewrite in rewrites:
            if self.program.ops:
                self._keep(rewrite(self.program))

    def _rewrite_requests(self) -> None:
        if any(isinstance(op, Admit | Lookup) for op in self.program.ops):
            self._keep_first(shorter(self.program))
            self._keep(known_at_once(self.program))
            self._keep_all(computed_at_once)

    def _drop_ops(self) -> None:
        """Runs of ops, halving; then single ones from the end, where a failure's sequel lies."""
        count = len(self.program.ops) // 2
        while count:
            start = len(self.program.ops) - count
            while start >= 0:
                self._keep(without_ops(self.program, start, count))
                start -= count
            count //= 2

    def _drop_elements(self) -> None:
        place = len(elements(self.program)) - 1
        while place >= 0:
            found = elements(self.program)
            if place < len(found):
                edited = without_element(self.program, *found[place][:2])
                if edited is not None:
                    self._keep(edited)
            place -= 1

    def _lower_numbers(self) -> None:
        for op_index, path, _ in numbers(self.program):
            if path == ("tokens",):
                self._keep(with_number(self.program, op_index, path, None))
        for place in range(len(numbers(self.program))):
            op_index, path, value = numbers(self.program)[place]
            self._keep_first(
                with_number(self.program, op_index, path, lower)
                for lower in below(value)
                if not self._claims_twice(op_index, path, lower)
            )

    def _claims_twice(self, op_index: int, path: Path, lower: int) -> bool:
        """Whether an allocation would come to nothing: dropping it is another edit."""
        op = self.program.ops[op_index]
        is_last = op_index == len(self.program.ops) - 1
        return type(op) is Allocate and path[0] == "blocks" and lower in op.blocks and not is_last

    def _first_values(self) -> None:
        """Many dimensions at their first values at once."""
        draft = draft_of(self.program.geometry)
        plain = Draft(groups=draft.groups, blocks=draft.blocks, host_rows=draft.host_rows)
        small = GroupDraft(layer_sets=(LayerSetDraft(),))
        for simple in (
            Draft(
                groups=(small,) * len(draft.groups), blocks=draft.blocks, host_rows=draft.host_rows
            ),
            plain,
        ):
            self._keep(self.program._replace(geometry=build(simple)))

    def _keep_all(self, simpler: Callable[[Program], Iterable[Program]]) -> None:
        """One walk over all edits of a kind; where one was kept, on from there."""
        candidates = list(simpler(self.program))
        place = 0
        while place < len(candidates):
            if self._keep(candidates[place]):
                candidates = list(simpler(self.program))
            else:
                place += 1


def program_of(run: Run) -> Program:
    """What a run did."""
    return Program(run.geometry, tuple(run.done), run.schedule)


def failure_of(target: Target, program: Program) -> tuple[Run, Failure] | None:
    """Run a program; its failure, explained, if it fails."""
    run, wrong = execute(target, *program)
    return None if wrong is None else (run, explain_failure(run, wrong))


def reduce_failure(
    make_target: Callable[[], Target], run: Run, failure: Failure, budget: int = BUDGET
) -> Reducer:
    """Reduce what a run did until it failed; the reducer has the program and its executions."""
    reducer = Reducer(make_target, failure.signature, program_of(run), budget)
    reducer.reduce()
    return reducer
