"""The console that commands print to."""

from typing import Any, NoReturn

from rich.console import Console


class Output(Console):
    """Standard output, as it is: no highlighting, no markup, no line broken but in tables."""

    def __init__(self) -> None:
        super().__init__(highlight=False, emoji=False)  # a:x:b is no smiley

    def say(self, text: str = "", **style: Any) -> None:
        """Print lines as they are."""
        self.print(text, markup=False, soft_wrap=True, **style)

    def on_broken_pipe(self) -> NoReturn:
        """Leave it to the command line, which knows the exit code."""
        raise BrokenPipeError
