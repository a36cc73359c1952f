"""Pictures of a geometry and of a failure in it: which bytes of pool and host tier are whose."""

from kvexact.fuzz.pictures.draw_svg import draw_svg
from kvexact.fuzz.pictures.draw_terminal import draw_terminal
from kvexact.fuzz.pictures.wrong import WrongBytes

__all__ = ["WrongBytes", "draw_svg", "draw_terminal"]
