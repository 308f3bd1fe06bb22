"""A backend of matplotlib: the figures of a notebook's cell become outputs of the cell (`tests.docs.notebooks`)."""

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas  # noqa: F401  # matplotlib looks for this name

from tests.docs import notebooks


def show(*_: object, **__: object) -> None:
    """`plt.show` in a cell."""
    notebooks.NOW[0].figures()
