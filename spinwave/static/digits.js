// Explorer 2: draw a digit, a trained network of spin-wave neurons classifies it; sliders change its physics.
import { continuum, LARGEST_COUPLING, limitWeights } from "./physics.js";
import { choice, follow, frame, make, show, slider } from "./ui.js";

const STYLE = `
.sw-digits { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 13rem), 1fr)); gap: 1rem 1.5rem; align-items: start; }
.sw .pad { max-width: 17rem; aspect-ratio: 1; background: #10151c; border-radius: 6px; touch-action: none; cursor: crosshair;
  border: 1px solid var(--sw-line); }
.sw .pad rect { fill: #fff; }
.sw .pad .guide { fill: none; stroke: #fff; stroke-opacity: 0.3; stroke-width: 0.04; stroke-dasharray: 0.2 0.2; }
.sw .pad .cursor { fill: none; stroke: #ffb000; stroke-width: 0.08; visibility: hidden; }
.sw .pad:focus-visible .cursor { visibility: visible; }
.sw .hidden-units { max-width: 17rem; aspect-ratio: 1; }
.sw .hidden-units rect { fill: var(--sw-a); }
.sw .output { display: grid; grid-template-columns: 1.2rem 1fr 4.2rem; gap: 0.5rem; align-items: center; height: 1.55rem; }
.sw .output i { height: 0.8rem; background: var(--sw-a); border-radius: 2px; opacity: 0.55; }
.sw .output.best { font-weight: 700; } .sw .output.best i { opacity: 1; }
.sw .output span:last-child { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.sw .verdict { margin-top: 0.4rem; font-weight: 600; }
.sw-score { display: flex; flex-wrap: wrap; gap: 0.25rem 1.5rem; align-items: baseline; }
.sw-score strong { font-size: 1.5rem; }
`;

const bytes = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

const inflate = async (data) =>
  new Uint8Array(await new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());

/** Numbers from the upper three bytes of their float32. */
function widen(parts) {
  const whole = new Uint8Array((parts.length / 3) * 4);
  parts.forEach((byte, i) => (whole[Math.floor(i / 3) * 4 + (i % 3) + 1] = byte));
  return new Float32Array(whole.buffer);
}

/** Outputs (images, outputs) of a linear layer, without its gain. */
function multiply(images, matrix, inputs, outputs) {
  const count = images.length / inputs;
  const result = new Float64Array(count * outputs);
  for (let s = 0; s < count; s++) {
    for (let o = 0; o < outputs; o++) {
      let sum = 0;
      for (let i = 0, m = o * inputs, x = s * inputs; i < inputs; i++) sum += matrix[m + i] * images[x + i];
      result[s * outputs + o] = sum;
    }
  }
  return result;
}

const rectify = (y) => y.map((value) => Math.max(0, value));

const rootMeanSquare = (y) => Math.sqrt(y.reduce((sum, value) => sum + value * value, 0) / y.length);

/** Logarithm of the sum of exponentials, of which the largest alone may overflow. */
function logSumExp(logits) {
  const most = Math.max(...logits);
  return most + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
}

function softmax(logits) {
  const total = logSumExp(logits);
  return Array.from(logits, (logit) => Math.exp(logit - total));
}

const argmax = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);

