// What the explorers share: style, sliders, plots. Colours derive from the text colour of the page around, so that
// light and dark themes need no telling; the data colours have contrast 3:1 on both.

const BASE_STYLE = `
.sw { margin: 1rem 0; padding: 4px; line-height: 1.4; font-size: 0.9rem; --sw-a: #2e7fc2; --sw-b: #c4661f;
  --sw-line: color-mix(in srgb, currentColor 22%, transparent); --sw-soft: color-mix(in srgb, currentColor 7%, transparent); }
.sw *, .sw *::before { box-sizing: border-box; }
.sw p { margin: 0; }
.sw :focus-visible { outline: 2px solid var(--sw-a); outline-offset: 2px; }
.sw-grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 14.5rem), 1fr)); gap: 0.6rem 1.5rem;
  align-items: end; margin: 0.75rem 0; }
.sw-slider { display: grid; grid-template-columns: 1fr auto; align-items: center; column-gap: 0.5rem; align-content: start; }
.sw-slider input[type=range] { grid-column: 1 / -1; width: 100%; height: 1.6rem; margin: 0; accent-color: var(--sw-a); }
.sw-slider small { opacity: 0.75; }
.sw input[type=number] { width: 6rem; padding: 0.05rem 0.3rem; text-align: right; font: inherit;
  font-variant-numeric: tabular-nums; color: inherit; background: transparent; border: 1px solid var(--sw-line); border-radius: 4px; }
.sw-note { grid-column: 1 / -1; color: var(--sw-b); font-weight: 600; }
.sw-bar { display: flex; flex-wrap: wrap; gap: 0.5rem; align-items: center; margin: 0.5rem 0; }
.sw button { font: inherit; color: inherit; background: var(--sw-soft); border: 1px solid var(--sw-line); border-radius: 6px;
  min-height: 2.2rem; padding: 0.25rem 0.8rem; cursor: pointer; }
.sw button:hover { border-color: currentColor; }
.sw button[aria-pressed=true] { border-color: var(--sw-a); box-shadow: inset 0 0 0 1px var(--sw-a); }
.sw button:disabled { opacity: 0.5; cursor: default; }
.sw fieldset { border: 0; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; }
.sw legend { float: left; padding: 0; margin: 0 0.25rem 0 0; font: inherit; font-weight: 600; width: auto; line-height: 1.6rem; }
.sw fieldset label { display: inline-flex; gap: 0.35rem; align-items: center; margin: 0; min-height: 1.6rem; }
.sw input[type=radio], .sw input[type=checkbox] { accent-color: var(--sw-a); margin: 0; width: 1rem; height: 1rem; }
.sw figure { margin: 0 !important; padding: 0; min-width: 0; } /* the book's theme insists on its own */
.sw figcaption { font: inherit; font-weight: 600; color: inherit; margin: 0 !important; padding: 0 !important; text-align: left; }
.sw svg { display: block; width: 100%; overflow: visible; }
.sw svg text { fill: currentColor; font-size: 12px; font-family: inherit; }
.sw .tick { stroke: var(--sw-line); stroke-width: 1; }
.sw .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.sw .other { stroke-width: 1.5; stroke-dasharray: 5 4; }
.sw .thick { stroke-width: 5; }
.sw .a { stroke: var(--sw-a); } .sw .b { stroke: var(--sw-b); }
.sw .dot { fill: var(--sw-a); stroke: none; } .sw .ring { fill: none; stroke: currentColor; stroke-width: 1.5; }
.sw .key { display: inline-block; width: 1.4rem; height: 0; border-top: 2.5px solid; vertical-align: middle; margin-right: 0.3rem; }
.sw .key.a { border-color: var(--sw-a); } .sw .key.b { border-color: var(--sw-b); } .sw .key.dashed { border-top-style: dashed; }
.sw-status { font-variant-numeric: tabular-nums; padding: 0.5rem 0.75rem; background: var(--sw-soft); border-radius: 6px; }
.sw [hidden] { display: none; }
`;

/** A DOM element: attributes by name, `onclick` and other properties too, then children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** The root of an explorer inside `el`, in place of what was there. */
export function frame(el, label, ...children) {
  const root = make("div", { class: "sw", role: "group", "aria-label": label }, make("style", {}, BASE_STYLE), ...children);
  el.replaceChildren(root);
  return root;
}

