"""Pictures, each for a light and a dark page and for a wide and a narrow one.

A narrow picture has its panels one below the other, and legends below them: the wide one is
unreadable at a telephone's width.  matplotlib is imported only to draw.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tfe_bench.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NARROW: Final = 3.9  # inches: 374 CSS pixels
# Okabe and Ito's colors, which color-blind readers can distinguish.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, SKY, GREY = "#CC79A7", "#56B4E9", "#999999"
_DPI: Final = 132
_NARROW_LABEL: Final = 44  # characters of a legend's line there


@dataclass(frozen=True)
class Theme:
    """Colors of lines and text on a page."""

    ink: str
    faint: str
    paper: str


LIGHT: Final = Theme("#1d232b", "#8b95a1", "#ffffff")
DARK: Final = Theme("#e6e9ed", "#7d8894", "#15191e")


# Draws a picture for a theme, wide or narrow; None where it would be empty.
Maker = Callable[[Theme, bool], "Drawing | None"]


@dataclass(frozen=True)
class Picture:
    """A picture as PNG files.

    Attributes:
        name: of its file.
        light: for a white page, and as a file of its own.
        dark: the same for a dark page.
        width: on the page, in CSS pixels.
        narrow: the same for a narrow page; None in there.
    """

    name: str
    light: bytes
    dark: bytes
    width: int
    narrow: Picture | None = None


def require_matplotlib() -> None:
    """Fail early if pictures cannot be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "The pictures of the report require matplotlib. Received: it is not "
            "installed. Install it with: pip install 'matplotlib>=3.8'.",
            code="library-not-installed",
            operation="matplotlib",
        ) from error


def draw_pictures(makers: Mapping[str, Maker]) -> dict[str, Picture]:
    """Draw pictures by name; skip a picture that would be empty.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    require_matplotlib()
    pictures = {}
    for name, make in makers.items():
        if (wide := _draw_picture(name, make, False)) is not None:
            pictures[name] = replace(wide, narrow=_draw_picture(name, make, True))
    return pictures


def _draw_picture(name: str, make: Maker, narrow: bool) -> Picture | None:
    light, dark = (_render_png(make, theme, narrow) for theme in (LIGHT, DARK))
    return None if light is None or dark is None else Picture(name, light[0], dark[0], light[1])


def _render_png(make: Maker, theme: Theme, narrow: bool) -> tuple[bytes, int] | None:
    import matplotlib

    with matplotlib.rc_context(theme_settings(theme)):
        drawing = make(theme, narrow)
        if drawing is None:
            return None
        out = io.BytesIO()
        drawing.savefig(out, format="png", dpi=_DPI)
        return out.getvalue(), round(drawing.get_figwidth() * 96)


def theme_settings(theme: Theme) -> Any:
    """Return matplotlib's settings for a theme."""
    return {
        "font.size": 9.5,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.faint,
        "axes.facecolor": theme.paper,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "figure.facecolor": theme.paper,
        "grid.color": theme.faint,
        "grid.alpha": 0.22,
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "text.parse_math": False,  # words of a record are not formulas
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "errorbar.capsize": 2.5,
    }


def new_figure(width: float, height: float) -> Drawing:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure as New

    new: Any = New  # its arguments have no types
    drawing: Drawing = new(figsize=(width, height), layout="constrained")
    engine: Any = drawing.get_layout_engine()
    engine.set(h_pad=0.1)  # inches between panels
    return drawing


def new_panels(
    down: int, across: int, narrow: bool, panel_size: tuple[float, float], sharey: bool = False
) -> tuple[Drawing, list[Any]]:
    """Return a figure of panels, row by row; in a narrow one, one below the other.

    Args:
        panel_size: inches of a panel in the wide picture.
        sharey: all have one scale.
    """
    width, height = NARROW if narrow else across * panel_size[0], panel_size[1]
    if narrow:
        down, across = down * across, 1
    drawing = new_figure(width, down * height)
    axes: Any = drawing.subplots(down, across, squeeze=False, sharey=sharey)
    return drawing, list(axes.reshape(-1))


def add_legend(axes: Any, narrow: bool, **place: Any) -> None:
    """Add a legend: inside the axes, or below those of a narrow picture."""
    if not narrow:
        axes.legend(**place)
        return
    lines, labels = axes.get_legend_handles_labels()
    wrapped = [textwrap.fill(label, _NARROW_LABEL) for label in labels]
    axes.legend(lines, wrapped, loc="upper left", bbox_to_anchor=(-0.02, -0.2))


def set_plain_ticks(axis: Any, show: Callable[[float], str]) -> None:
    """Use plain text for ticks: matplotlib parses its own as formulas."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda v, _: show(v)))
    axis.set_minor_formatter(NullFormatter())


def set_power_ticks(axis: Any, base: int) -> None:
    """Show ticks as powers: 2 or 10 with an exponent in small raised digits."""
    raised = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
    set_plain_ticks(
        axis, lambda v: f"{base}{str(round(math.log(v, base))).translate(raised)}" if v > 0 else ""
    )
