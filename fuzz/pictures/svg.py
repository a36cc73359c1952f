"""A small SVG canvas: shapes in, one standalone document out. All text is escaped here."""

from dataclasses import dataclass, field
from html import escape

#: Width of a character of the monospaced font, in font sizes.
CHAR_EM = 0.602

_STYLE = """\
text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
  font-size: 11px; fill: #24292f; }
.big { font-size: 17px; font-weight: bold; }
.head { font-size: 13px; font-weight: bold; }
.dim { fill: #656d76; }
.tick { font-size: 9px; fill: #656d76; }
.in { font-size: 10px; }
.light { font-size: 10px; fill: #ffffff; }
.wrong { fill: #cf222e; font-weight: bold; }"""

_PATTERN = '<pattern id="{}" width="{}" height="{}" patternUnits="userSpaceOnUse"{}>{}</pattern>'
_PATTERNS = "\n".join(
    (
        _PATTERN.format(
            "padding", 5, 5, ' patternTransform="rotate(45)"',
            '<path d="M0 0h5v5h-5z" fill="#f6f8fa"/><path d="M0 0h1.6v5h-1.6z" fill="#8c959f"/>',
        ),
        _PATTERN.format(
            "unused", 5, 5, "",
            '<path d="M0 0h5v5h-5z" fill="#f6f8fa"/><circle cx="2" cy="2" r=".8" fill="#afb8c1"/>',
        ),
        _PATTERN.format(
            "frame", 4, 4, "",
            '<path d="M0 0h4v4h-4z" fill="#d0d7de"/><path d="M0 0h4v1h-4z" fill="#afb8c1"/>',
        ),
    )
)  # fmt: skip


@dataclass(slots=True)
class Canvas:
    """Shapes in user units (px).

    Attributes:
        width: of the document.
        y: where the next thing goes; whoever draws moves it down.
    """

    width: int
    y: float = 0.0
    _parts: list[str] = field(default_factory=list)

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, title: str = ""
    ) -> None:
        """A filled rectangle with a tooltip, outlined where it is wide enough to bear a line."""
        line = ' stroke="#ffffff" stroke-width="0.8"' if width >= 3 else ""
        tip = f"<title>{_xml(title)}</title>" if title else ""
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
            f' fill="{fill}"{line}>{tip}</rect>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """A line of text; ``y`` is its base line, ``kind`` one or more classes of the style."""
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" class="{kind}" text-anchor="{anchor}">'
            f"{_xml(text)}</text>"
        )

    def path(self, data: str, fill: str, stroke: str = "none", title: str = "") -> None:
        """A path with a tooltip."""
        tip = f"<title>{_xml(title)}</title>" if title else ""
        self._parts.append(f'<path d="{data}" fill="{fill}" stroke="{stroke}">{tip}</path>')

    def line(self, x: float, y: float, height: float) -> None:
        """A vertical hair line: a tick."""
        self._parts.append(f'<path d="M{_n(x)} {_n(y)}v{_n(height)}" stroke="#8c959f"/>')

    def render(self, title: str) -> str:
        """The document, on a background of its own so that a dark viewer shows it too."""
        height = round(self.y)
        space = f'width="{self.width}" height="{height}" viewBox="0 0 {self.width} {height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {space} role="img" xml:space="preserve">',
                f"<title>{_xml(title)}</title>",
                f"<style>\n{_STYLE}\n</style>",
                f"<defs>\n{_PATTERNS}\n</defs>",
                f'<rect width="{self.width}" height="{height}" rx="6" fill="#ffffff"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def text_width(text: str, font_px: float = 11) -> float:
    """How wide a line of text is drawn."""
    return len(text) * font_px * CHAR_EM


def _n(value: float) -> str:
    """A coordinate to a hundredth, as short as it goes."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _xml(text: str) -> str:
    """Text as an XML document may hold it: escaped, and nothing that is not printable."""
    return escape("".join(c if c.isprintable() else "\ufffd" for c in text), quote=False)
