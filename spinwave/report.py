"""What a check-up found, as text, as HTML for a notebook or a file, and as JSON."""

import html
import json
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

# From the one that stops a training to the one that says all is well.
SEVERITIES = ("severe", "warning", "note", "ok")

_WIDTH = 100
# Grounds dark enough for white letters on a light page and on a dark one.
_GROUNDS = {"severe": "#b3261e", "warning": "#8a5a00", "note": "#1f5fa8", "ok": "#2e6b34"}


@dataclass(frozen=True)
class Finding:
    """One thing that a check-up found.

    Arguments:
        severity: ``"severe"`` (an output or a gradient that no training can rely on), ``"warning"`` (a training may
            come to nothing all the same: too quiet to learn, too slow, too inaccurate), ``"note"`` (worth knowing,
            often an opportunity) or ``"ok"`` (tested and in order).
        topic: the part of the check-up that found it.
        title: the finding in a few words.
        measured: the evidence, with numbers and tolerances.
        meaning: what follows from it.
        cure: chapter of the book, as a path in the repository without ending, and its section.
        cost: what the cure costs, in a phrase.
    """

    severity: str
    topic: str
    title: str
    measured: str
    meaning: str = ""
    cure: str = ""
    cost: str = ""


@dataclass
class CheckupReport:
    """Result of :func:`spinwave.checkup`; ``str()`` is the text, a notebook shows HTML.

    Arguments:
        name: of the function.
        settings: what was checked: modes, dtype, device, seed, network, samples, versions.
        findings: in the order of the check-up.
        effective_weights: of an f that is linear or affine in x, the slope at the given w, ``(modes,)``.
        batched: of such an f, ``batched(x, w)`` for x ``(batch, modes)``: ``(batch,)`` for w ``(modes,)``, and
            ``(batch, neurons)`` for w ``(neurons, modes)``. It was compared with f, outputs and gradients in w.
            A pickled or copied report is without it: it holds f, which may be a function that pickle does not take.
    """

    name: str
    settings: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    effective_weights: Tensor | None = None
    batched: Callable[[Tensor, Tensor], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "batched": None}

    @property
    def severe(self) -> bool:
        """Whether a severe finding stands."""
        return any(finding.severity == "severe" for finding in self.findings)

    def of(self, *severities: str) -> list[Finding]:
        """Findings of these severities, the most severe first."""
        return [finding for severity in SEVERITIES if severity in severities for finding in self._with(severity)]

    def _with(self, severity: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == severity]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data: everything but ``batched``."""
        weights = self.effective_weights
        return {
            "name": self.name,
            "settings": dict(self.settings),
            "severe": self.severe,
            "findings": [asdict(finding) for finding in self.findings],
            "effective_weights": None if weights is None else weights.tolist(),
        }

    @classmethod
    def from_dict(cls, said: dict[str, Any]) -> "CheckupReport":
        """The report that :meth:`as_dict` wrote, without ``batched``."""
        weights = said["effective_weights"]
        return cls(
            said["name"],
            said["settings"],
            [Finding(**finding) for finding in said["findings"]],
            None if weights is None else torch.tensor(weights, dtype=torch.float64),
        )

    def to_json(self) -> str:
        """:meth:`as_dict` as JSON."""
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False)

    @property
    def _counts(self) -> str:
        parts = []
        for severity in SEVERITIES:
            n = len(self._with(severity))
            parts.append(f"{n} {severity}" + ("s" if n != 1 and severity in ("warning", "note") else ""))
        return ", ".join(parts)

    @property
    def _subject(self) -> str:
        s = self.settings
        return (
            f"{s['modes']} modes, {s['dtype']} on {s['device']}, seed {s['seed']}, PyTorch {s['torch']}; "
            f"took {s['seconds']:.3g} s"
        )

    def __str__(self) -> str:
        lines = [f"Check-up of {self.name}", self._subject, self._counts]
        for finding in self.of("severe", "warning", "note"):
            lines.append("")
            lines += _hanging(f"{finding.severity.upper()}  ", f"[{finding.topic}] {finding.title}", indent=4)
            for label, text in _rows(finding):
                lines += _hanging(f"    {label:<9} ", text)
        if self._with("ok"):
            lines += ["", "In order:"]
        for finding in self._with("ok"):
            lines += _hanging("    ", f"[{finding.topic}] {finding.title}: {finding.measured}", indent=8)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Self-contained: inline styles that follow the page's colours, no script, nothing fetched."""
        e = html.escape
        parts = [
            '<div style="overflow-wrap:anywhere;line-height:1.45">',
            f'<div style="font-size:1.1em"><b>Check-up of <code>{e(self.name)}</code></b></div>',
            f"<div>{e(self._subject)}</div>",
            f"<div>{e(self._counts)}</div>",
        ]
        for finding in self.of("severe", "warning", "note"):
            ground = _GROUNDS[finding.severity]
            opened = " open" if finding.severity in ("severe", "warning") else ""
            rows = "".join(
                f'<div style="margin:.15em 0 .15em 1em"><b>{e(label)}</b> {e(text)}</div>'
                for label, text in _rows(finding)
            )
            parts.append(
                f'<details{opened} style="margin:.6em 0;padding-left:.7em;border-left:4px solid {ground}">'
                f'<summary style="cursor:pointer">{_badge(finding.severity)} {e(finding.topic)}: '
                f"<b>{e(finding.title)}</b></summary>{rows}</details>"
            )
        if self._with("ok"):
            items = "".join(
                f'<div style="margin:.15em 0 .15em 1em"><b>{e(f.topic)}: {e(f.title)}</b> {e(f.measured)}</div>'
                for f in self._with("ok")
            )
            parts.append(
                f'<details style="margin:.6em 0;padding-left:.7em;border-left:4px solid {_GROUNDS["ok"]}">'
                f'<summary style="cursor:pointer">{_badge("ok")} {len(self._with("ok"))} '
                f"tested and in order</summary>{items}</details>"
            )
        return "\n".join([*parts, "</div>"])

    def page(self) -> str:
        """A whole HTML page, light or dark as the reader's system is."""
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            f"<title>Check-up of {html.escape(self.name)}</title>\n"
            "<style>:root{color-scheme:light dark}body{font-family:system-ui,sans-serif;max-width:50rem;"
            "margin:1.5rem auto;padding:0 1rem}</style>\n"
            f"</head>\n<body>\n{self._repr_html_()}\n</body>\n</html>\n"
        )


def _badge(severity: str) -> str:
    return (
        f'<span style="background:{_GROUNDS[severity]};color:#fff;border-radius:.3em;padding:.05em .45em;'
        f'font-size:.85em;white-space:nowrap">{severity}</span>'
    )


def _rows(finding: Finding) -> list[tuple[str, str]]:
    rows = (
        ("measured", finding.measured),
        ("meaning", finding.meaning),
        ("cure", finding.cure),
        ("costs", finding.cost),
    )
    return [(label, text) for label, text in rows if text]


def _hanging(head: str, text: str, indent: int | None = None) -> list[str]:
    """The text wrapped behind its head, later lines indented."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * (len(head) if indent is None else indent),
        break_on_hyphens=False,
    )
