"""Figures that the command line and the chapters share. Every function returns a matplotlib Figure."""

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def learning_curves(histories: dict[str, list[dict[str, float]]]) -> "Figure":
    """Loss and test error by epoch.

    Arguments:
        histories: the ``history`` of one or more runs, by the name that the legend shows.
    """
    figure, (loss, error) = _subplots(2, (8, 3.2))
    for index, (name, history) in enumerate(histories.items()):
        epochs = [entry["epoch"] for entry in history]
        test = {"linestyle": "--", "marker": "s", "markersize": 3, "color": f"C{index}"}
        loss.plot(epochs, [e["train_loss"] for e in history], "o-", ms=3, color=f"C{index}", label=f"{name}, training")
        loss.plot(epochs, [e["test_loss"] for e in history], label=f"{name}, test", **test)
        error.plot(epochs, [100 * (1 - e["test_accuracy"]) for e in history], label=name, **test)
    for axes, label in ((loss, "cross entropy (nats)"), (error, "test error (%)")):
        # Without a mistake there is nothing that a logarithm could show.
        axes.set(xlabel="epoch", ylabel=label, yscale="log" if axes.dataLim.ymax > 0 else "linear")
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


def _subplots(columns: int, size: tuple[float, float]) -> Any:
    # A Figure of its own: pyplot would keep it alive, and pick a window system where there is none.
    from matplotlib.figure import Figure

    class Drawing(Figure):
        def _repr_png_(self) -> bytes:
            """How a notebook shows the figure, with pyplot or without."""
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=150)
            return content.getvalue()

    figure = Drawing(figsize=size, layout="constrained")
    return figure, figure.subplots(1, columns)
