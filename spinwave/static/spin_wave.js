// Explorer 1: one neuron. Kernels, the spin wave as modes are stored, the output against one weight, and H.
import {
  clifford, causalStep, continuum, continuumResponse, couplings, discretized, discretizedResponse, dot, grid,
  LARGEST_COUPLING, limitWeights, readIn, readoutRow, spinWave, starkPhase, store,
} from "./physics.js";
import { choice, follow, frame, make, plot, show, slider } from "./ui.js";

const WEIGHT = { name: "weight", label: "Its weight w", min: -3, max: 3, step: 0.01 };

function render({ model, el }) {
  const fields = model.get("fields");
  const sliders = fields.map((field) => slider(model, field));
  const modesField = { name: "modes", label: "Number of modes", min: 1, max: model.get("w").length, step: 1 };
  const modes = slider(model, modesField);
  const modeField = { name: "mode", label: "Mode looked at", min: 1, max: model.get("modes"), step: 1 };
  const mode = slider(model, modeField);
  const weight = slider(model, WEIGHT, {
    get: () => model.get("w")[model.get("mode") - 1],
    set(value) {
      model.set("w", model.get("w").map((other, i) => (i === model.get("mode") - 1 ? value : other)));
      model.save_changes();
    },
  });

  let stored = model.get("modes");
  let timer = 0;
  const storedField = { name: "stored", label: "Modes stored so far", min: 0, max: stored, step: 1 };
  const progress = slider(model, storedField, {
    get: () => stored,
    set(value) {
      stored = value;
      draw();
    },
  });
  const go = (to) => {
    stored = Math.min(to, model.get("modes"));
    if (stored === model.get("modes")) halt();
    progress.refresh();
    draw();
  };
  const halt = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  };
  const play = make("button", {
    type: "button",
    onclick() {
      if (timer) return halt();
      // Whoever asks for less motion gets the result.
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) return go(Infinity);
      go(stored === model.get("modes") ? 0 : stored + 1);
      timer = setInterval(() => go(stored + 1), 700);
      play.textContent = "Pause";
    },
  }, "Play");
  const step = make("button", {
    type: "button",
    onclick() {
      halt();
      go(stored === model.get("modes") ? 0 : stored + 1);
    },
  }, "Store next mode");

  const plots = {
    readIn: plot("Read-in g(z) of the mode", "position z"),
    partial: plot("Partial read-out by the mode", "distance z − z′"),
    final: plot("Final read-out row", "position z"),
    wave: plot("Spin wave B(z)", "position z"),
    response: plot("Output f against the weight", "weight w of the mode"),
    weights: plot("Effective weights H", "mode"),
  };
  const status = make("p", { class: "sw-status", role: "status" });
  const note = make("p", { class: "sw-note", role: "status", hidden: true });
  const key = make("p", { "aria-hidden": "true" });
  key.innerHTML =
    '<span class="key a"></span>real part&ensp; <span class="key b"></span>imaginary part&ensp; ' +
    '<span class="key a dashed"></span>or ring: the other model';
  frame(
    el, "Spin-wave neuron explorer",
    make("div", { class: "sw-grid" }, ...sliders, modes, mode, weight), note,
    make("div", { class: "sw-bar" },
      choice(model, "model", "Model", [["continuum", "closed form"], ["discretized", "grid"]])),
    make("div", { class: "sw-grid" }, progress, make("div", { class: "sw-bar" }, play, step)),
    key, make("div", { class: "sw-grid" }, ...Object.values(plots)), status,
  );

  function draw() {
    const n = model.get("modes");
    const k = Math.min(model.get("mode"), n) - 1;
    const p = Object.fromEntries(
      ["coupling_total", "readout_coupling", "points", "steepness", "detuning", "optical_depth"].map((name) => [
        name, model.get(name),
      ]),
    );
    const x = model.get("x").slice(0, n);
    const { w, count } = limitWeights(model.get("w").slice(0, n), p);
    note.hidden = !count;
    note.textContent = count
      ? `${count} of ${n} modes limited to a coupling of ${LARGEST_COUPLING}, the end of the validated range`
      : "";

    const a = couplings(w, p);
    const phase = starkPhase(p);
    const g = grid(p.points);
    const z = Float64Array.from({ length: 101 }, (_, i) => i / 100);
    const d = Float64Array.from({ length: 141 }, (_, i) => (i - 40) / 100);
    const most = Math.min(3, (LARGEST_COUPLING * n) / p.coupling_total);
    const values = Float64Array.from({ length: 61 }, (_, i) => (i / 30 - 1) * most);
    const square = p.readout_coupling ** 2;
    const kernel = (steepness) => d.map((distance) => {
      const b = a[k] ** 2;
      return b * causalStep(distance, steepness) * clifford(1, b * Math.max(distance, 0));
    });

    const exact = {
      readIn: { xs: z, ...spinWave([1], [a[k]], phase, z) },
      partial: { xs: d, re: kernel(Infinity) },
      final: { xs: z, re: z.map((position) => p.readout_coupling * clifford(1, square * (1 - position))) },
      wave: { xs: z, ...spinWave(x.slice(0, stored), a.subarray(0, stored), phase, z) },
      response: { xs: values, re: continuumResponse(x, w, p, k, values) },
      weights: { re: continuum(w, p) },
    };
    const onGrid = {
      readIn: { xs: g.z, ...readIn(a[k], phase, g) },
      partial: { xs: d, re: kernel(p.steepness) },
      final: { xs: g.z, re: readoutRow(p, g).map((value, i) => value / g.q[i]) },
      wave: { xs: g.z, ...store(x.slice(0, stored), a.subarray(0, stored), p, g)[stored] },
      response: { xs: values, re: discretizedResponse(x, w, p, k, values) },
      weights: { re: discretized(w, p) },
    };
    const chosenIsGrid = model.get("model") === "discretized";
    const [chosen, other] = chosenIsGrid ? [onGrid, exact] : [exact, onGrid];
    const name = chosenIsGrid ? "grid" : "closed form";

    for (const panel of ["readIn", "partial", "final", "wave", "response"]) {
      const curves = [];
      for (const [part, color] of [["im", "b"], ["re", "a"]]) {
        if (!chosen[panel][part]) continue;
        curves.push({ xs: chosen[panel].xs, ys: chosen[panel][part], style: color });
        curves.push({ xs: other[panel].xs, ys: other[panel][part], style: `${color} other` });
      }
      const { re, im } = chosen[panel];
      const range = `from ${show(Math.min(...re), 3)} to ${show(Math.max(...re), 3)}`;
      plots[panel].draw({
        curves,
        x: { partial: [-0.4, 1], response: [-3, 3] }[panel] ?? [0, 1],
        dots: panel === "response" ? [[w[k], dot(x, chosen.weights.re), "dot"]] : [],
        alt: `${plots[panel].firstChild.textContent}, ${name}: ${im ? "real part " : ""}${range}`,
      });
    }
    const numbers = Float64Array.from(a, (_, i) => i + 1);
    const h = chosen.weights.re;
    plots.weights.draw({
      bars: [{ xs: numbers, ys: h, style: "curve a thick" }],
      dots: Array.from(other.weights.re, (value, i) => [numbers[i], value, "ring"]),
      x: [0.5, n + 0.5],
      alt: `Effective weights of ${n} modes, ${name}: mode ${k + 1} has ${show(h[k], 3)}`,
    });

    const largest = Math.max(...exact.weights.re.map(Math.abs));
    const apart = Math.max(...h.map((value, i) => Math.abs(value - other.weights.re[i])));
    status.textContent =
      `f = ${show(dot(x, exact.weights.re))} in closed form, ${show(dot(x, onGrid.weights.re))} on the grid. ` +
      `Their effective weights differ by ${largest ? show((100 * apart) / largest, 2) : 0} % of the largest.` +
      ` Coupling of mode ${k + 1}: a = ${show(a[k], 3)}.`;
  }

  // The sliders of modes depend on one another.
  const limits = () => {
    modesField.max = model.get("w").length;
    modes.refresh();
    const n = model.get("modes");
    const all = stored === storedField.max;
    modeField.max = storedField.max = n;
    stored = all ? n : Math.min(stored, n);
    if (model.get("mode") > n) model.set("mode", n);
    for (const part of [mode, progress, weight]) part.refresh();
  };
  for (const field of ["modes", "mode", "w"]) model.on(`change:${field}`, limits);
  const stop = follow(model, [...fields.map((field) => field.name), "modes", "mode", "w", "x", "model"], draw);
  draw();
  return () => {
    stop();
    halt();
    for (const figure of Object.values(plots)) figure.stop();
  };
}

export default { render };