/** A number for people: four digits, minus signs and powers of ten as printed. */
export function show(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-3 || size >= 1e5 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  const superscript = (power) => power.replace(/./g, (c) => ({ "-": "⁻", "+": "" })[c] ?? "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);
  return text.replace(/\.?0*e(.*)$/, (_, power) => ` × 10${superscript(power)}`).replace("-", "−");
}

/** The model that anywidget would hand over, for a page without a kernel. */
export function staticModel(state) {
  const listeners = {};
  return {
    get: (name) => state[name],
    set(name, value) {
      state[name] = value;
      for (const listener of listeners[`change:${name}`] ?? []) listener();
    },
    on: (event, listener) => (listeners[event] ??= []).push(listener),
    off: (event, listener) => (listeners[event] = listeners[event]?.filter((other) => other !== listener)),
    save_changes() {},
  };
}

/** Call `draw` before the next frame after any change of the named values; returns the way to stop. */
export function follow(model, names, draw) {
  let frame = 0;
  const schedule = () => (frame ||= requestAnimationFrame(() => ((frame = 0), draw())));
  for (const name of names) model.on(`change:${name}`, schedule);
  return () => {
    cancelAnimationFrame(frame);
    for (const name of names) model.off(`change:${name}`, schedule);
  };
}

/**
 * A labelled slider with a number field. A number outside [min, max], typed or from the kernel, is cut to it, and a note
 * says so until there is another number.
 *
 * `field` holds name, label, unit, min, max, and log or step. `access` reads and writes the value, by default that of
 * the model. The element has a method `refresh`.
 */
export function slider(model, field, access = {}) {
  const { label, unit = "", log = false } = field;
  const get = access.get ?? (() => model.get(field.name));
  const set =
    access.set ??
    ((value) => {
      model.set(field.name, value);
      model.save_changes();
    });
  const id = `sw${Math.random().toString(36).slice(2)}`;
  const [to, from] = log ? [Math.log10, (t) => Number((10 ** t).toPrecision(3))] : [Number, Number];
  const range = make("input", {
    type: "range", id, autocomplete: "off",
    min: String(to(field.min)), max: String(to(field.max)), step: log ? "any" : String(field.step ?? "any"),
  });
  const number = make("input", { type: "number", step: "any", autocomplete: "off", "aria-label": `${label}, value` });
  const note = make("p", { class: "sw-note", role: "status", hidden: true });
  let noted = null; // the number that the note is about
  const cut = (value) => {
    const limited = Math.min(field.max, Math.max(field.min, value));
    const whole = field.step === 1 ? Math.round(limited) : limited;
    if (limited !== value) {
      noted = whole;
      note.textContent = `limited to ${show(limited)}: ${log && field.step === 1 ? "" : "validated "}from ${show(field.min)} to ${show(field.max)}`;
    } else if (whole !== noted) {
      noted = null;
      note.textContent = "";
    }
    note.hidden = noted === null;
    return whole;
  };
  const element = make(
    "div", { class: "sw-slider" },
    make("label", { for: id }, label, unit && make("small", {}, ` (${unit})`)), number, range, note,
  );
  element.refresh = () => {
    const inside = cut(get());
    if (inside !== get()) set(inside);
    range.max = String(to(field.max));
    range.value = String(to(get()));
    range.setAttribute("aria-valuetext", `${show(get())} ${unit}`);
    number.value = String(Number(get().toPrecision(6)));
  };
  // Log sliders have no steps of their own; an arrow key is a twentieth of a decade.
  range.addEventListener("keydown", (event) => {
    const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!log || !direction) return;
    event.preventDefault();
    const next = from(Number(range.value) + direction / 20);
    const stuck = field.step === 1 && Math.round(next) === get();
    enter(Math.min(field.max, Math.max(field.min, stuck ? get() + direction : next)));
  });
  const enter = (value) => {
    noted = null;
    set(cut(value));
    element.refresh();
  };
  range.addEventListener("input", () => enter(from(range.value)));
  number.addEventListener("change", () => {
    if (Number.isFinite(number.valueAsNumber)) enter(number.valueAsNumber);
    else element.refresh();
  });
  element.refresh();
  if (!access.get) model.on(`change:${field.name}`, element.refresh);
  return element;
}

