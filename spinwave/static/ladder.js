// Explorer 3: what each rung of the ladder would take for so many digits and epochs, from measured rows.
import { follow, frame, make, show, slider } from "./ui.js";

const STYLE = `
.sw .sw-rungs { display: block; margin: 0.75rem 0 0; }
.sw .sw-rung { display: grid; grid-template-columns: 9rem 1fr; gap: 0 0.75rem; align-items: center; padding: 0.1rem 0.25rem;
  margin: 0; border-radius: 6px; cursor: pointer; position: relative; }
.sw-rung:hover, .sw-rung:has(:checked) { background: var(--sw-soft); }
.sw-rung:has(:focus-visible) { outline: 2px solid var(--sw-a); }
.sw .sw-rungs legend { float: none; }
.sw .sw-rung input { position: absolute; opacity: 0; }
.sw-rung:has(:checked) { font-weight: 700; }
.sw-track { position: relative; height: 2.2rem; background: linear-gradient(var(--sw-line), var(--sw-line)) center / 100% 1px no-repeat; }
.sw-track i { position: absolute; top: 0.8rem; width: 0.6rem; height: 0.6rem; margin-left: -0.3rem; border-radius: 50%; background: var(--sw-a); }
.sw-rung:has(:checked) i { background: var(--sw-b); outline: 3px solid color-mix(in srgb, var(--sw-b) 35%, transparent); }
.sw-track span { position: absolute; top: -0.3rem; transform: translateX(-50%); white-space: nowrap; font-variant-numeric: tabular-nums; font-size: 0.8rem; }
.sw-axis { margin-left: 9.75rem; position: relative; height: 1.6rem; font-size: 0.8rem; }
.sw-axis span { position: absolute; transform: translateX(-50%); padding-top: 0.4rem; white-space: nowrap; }
.sw-axis span::before { content: ""; position: absolute; left: 50%; top: 0; height: 0.35rem; border-left: 1px solid; opacity: 0.6; }
.sw select { font: inherit; max-width: 100%; color: inherit; background: transparent; border: 1px solid var(--sw-line); border-radius: 4px; padding: 0.2rem; }
.sw option { color: #222; background: #fff; }
.sw dl { display: grid; grid-template-columns: auto 1fr; gap: 0.1rem 1rem; margin: 0; }
.sw :is(dt, dd) { float: none; width: auto; font-weight: 400; margin: 0; } .sw dt { opacity: 0.75; } .sw dd { overflow-wrap: anywhere; }
.sw-evidence { margin-top: 0.75rem; min-height: 8rem; }
@media (max-width: 600px) {
  .sw .sw-rung { grid-template-columns: 1fr; }
  .sw-track { margin-top: 0.5rem; }
  .sw-axis .crowded { display: none; }
  .sw .sw-axis { margin-left: 0.25rem; margin-right: 0.25rem; }
}
`;

const YEAR = 365.25 * 86400;
const UNITS = [[YEAR, "years"], [86400, "days"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const TICKS = [[1e-6, "1 µs"], [1e-3, "1 ms"], [1, "1 s"], [60, "1 min"], [3600, "1 h"], [86400, "1 day"], [YEAR, "1 year"]];
const [FIRST, LAST] = [-7, 10.5]; // powers of ten of the axis, in seconds

const place = (seconds) => (100 * (Math.min(LAST, Math.max(FIRST, Math.log10(seconds))) - FIRST)) / (LAST - FIRST);

function duration(seconds) {
  const [unit, name] = UNITS.find(([size]) => seconds >= size) ?? UNITS.at(-1);
  const number = show(seconds / unit, seconds / unit >= 100 ? 3 : 2);
  return `${number} ${number === "1" ? name.replace(/^(day|year)s$/, "$1") : name}`;
}

const count = (number, name) => `${number.toLocaleString("fr")} ${name}${number === 1 ? "" : "s"}`;

function render({ model, el }) {
  const rows = model.get("rows");
  const setting = (row) => ["task", "network", "device"].map((name) => row[name]).filter(Boolean).join(", ");
  const settings = [...new Set(rows.map(setting))];
  const id = `sw${Math.random().toString(36).slice(2)}`;
  let hovered = null;

  const select = make("select", { id, autocomplete: "off", onchange: list },
    ...settings.map((name) => make("option", {}, name)));
  const chooser = make("div", { class: "sw-bar", hidden: settings.length < 2 }, make("label", { for: id }, "Measured for"), select);
  const rungs = make("fieldset", { class: "sw-rungs" });
  const axis = make("div", { class: "sw-axis", "aria-hidden": "true" });
  axis.innerHTML = TICKS.map(([seconds, name]) => `<span style="left:${place(seconds)}%" class="${name === "1 h" ? "crowded" : ""}">${name}</span>`).join("");
  const status = make("p", { class: "sw-status", role: "status" });
  const evidence = make("div", { class: "sw-evidence" });
  frame(
    el, "Ladder explorer",
    make("style", {}, STYLE),
    make("div", { class: "sw-grid" },
      slider(model, { name: "digits", label: "Digits", min: 1, max: 60000, step: 1, log: true }),
      slider(model, { name: "epochs", label: "Epochs", unit: "passes over the digits", min: 1, max: 100, step: 1, log: true })),
    chooser, rungs, axis, status, evidence,
  );

  const shown = () => rows.filter((row) => setting(row) === settings[select.selectedIndex]);
  const time = (row) => row.seconds_per_digit * model.get("digits") * model.get("epochs");

  /** One line for every measured row of the chosen setting. */
  function list() {
    rungs.replaceChildren(
      make("legend", {}, "Rung"),
      ...shown().map((row) => {
        const radio = make("input", {
          type: "radio", name: `${id}rung`, autocomplete: "off",
          onchange() {
            model.set("rung", row.rung);
            model.save_changes();
          },
        });
        const look = (next) => () => {
          hovered = next;
          explain();
        };
        return make("label", { class: "sw-rung", onmouseenter: look(row), onmouseleave: look(null) },
          radio, make("span", {}, row.rung), make("div", { class: "sw-track" }, make("i"), make("span")));
      }),
    );
    draw();
  }

  function draw() {
    const chosen = shown().find((row) => row.rung === model.get("rung")) ?? shown()[0];
    [...rungs.querySelectorAll(".sw-rung")].forEach((line, i) => {
      const row = shown()[i];
      const [dot, text] = line.lastChild.children;
      const at = place(time(row));
      line.firstChild.checked = row === chosen;
      dot.style.left = `${at}%`;
      text.style.left = `${Math.min(90, Math.max(10, at))}%`;
      text.textContent = duration(time(row));
    });
    const slowest = shown().reduce((a, b) => (a.seconds_per_digit > b.seconds_per_digit ? a : b));
    const factor = slowest.seconds_per_digit / chosen.seconds_per_digit;
    status.textContent =
      `${chosen.rung}: ${duration(time(chosen))} for ${count(model.get("digits"), "digit")} × ${count(model.get("epochs"), "epoch")}` +
      (factor > 1 ? `, ${show(factor, 2)} times faster than ${slowest.rung}.` : ".");
    explain();
  }

  function explain() {
    const row = hovered ?? shown().find(({ rung }) => rung === model.get("rung")) ?? shown()[0];
    evidence.replaceChildren(make("dl", {},
      ...Object.entries(row).flatMap(([name, value]) => [
        make("dt", {}, name.replaceAll("_", " ")),
        make("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value)),
      ])));
  }

  list();
  return follow(model, ["digits", "epochs", "rung"], draw);
}

export default { render };
