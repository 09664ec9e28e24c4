"""Figures that the command line and the chapters share. Every function returns a matplotlib Figure."""

import io
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure


def learning_curves(histories: dict[str, list[dict[str, float]]]) -> "Figure":
    """Loss and test error by epoch.

    Arguments:
        histories: the ``history`` of one or more runs, by the name that the legend shows.
    """
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """Labels the ticks that a LogFormatter would, with numbers in place of powers of ten."""

        def __call__(self, x: float, pos: Any = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    figure, (loss, error) = _subplots(2, (5, 5.6))  # one above the other, for narrow screens
    for index, (name, history) in enumerate(histories.items()):
        epochs = [entry["epoch"] for entry in history]
        test = {"linestyle": "--", "marker": "s", "markersize": 3, "color": f"C{index}"}
        loss.plot(epochs, [e["train_loss"] for e in history], "o-", ms=3, color=f"C{index}", label=f"{name}, training")
        loss.plot(epochs, [e["test_loss"] for e in history], label=f"{name}, test", **test)
        error.plot(epochs, [100 * (1 - e["test_accuracy"]) for e in history], label=name, **test)
    for axes, label in ((loss, "cross entropy (nats)"), (error, "test error (%)")):
        # Without a mistake there is nothing that a logarithm could show.
        axes.set(xlabel="epoch", ylabel=label, yscale="log" if axes.dataLim.ymax > 0 else "linear")
        if axes.get_yscale() == "log":
            axes.yaxis.set_major_formatter(Plain())
            axes.yaxis.set_minor_formatter(Plain())
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(True, which="both", alpha=0.3)
        axes.legend(fontsize="small")
    return figure


def confusion_matrix(confusion: Any) -> "Figure":
    """How often each class was taken for each other, as counts; the right answers are left out of the colours.

    Arguments:
        confusion: counts ``(classes, classes)``, true class by predicted class, nested lists or a tensor.
    """
    import numpy as np

    counts = np.asarray(confusion)
    mistakes = counts - np.diag(np.diag(counts))
    figure, axes = _subplots(1, (5, 4.4))
    image = axes.imshow(mistakes, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        dark = mistakes[row, column] > mistakes.max() / 2
        axes.text(
            column, row, str(count), ha="center", va="center", fontsize="small", color="white" if dark else "black"
        )
    axes.set(xlabel="predicted digit", ylabel="true digit", xticks=range(len(counts)), yticks=range(len(counts)))
    figure.colorbar(image, label="mistakes (images)")
    return figure


def ladder(
    results: dict[str, Any],
    network: str | None = None,
    batches: "Sequence[int] | None" = None,
    quantity: str = "step",
) -> "Figure":
    """Seconds per digit of every rung, and of the other ways, on a logarithmic axis.

    Hollow points are extrapolated from a part of the network; whiskers span all repeats; dashed lines are
    ``nn.Linear`` layers of the same shape, the floor.

    Arguments:
        results: as read by :func:`spinwave.bench.load_results`.
        network: sizes; by default those of the first row.
        batches: by default all that the results hold for the network.
        quantity: ``"forward"``, or ``"step"`` for forward and backward.

    Raises:
        ValueError: no such rows.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator

    from .bench import OTHERS, in_seconds, seconds_per_digit, select

    if batches is None:
        network = next(iter(select(results, network).values()))["network"]
        batches = list(dict.fromkeys(row["batch"] for row in results["rows"] if row["network"] == network))
    series = {batch: select(results, network, batch) for batch in batches}
    names = list(dict.fromkeys(name for rows in series.values() for name in rows if name != "linear"))
    # Others stand below the ladder, at a distance.
    places = {name: index + (0.5 if name in OTHERS else 0) for index, name in enumerate(names)}

    figure, axes = _subplots(1, (5, 1.3 + 0.42 * len(names)))
    for index, (batch, rows) in enumerate(series.items()):
        color, marker = f"C{index}", "osD^v"[index % 5]
        shift = 0.2 * (index - (len(series) - 1) / 2)
        for name, row in rows.items():
            if "skipped" in row:
                continue
            seconds = seconds_per_digit(row, quantity)
            middle = statistics.median(seconds)
            if name == "linear":
                axes.axvline(middle, color=color, linestyle="--", linewidth=1, zorder=0)
                continue
            axes.errorbar(
                middle,
                places[name] + shift,
                xerr=[[middle - min(seconds)], [max(seconds) - middle]],
                fmt=marker,
                color=color,
                markerfacecolor="white" if row["measured"] else color,
                capsize=3,
            )
            if index == 0:
                axes.annotate(
                    in_seconds(middle), (middle, places[name] + shift), (0, 5), textcoords="offset points", ha="center"
                )
        axes.plot([], [], marker, color=color, label=f"batch {batch}")
    axes.plot([], [], "o", color="gray", markerfacecolor="white", label="extrapolated")
    axes.plot([], [], "--", color="gray", label="nn.Linear")
    axes.set(xscale="log", xlabel=f"one digit, {'forward' if quantity == 'forward' else 'forward + backward'}")
    axes.set_yticks(list(places.values()), [OTHERS.get(name, name) for name in places])
    axes.set_ylim(max(places.values(), default=0) + 0.6, -0.8)
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(LogLocator(numticks=7))  # labels of all decades of a long ladder would touch
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_seconds(value).replace(".0 ", " ")))
    axes.grid(True, axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def _subplots(rows: int, size: tuple[float, float]) -> tuple["Figure", Any]:
    # A Figure of its own: pyplot would keep it alive, and pick a window system where there is none.
    from matplotlib.figure import Figure

    class Drawing(Figure):
        def _repr_png_(self) -> bytes:
            """How a notebook shows the figure, with pyplot or without."""
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=150)
            return content.getvalue()

    figure = Drawing(figsize=size, layout="constrained")
    return figure, figure.subplots(rows)