/** Choose one of [value, label] pairs of a model's field. */
export function choice(model, name, title, options) {
  const group = `sw${Math.random().toString(36).slice(2)}`;
  const radios = options.map(([value, label]) => {
    const onchange = () => {
      model.set(name, value);
      model.save_changes();
    };
    const radio = make("input", { type: "radio", name: group, autocomplete: "off", onchange });
    radio.choice = value;
    return make("label", {}, radio, label);
  });
  const refresh = () => radios.forEach(({ firstChild }) => (firstChild.checked = firstChild.choice === model.get(name)));
  model.on(`change:${name}`, refresh);
  refresh();
  return make("fieldset", {}, make("legend", {}, title), ...radios);
}

/** A round number that divides [low, high] into a few steps. */
function tickStep(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

/** Its multiples in [low, high]. */
function ticks(low, high) {
  const step = tickStep(low, high);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

/**
 * A figure with axes. `draw({curves, bars, dots, x: [low, high], alt})` draws curves {xs, ys, style}, bars at whole xs
 * and dots [x, y, style].
 */
export function plot(title, xLabel) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("role", "img");
  const figure = make("figure", {}, make("figcaption", {}, title), svg);
  let content = null;
  const paint = () => {
    const width = figure.clientWidth;
    if (!content || !width) return;
    const { curves = [], bars = [], dots = [], x: [low, high], alt } = content;
    const height = 190;
    const [left, right, top, bottom] = [52, width - 8, 8, height - 38];
    const values = [...curves, ...bars].flatMap(({ ys }) => Array.from(ys)).concat(dots.map(([, y]) => y), [0]);
    let [least, most] = [Math.min(...values), Math.max(...values)];
    if (least === most) [least, most] = [-1, 1];
    const step = tickStep(least, most);
    [least, most] = [Math.floor(least / step + 1e-9) * step, Math.ceil(most / step - 1e-9) * step];
    const X = (x) => (left + ((x - low) / (high - low)) * (right - left)).toFixed(1);
    const Y = (y) => (bottom - ((y - least) / (most - least)) * (bottom - top)).toFixed(1);
    let text = "";
    for (const y of ticks(least, most)) {
      text += `<line class="tick" x1="${left}" x2="${right}" y1="${Y(y)}" y2="${Y(y)}"/>`;
      text += `<text x="${left - 6}" y="${Y(y)}" dy="0.32em" text-anchor="end">${axisNumber(y, step)}</text>`;
    }
    for (const x of ticks(low, high)) {
      text += `<line class="tick" x1="${X(x)}" x2="${X(x)}" y1="${bottom}" y2="${bottom + 4}"/>`;
      text += `<text x="${X(x)}" y="${bottom + 17}" text-anchor="middle">${axisNumber(x, 0.1)}</text>`;
    }
    text += `<text x="${(left + right) / 2}" y="${height - 4}" text-anchor="middle">${xLabel}</text>`;
    for (const { xs, ys, style } of bars) {
      for (let i = 0; i < ys.length; i++) {
        text += `<line class="${style}" x1="${X(xs[i])}" x2="${X(xs[i])}" y1="${Y(0)}" y2="${Y(ys[i])}"/>`;
      }
    }
    for (const { xs, ys, style } of curves) {
      text += `<path class="curve ${style}" d="M${Array.from(ys, (y, i) => `${X(xs[i])} ${Y(y)}`).join("L")}"/>`;
    }
    for (const [x, y, style] of dots) text += `<circle class="${style}" cx="${X(x)}" cy="${Y(y)}" r="5"/>`;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("aria-label", alt);
    svg.innerHTML = text;
  };
  const observer = new ResizeObserver(paint);
  observer.observe(figure);
  figure.draw = (next) => {
    content = next;
    paint();
  };
  figure.stop = () => observer.disconnect();
  return figure;
}

function axisNumber(value, step) {
  if (Math.abs(value) < 1e-12 * Math.abs(step) || value === 0) return "0";
  if (Math.abs(step) >= 1e-3 && Math.abs(value) < 1e5) return String(Number(value.toPrecision(6))).replace("-", "−");
  return Number(value.toPrecision(3)).toExponential().replace("e-", "e−").replace(/^-/, "−");
}
