"""Pictures: which bytes of pool and host tier are whose, which are wrong, and what ran when."""

from kvexact.fuzz.pictures.draw_svg import draw_svg
from kvexact.fuzz.pictures.draw_terminal import draw_terminal
from kvexact.fuzz.pictures.timeline_terminal import draw_timeline
from kvexact.fuzz.pictures.wrong import WrongBytes

__all__ = ["WrongBytes", "draw_svg", "draw_terminal", "draw_timeline"]