async function render({ model, el }) {
  const size = model.get("size");
  const labels = model.get("labels");
  const images = Float64Array.from(await inflate(bytes(model.get("pixels"))), (grey) => grey / 255);
  const layers = model.get("layers").map(({ inputs, outputs, gain, weights }) => {
    const numbers = widen(bytes(weights));
    return { inputs, outputs, gain, rows: Array.from({ length: outputs }, (_, o) => numbers.subarray(o * inputs, (o + 1) * inputs)) };
  });
  const fields = model.get("fields");
  const physics = () => Object.fromEntries(fields.map(({ name }) => [name, model.get(name)]));
  const trained = model.get("trained");

  // ---- the drawing (MNIST's digits fill the middle five sevenths of their image)

  const pad = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  let picture = new Float64Array(size * size);
  let shown = null; // number of the test digit, or null for a drawing
  let cursor = [Math.floor(size / 2), Math.floor(size / 2)]; // row, column
  let erasing = false;
  let lastPoint = null;
  pad.innerHTML =
    Array.from(picture, (_, i) => `<rect x="${i % size}" y="${Math.floor(i / size)}" width="1.01" height="1.01"/>`).join("") +
    `<rect class="guide" x="${size / 7}" y="${size / 7}" width="${(5 * size) / 7}" height="${(5 * size) / 7}"/>` +
    '<rect class="cursor" width="1" height="1"/>';
  for (const [name, value] of Object.entries({
    class: "pad", viewBox: `0 0 ${size} ${size}`, tabindex: "0", role: "application", "aria-roledescription": "drawing pad",
  })) pad.setAttribute(name, value);

  const changePicture = (next, number = null) => {
    picture = next;
    shown = number;
    classify();
  };
  /** A soft round brush: full in the middle of a stroke, nothing 1.05 pixels from it, with the ink of MNIST's strokes. */
  const stamp = (x, y) => {
    for (let i = 0; i < picture.length; i++) {
      const ink = Math.min(1, Math.max(0, 1.05 - Math.hypot((i % size) + 0.5 - x, Math.floor(i / size) + 0.5 - y)));
      picture[i] = erasing ? Math.min(picture[i], 1 - ink) : Math.max(picture[i], ink);
    }
  };
  const stroke = (event) => {
    const box = pad.getBoundingClientRect();
    const to = [((event.clientX - box.left) / box.width) * size, ((event.clientY - box.top) / box.height) * size];
    const from = lastPoint ?? to;
    const steps = Math.ceil(Math.hypot(to[0] - from[0], to[1] - from[1]) * 4) || 1;
    for (let k = 1; k <= steps; k++) stamp(from[0] + ((to[0] - from[0]) * k) / steps, from[1] + ((to[1] - from[1]) * k) / steps);
    lastPoint = to;
    changePicture(picture);
  };
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    // The first stroke after a test digit starts a picture of one's own.
    if (shown !== null && !erasing) picture = new Float64Array(size * size);
    lastPoint = null;
    stroke(event);
  });
  pad.addEventListener("pointermove", (event) => event.buttons && lastPoint && stroke(event));
  for (const end of ["pointerup", "pointercancel"]) pad.addEventListener(end, () => (lastPoint = null));
  pad.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (move) {
      cursor = cursor.map((at, axis) => Math.min(size - 1, Math.max(0, at + move[axis])));
      describe();
    } else if (event.key === " " || event.key === "Enter") {
      const i = cursor[0] * size + cursor[1];
      const next = picture.slice();
      next[i] = picture[i] > 0.5 ? 0 : 1;
      changePicture(next);
    } else if (event.key === "Backspace" || event.key === "Delete") {
      changePicture(new Float64Array(size * size));
    } else return;
    event.preventDefault();
  });

  const testDigit = (step) => () => {
    const number = shown === null ? (step > 0 ? 0 : labels.length - 1) : (shown + step + labels.length) % labels.length;
    changePicture(images.slice(number * size * size, (number + 1) * size * size), number);
  };
  const button = (text, onclick, label = text) => make("button", { type: "button", "aria-label": label, onclick }, text);
  const setErasing = (on) => {
    erasing = on;
    erase.setAttribute("aria-pressed", String(on));
  };
  const erase = button("Erase", () => setErasing(!erasing));
  setErasing(false);

  // ---- what the network makes of it

  const verdict = make("p", { class: "verdict", role: "status" });
  const classes = layers.at(-1).outputs;
  const outputs = make("div", { role: "img" });
  outputs.innerHTML = Array.from(
    { length: classes }, (_, k) => `<div class="output"><span>${k}</span><i></i><span></span></div>`,
  ).join("");
  const width = Math.ceil(Math.sqrt(layers[0].outputs));
  const units = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ class: "hidden-units", viewBox: `0 0 ${width} ${width}`, role: "img" })) {
    units.setAttribute(name, value);
  }
  units.innerHTML = Array.from({ length: layers[0].outputs }, (_, i) =>
    `<rect x="${(i % width) + 0.08}" y="${Math.floor(i / width) + 0.08}" width="0.84" height="0.84" rx="0.12"/>`,
  ).join("");
  const accuracy = make("strong");
  const loss = make("span");
  const score = make("div", { class: "sw-score sw-status", role: "status" }, accuracy, loss);
  const note = make("p", { class: "sw-note", role: "status", hidden: true });

  frame(
    el, "Digit explorer",
    make("style", {}, STYLE),
    make("div", { class: "sw-digits" },
      make("figure", {}, make("figcaption", {}, "Draw in the frame"), pad,
        make("div", { class: "sw-bar" },
          button("Clear", () => {
            setErasing(false); // nothing is left to erase
            changePicture(new Float64Array(size * size));
          }), erase,
          button("Previous", testDigit(-1), "Previous test digit"),
          button("Next", testDigit(1), "Next test digit"))),
      make("figure", {}, make("figcaption", {}, `${layers[0].outputs} hidden neurons`), units),
      make("figure", {}, make("figcaption", {}, "Output"), outputs, verdict)),
    score, note,
    make("div", { class: "sw-grid" }, ...fields.map((field) => slider(model, field))),
    make("div", { class: "sw-bar" },
      choice(model, "readjust", "Detector gain", [[false, "fixed, as trained"], [true, "readjusted"]]),
      button("Physics as trained", () => {
        for (const [name, value] of Object.entries(trained)) model.set(name, value);
        model.save_changes();
      })),
  );

  /** Matrices and outputs for all test digits at the physics p. Layer l gets the gain that `choose` makes of its size. */
  function compute(p, choose) {
    const result = { matrices: [], gains: [], sizes: [], limited: 0, logits: images };
    layers.forEach(({ inputs, outputs, gain, rows }, l) => {
      const matrix = new Float64Array(inputs * outputs);
      rows.forEach((row, o) => {
        const { w, count } = limitWeights(row, p);
        result.limited += count;
        matrix.set(continuum(w, p), o * inputs);
      });
      const y = multiply(l ? rectify(result.logits) : images, matrix, inputs, outputs);
      const size = rootMeanSquare(y);
      const used = choose(l, gain, size);
      result.matrices.push(matrix);
      result.gains.push(used);
      result.sizes.push(used * size);
      result.logits = y.map((value) => used * value);
    });
    return result;
  }

  const sizes = compute(trained, (l, gain) => gain).sizes;
  let network;

  /** The network and its score at the physics of the sliders. */
  function update() {
    const begin = performance.now();
    network = compute(physics(), (l, gain, size) => (model.get("readjust") && size > 0 ? sizes[l] / size : gain));
    let [right, nats] = [0, 0];
    for (let s = 0; s < labels.length; s++) {
      const logits = network.logits.subarray(s * classes, (s + 1) * classes);
      right += argmax(logits) === labels[s];
      nats += (logSumExp(logits) - logits[labels[s]]) / labels.length; // softmax itself may be 0
    }
    accuracy.textContent = `${show((100 * right) / labels.length, 4)} %`;
    loss.textContent =
      `of ${labels.length} test digits right; mean cross entropy ${show(nats, 3)}; ` +
      `computed in ${Math.round(performance.now() - begin)} ms`;
    note.hidden = !network.limited;
    note.textContent = network.limited
      ? `${network.limited} weights limited to a coupling of ${LARGEST_COUPLING}, the end of the validated range`
      : "";
    classify();
  }

  function classify() {
    let y = picture;
    let hidden = null;
    layers.forEach(({ inputs, outputs }, l) => {
      y = multiply(l ? rectify(y) : y, network.matrices[l], inputs, outputs).map((value) => value * network.gains[l]);
      hidden ??= y;
    });
    const brightest = Math.max(...hidden, 1e-300);
    [...units.children].forEach((unit, i) => unit.setAttribute("fill-opacity", (0.1 + 0.9 * Math.max(0, hidden[i] / brightest)).toFixed(3)));
    const lit = hidden.filter((value) => value > 0).length;
    units.setAttribute("aria-label", `${lit} of ${hidden.length} hidden neurons lit`);
    const shares = softmax(y);
    const best = argmax(shares);
    const empty = picture.every((value) => value === 0);
    [...outputs.children].forEach((row, k) => {
      row.classList.toggle("best", !empty && k === best);
      row.children[1].style.width = `${100 * shares[k]}%`;
      row.children[2].textContent = `${(100 * shares[k]).toFixed(1)} %`;
    });
    outputs.setAttribute("aria-label", `Outputs: ${shares.map((share, k) => `${k}: ${(100 * share).toFixed(0)} %`).join(", ")}`);
    verdict.textContent = empty
      ? "Nothing drawn yet."
      : shown === null
        ? `Reads a ${best}.`
        : `Test digit ${shown + 1}, a ${labels[shown]}: reads a ${best}, ${best === labels[shown] ? "right" : "wrong"}.`;
    describe();
  }

  function describe() {
    picture.forEach((value, i) => pad.children[i].setAttribute("fill-opacity", value.toFixed(3)));
    const [row, column] = cursor;
    pad.lastChild.setAttribute("x", column);
    pad.lastChild.setAttribute("y", row);
    pad.setAttribute(
      "aria-label",
      `Drawing pad, ${size} by ${size} pixels. Arrow keys move, space paints or erases, Backspace clears. ` +
        `Row ${row + 1}, column ${column + 1}: ${picture[row * size + column] > 0.5 ? "ink" : "empty"}. ` +
        verdict.textContent,
    );
  }

  update();
  testDigit(1)();
  return follow(model, [...fields.map((field) => field.name), "readjust"], update);
}

export default { render };
