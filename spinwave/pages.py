"""What the pages of the book share: where measured results lie, and the card at the top of a chapter.

Also a Sphinx extension that makes the bibliography readable for screen readers.
"""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import scaling
from .bench import in_bytes, in_seconds, load_results, price, seconds_per_digit, select

# A wheel carries the results inside the package.
RESULTS = Path(__file__).parent / "results"
if not RESULTS.exists():
    RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
CPU_RESULTS = "cpu-2-cores.json"


def measured(name: str = CPU_RESULTS) -> dict[str, Any] | None:
    """Results that the repository carries, or None where the package was installed without it.

    Raises:
        ValueError: the file is there and cannot be read.
    """
    file = RESULTS / name
    return load_results(file) if file.exists() else None


def card(
    chapter: str, changes: str, before: str | None = None, after: str | None = None, batch: int | None = None
) -> Any:
    """Card at the top of a chapter, from measured results: what changes, the cost before and after, the time to run.

    Arguments:
        chapter: file name of the chapter without its ending.
        changes: what the chapter changes, a few words of Markdown.
        before: rung that the chapter starts from, if it is about speed.
        after: rung that it ends with.
        batch: digits a pass, one of the batches that were measured; by default the first of them.

    Returns:
        A Markdown display for a notebook.
    """
    from IPython.display import Markdown

    lines = [f"| What changes | {changes} |", "|:--|:--|"]
    results = measured()
    if results is not None and after is not None:
        rows = select(results, batch=batch)
        names = [name for name in (before, after) if name is not None]
        digit, memory = ("One digit", "it") if batch is None else (f"One digit of a batch of {batch}", "the batch")
        costs: dict[str, Callable[[dict[str, Any]], str]] = {
            f"{digit}, forward and backward": lambda row: in_seconds(statistics.median(seconds_per_digit(row))),
            f"Memory for {memory}": lambda row: in_bytes(row["memory"]["step"]),
        }
        for label, cost in costs.items():
            values = [f"`{n}` " + ("not measured" if "skipped" in rows[n] else cost(rows[n])) for n in names]
            lines.append(f"| {label} | {' → '.join(values)} |")
        lines.append(f"| Measured on | {results['environment']['cpu']}, {results['environment']['threads']} threads |")
    took = [
        f"{run['seconds'][chapter]:.0f} s and {in_bytes(run['memory'][chapter])} on {_device(run)}"
        for run in chapter_runs()
        if chapter in run["seconds"]
    ]
    if took:
        if all(run["environment"]["device"] == "cpu" for run in chapter_runs()):
            took.append("not yet measured on a GPU")
        lines.append(f"| This chapter runs in | {', '.join(took)} |")
    return Markdown("\n".join(lines))


def chapter_runs() -> list[dict[str, Any]]:
    """Recorded runs of all chapters by themselves, one entry for each kind of device; none without the results."""
    file = RESULTS / "chapters.json"
    runs: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return runs


def chapter_costs() -> Any:
    """Seconds and peak memory of every chapter by itself, as recorded, as a Markdown display."""
    from IPython.display import Markdown

    lines = []
    for run in chapter_runs():
        lines += [f"| Chapter, on {_device(run)} | Run time (s) | Peak memory |", "|:--|--:|--:|"]
        for chapter, seconds in run["seconds"].items():
            lines.append(f"| `{chapter}` | {seconds:.1f} | {in_bytes(run['memory'][chapter])} |")
        environment = run["environment"]
        lines += ["", f"{environment['cpu']}, {environment['threads']} threads, PyTorch {environment['torch']}.", ""]
    return Markdown("\n".join(lines))


def _device(run: dict[str, Any]) -> str:
    device: str = run["environment"]["device"]
    return "a CPU" if device == "cpu" else device


def headline(results: dict[str, Any]) -> Any:
    """The ladder's two ends, its floor and the price of training in a few sentences, as a Markdown display.

    Arguments:
        results: as :func:`measured` returns them.
    """
    from IPython.display import Markdown

    batches = sorted({row["batch"] for row in results["rows"]})
    one, many = (select(results, batch=batch) for batch in (batches[0], batches[-1]))
    first, last = (statistics.median(seconds_per_digit(one[name])) for name in ("looped", "continuum"))
    in_batch = statistics.median(seconds_per_digit(many["continuum"]))
    steps = scaling.load(RESULTS / "cpu-2-cores-scaling.json")["rows"]
    small, large = (
        next(row for row in steps if (row["sizes"], row["batch"]) == (sizes, 1024))
        for sizes in ([100, 100, 10], [784, 1000, 1000, 10])
    )
    return Markdown(
        f"Forward and backward pass of one digit through 100-100-10 neurons: {in_seconds(first)} in the loop, "
        f"{in_seconds(last)} in closed form, and {in_seconds(in_batch)} a digit in batches of {batches[-1]}, where the "
        f"network costs {price(many['continuum']):.2g} times one of ordinary linear layers. A whole training "
        f"step, optimiser included, costs {scaling.price(small):.2f} times one of theirs in batches of "
        f"{small['batch']}, "
        f"with {'-'.join(map(str, large['sizes']))} neurons {scaling.price(large):.2f} times. "
        f"Measured on {results['environment']['cpu']} with {results['environment']['threads']} threads, "
        f"{results['environment']['date'][:10]}; hollow points are extrapolated from a part of the network."
    )


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", _plain_citations)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _plain_citations(app: Any, doctree: Any, docname: str) -> None:
    # docutils gives citations a role that ARIA 1.3 withdraws, in a list whose items it does not allow
    from docutils import nodes

    for citation in list(doctree.findall(nodes.citation)):
        text = [child for child in citation.children if not isinstance(child, nodes.label)]
        citation.replace_self(nodes.container("", *text, ids=citation["ids"], classes=["citation"]))
