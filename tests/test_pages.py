"""What chapters show of measured results: cards, tables, and nothing where there are none."""

import json

import docutils.core
import pytest
from docutils import nodes

from spinwave import pages

ENVIRONMENT = {"device": "cpu", "cpu": "Abacus", "threads": 2, "torch": "2.14.1", "date": "2026-11-30T10:00:00"}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results to which a test adds files."""
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    return tmp_path


def row(contender, batch=1, **result):
    place = {"network": "100-100-10", "batch": batch, "device": "cpu", "dtype": "float32", "estimated_bytes": 1}
    return {"contender": contender, **place, **result}


def measured(contender, seconds, batch=1):
    times, floor = ({"forward": [value], "step": [value]} for value in (seconds, 1e-3))
    return row(
        contender, batch, measured=None, factor=1.0, seconds=times, floor=floor, memory={"forward": 2e9, "step": 3e9},
        error=0.0, gradient_error=0.0, first_call=1.0,
    )  # fmt: skip


def write_bench(folder, *rows):
    content = {"environment": ENVIRONMENT, "settings": {}, "parameters": {}, "rows": rows}
    (folder / pages.CPU_RESULTS).write_text(json.dumps(content))


def write_runs(folder, *devices):
    runs = [
        {"environment": {**ENVIRONMENT, "device": device}, "seconds": {"one": 8.4}, "memory": {"one": 700_000_000}}
        for device in devices
    ]
    (folder / "chapters.json").write_text(json.dumps(runs))


def test_card_shows_costs_before_and_after(results):
    write_bench(results, measured("looped", 12.0), measured("neurons", 0.5))
    write_runs(results, "cpu")
    assert pages.card("one", "*neurons* at once", "looped", "neurons").data.splitlines() == [
        "| What changes | *neurons* at once |",
        "|:--|:--|",
        "| One digit, forward and backward | `looped` 12 s → `neurons` 500 ms |",
        "| Memory for it | `looped` 3.0 GB → `neurons` 3.0 GB |",
        "| Measured on | Abacus, 2 threads |",
        "| This chapter runs in | 8 s and 700 MB on a CPU, not yet measured on a GPU |",
    ]


def test_card_shows_the_costs_of_a_batch(results):
    alone, together = measured("neurons", 9.0), (measured("neurons", 64.0, batch=8), measured("batched", 2.0, batch=8))
    write_bench(results, alone, *together)
    assert pages.card("one", "nothing", "neurons", "batched", batch=8).data.splitlines()[2:4] == [
        "| One digit of a batch of 8, forward and backward | `neurons` 8.0 s → `batched` 250 ms |",
        "| Memory for the batch | `neurons` 3.0 GB → `batched` 3.0 GB |",
    ]


def test_card_says_what_was_not_measured(results):
    write_bench(results, row("looped", skipped="no memory"))
    write_runs(results, "cpu", "Abacus GPU")
    assert pages.card("one", "nothing", after="looped").data.splitlines()[2:] == [
        "| One digit, forward and backward | `looped` not measured |",
        "| Memory for it | `looped` not measured |",
        "| Measured on | Abacus, 2 threads |",
        "| This chapter runs in | 8 s and 700 MB on a CPU, 8 s and 700 MB on Abacus GPU |",
    ]


def test_card_without_results_says_what_changes(results):
    assert pages.measured() is None
    assert pages.card("one", "nothing", "looped", "neurons").data == "| What changes | nothing |\n|:--|:--|"
    assert pages.chapter_costs().data == ""


def test_card_of_a_chapter_that_was_not_run(results):
    write_runs(results, "cpu")
    assert "runs in" not in pages.card("two", "nothing").data


def test_costs_of_the_chapters(results):
    write_runs(results, "cpu")
    assert pages.chapter_costs().data.splitlines() == [
        "| Chapter, on a CPU | Run time (s) | Peak memory |",
        "|:--|--:|--:|",
        "| `one` | 8.4 | 700 MB |",
        "",
        "Abacus, 2 threads, PyTorch 2.14.1.",
    ]


def test_damaged_results_are_refused(results):
    (results / pages.CPU_RESULTS).write_text("{")
    with pytest.raises(ValueError, match="not a whole file of benchmark results"):
        pages.card("one", "nothing", after="looped")


def test_citations_become_plain_containers_that_links_still_find():
    document = docutils.core.publish_doctree("See [A1]_.\n\n.. [A1] A book.")
    (ids,) = [citation["ids"] for citation in document.findall(nodes.citation)]
    pages._plain_citations(None, document, "bibliography")
    assert not list(document.findall(nodes.citation))
    (container,) = document.findall(nodes.container)
    assert (container["ids"], container.astext()) == (ids, "A book.")
