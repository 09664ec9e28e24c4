// The physics of one spin-wave neuron in float64: the closed form and the grid model of spinwave/effective.py.
//
// Parameters `p` are objects with the fields of Python's SpinWaveParameters, under the same names. Couplings are
// a_i = w_i C_total / n, and b_i = a_i^2. C_n is a Bessel-Clifford function: J_n(2 sqrt(c)) = c^(n/2) C_n(c).

export const MODE_NORMALISATION = (3.14 / Math.PI) ** 0.25;

// Largest |a| per mode for which these functions are tested against PyTorch.
export const LARGEST_COUPLING = 5;

const GRID_EDGE = 1e-10;
const SWITCH = 16;

// P and Q of Hankel's form for J_0 and J_1 as polynomials in 16 / c, lowest power first: those of spinwave/bessel.py.
export const HANKEL = [
  [
    [
      1, -0.0010986328124940497, 2.7380883396213333e-05, -2.18391370916552e-06,
      3.619796847019117e-07, -1.020738967079073e-07, 4.259621569036549e-08, -2.229296496119801e-08,
      1.1847433676494211e-08, -5.175933954877116e-09, 1.5085549601351533e-09, -2.0995666028197915e-10,
    ],
    [
      -0.01562499999999998, 0.00014305114745475928, -6.930785875070624e-06, 8.238385038932825e-07,
      -1.8158445456937552e-07, 6.377275619769075e-08, -3.147768253253297e-08, 1.84995056569585e-08,
      -1.0553433517664698e-08, 4.803649188850482e-09, -1.4342744370738477e-09, 2.0262953094329415e-10,
    ],
  ],
  [
    [
      1, 0.0018310546874936876, -3.520399300493312e-05, 2.580989644711851e-06,
      -4.102481413356521e-07, 1.1283619641156013e-07, -4.6345375285662205e-08, 2.4020357187056722e-08,
      -1.2695697232698128e-08, 5.529994111163271e-09, -1.6090449520262866e-09, 2.2371765561506739e-10,
    ],
    [
      0.04687499999999998, -0.00020027160643877278, 8.47096056476612e-06, -9.505834798450298e-07,
      2.029512036377805e-07, -6.986195499472577e-08, 3.40364081156448e-08, -1.9844412607264603e-08,
      1.1269929518036778e-08, -5.117095005671213e-09, 1.5256994461932332e-09, -2.1535963284658179e-10,
    ],
  ],
];

function horner(coefficients, t) {
  let value = 0;
  for (let k = coefficients.length - 1; k >= 0; k--) value = value * t + coefficients[k];
  return value;
}

/** C_0(c) or C_1(c) for c >= 0; absolute error below 1e-13 up to c = 1e4. */
export function clifford(n, c) {
  if (c < SWITCH) {
    let term = 1;
    let sum = 1;
    for (let k = 1; Math.abs(term) > 1e-18; k++) {
      term *= -c / (k * (n + k));
      sum += term;
    }
    return sum;
  }
  const root = Math.sqrt(c);
  const [p, q] = HANKEL[n];
  const chi = 2 * root - (n / 2 + 0.25) * Math.PI;
  const wave = horner(p, SWITCH / c) * Math.cos(chi) - (4 / root) * horner(q, SWITCH / c) * Math.sin(chi);
  return wave / Math.sqrt(Math.PI * root) / (n ? root : 1);
}

const rules = new Map();

/** Nodes u and weights of the m-point Gauss-Legendre rule on [0, 1]. */
export function gauss(m) {
  if (!rules.has(m)) {
    const rule = { nodes: new Float64Array(m), weights: new Float64Array(m) };
    for (let i = 0; i < m; i++) {
      let x = Math.cos((Math.PI * (i + 0.75)) / (m + 0.5)); // close enough for Newton's method
      let slope = 0;
      for (let step = 0; step < 8; step++) {
        let [before, value] = [0, 1];
        for (let k = 1; k <= m; k++) [before, value] = [value, ((2 * k - 1) * x * value - (k - 1) * before) / k];
        slope = (m * (x * value - before)) / (x * x - 1);
        x -= value / slope;
      }
      rule.nodes[i] = (1 + x) / 2;
      rule.weights[i] = 1 / ((1 - x * x) * slope * slope);
    }
    rules.set(m, rule);
  }
  return rules.get(m);
}

/**
 * The rule that integrates C_0(b u + A) exp(i phase b u) over u to 1e-15 for any A >= 0.
 *
 * On the ellipse around [0, 1] with sum of half-axes rho / 2 the integrand is at most
 * exp(sqrt(b (rho + 1/rho - 2)) + phase b (rho - 1/rho) / 4), and m nodes err by that times rho^(-2m), nearly.
 */
function rule(b, phase) {
  const bound = b > 0 ? 2 ** Math.ceil(Math.log2(b)) : 0; // few different rules
  let fewest = Infinity;
  for (let rho = 2; rho < 1e12; rho *= 2) {
    const growth = Math.sqrt(bound * (rho + 1 / rho - 2)) + (Math.abs(phase) * bound * (rho - 1 / rho)) / 4;
    fewest = Math.min(fewest, Math.ceil((growth + 36) / (2 * Math.log(rho))));
  }
  return gauss(fewest);
}

/** Stark phase, detuning over optical depth. */
export const starkPhase = (p) => p.detuning / p.optical_depth;

/** Couplings a_i. Throws a RangeError beyond the validated range. */
export function couplings(w, p) {
  const a = Float64Array.from(w, (value) => (value * p.coupling_total) / w.length);
  if (!a.every((value) => Math.abs(value) <= LARGEST_COUPLING * (1 + 1e-12))) {
    throw new RangeError(`couplings must be finite and at most ${LARGEST_COUPLING} per mode`);
  }
  return a;
}

/** Weights cut to the validated range of couplings, and how many were. */
export function limitWeights(w, p) {
  const largest = (LARGEST_COUPLING * w.length) / p.coupling_total;
  const limited = Float64Array.from(w, (value) => Math.min(largest, Math.max(-largest, value)));
  return { w: limited, count: limited.reduce((count, value, i) => count + (value !== w[i]), 0) };
}

// ---- closed form

/** Effective weights H(w) of one neuron, closed form. */
export function continuum(w, p) {
  const a = couplings(w, p);
  const phase = starkPhase(p);
  const square = p.readout_coupling ** 2;
  const h = new Float64Array(a.length);
  let later = 0; // sum of the squared couplings of later modes
  for (let i = a.length - 1; i >= 0; i--) {
    const b = a[i] * a[i];
    const { nodes, weights } = rule(b, phase);
    let integral = 0;
    for (let k = 0; k < nodes.length; k++) {
      const c = later + b * nodes[k];
      integral += weights[k] * (clifford(0, c) - clifford(0, c + square)) * Math.cos(phase * b * (1 - nodes[k]));
    }
    h[i] = ((MODE_NORMALISATION * a[i]) / p.readout_coupling) * integral;
    later += b;
  }
  return h;
}

/** Spin wave B at the positions z after the modes with couplings a were stored, closed form. */
export function spinWave(x, a, phase, z) {
  const re = new Float64Array(z.length);
  const im = new Float64Array(z.length);
  let later = 0;
  for (let i = a.length - 1; i >= 0; i--) {
    const b = a[i] * a[i];
    const { nodes, weights } = rule(b, phase);
    for (let k = 0; k < nodes.length; k++) {
      const size = MODE_NORMALISATION * x[i] * a[i] * weights[k];
      const turn = phase * b * (1 - nodes[k]);
      const [cosine, sine] = [size * Math.cos(turn), size * Math.sin(turn)];
      for (let j = 0; j < z.length; j++) {
        const value = clifford(0, (later + b * nodes[k]) * z[j]);
        re[j] += cosine * value;
        im[j] -= sine * value;
      }
    }
    later += b;
  }
  return { re, im };
}

// ---- grid model

/** The grid z and its trapezoid weights q. */
export function grid(points) {
  const spacing = (1 - 2 * GRID_EDGE) / (points - 1);
  const z = Float64Array.from({ length: points }, (_, i) => GRID_EDGE + i * spacing);
  const q = new Float64Array(points).fill(spacing);
  q[0] /= 2;
  q[points - 1] /= 2;
  return { z, q, spacing };
}

/**
 * Read-in g(a) on the grid.
 *
 * C_0(b z (1 - w)) is summed as a power series in z whose coefficients hold the sums over w: N times the number of
 * terms in place of N^2 Bessel functions. At the largest coupling cancellation leaves 13 digits.
 */
export function readIn(a, phase, { z, q }) {
  const b = a * a;
  const re = new Float64Array(z.length);
  const im = new Float64Array(z.length);
  const cosine = q.map((weight, j) => weight * Math.cos(phase * b * z[j]));
  const sine = q.map((weight, j) => weight * Math.sin(phase * b * z[j]));
  const power = new Float64Array(z.length).fill(MODE_NORMALISATION * a); // eta a (-b z)^k / k!^2
  for (let k = 0, size = 1; size > 1e-18; ) {
    let [real, imaginary] = [0, 0];
    for (let j = 0; j < z.length; j++) {
      real += cosine[j];
      imaginary -= sine[j];
      cosine[j] *= 1 - z[j];
      sine[j] *= 1 - z[j];
    }
    k++;
    for (let j = 0; j < z.length; j++) {
      re[j] += power[j] * real;
      im[j] += power[j] * imaginary;
      power[j] *= (-b * z[j]) / (k * k);
    }
    size *= b / (k * k);
  }
  return { re, im };
}

/** Smoothed causal step S(z - z'). */
export const causalStep = (difference, steepness) =>
  steepness === Infinity ? (1 + Math.sign(difference)) / 2 : 1 / (1 + Math.exp(-steepness * difference));

/** Partial read-out b S(d) C_1(b d) at the 2N - 1 differences d = z - z' of the grid, from -1 to 1. */
export function partialReadout(a, p, { spacing }) {
  const b = a * a;
  return Float64Array.from({ length: 2 * p.points - 1 }, (_, k) => {
    const difference = (k - p.points + 1) * spacing;
    return b * causalStep(difference, p.steepness) * clifford(1, b * Math.max(difference, GRID_EDGE));
  });
}

/** Row r of the final read-out, f = r Re B. */
export function readoutRow(p, { z, q }) {
  const square = p.readout_coupling ** 2;
  return z.map((zi, i) => {
    let sum = 0;
    for (let j = 0; j < z.length; j++) sum += q[j] * clifford(0, square * (1 - zi) * z[j]);
    return q[i] * p.readout_coupling * sum;
  });
}

/** B - M B, with the partial read-out as 2N - 1 values. */
function readOut(B, kernel, q) {
  const last = B.length - 1;
  return B.map((value, i) => {
    let sum = 0;
    for (let j = 0; j < B.length; j++) sum += kernel[i - j + last] * q[j] * B[j];
    return value - sum;
  });
}

/** The spin waves after 0, 1, ... n modes on the grid. */
export function store(x, a, p, g) {
  const phase = starkPhase(p);
  const waves = [{ re: new Float64Array(p.points), im: new Float64Array(p.points) }];
  for (let i = 0; i < a.length; i++) {
    const kernel = partialReadout(a[i], p, g);
    const mode = readIn(a[i], phase, g);
    const next = {};
    for (const part of ["re", "im"]) {
      next[part] = readOut(waves[i][part], kernel, g.q);
      for (let j = 0; j < p.points; j++) next[part][j] += x[i] * mode[part][j];
    }
    waves.push(next);
  }
  return waves;
}

/** The rows r_i that read the spin wave out after mode i, through all later modes: f = r_i Re B_i + later inputs. */
export function adjointRows(a, p, g) {
  const rows = [];
  let r = readoutRow(p, g);
  for (let i = a.length - 1; i >= 0; i--) {
    rows[i] = r;
    const kernel = partialReadout(a[i], p, g);
    const before = r;
    r = before.map((value, j) => {
      let sum = 0;
      for (let k = 0; k < before.length; k++) sum += before[k] * kernel[k - j + p.points - 1];
      return value - sum * g.q[j];
    });
  }
  return rows;
}

/** Effective weights H(w) of one neuron, grid model. */
export function discretized(w, p) {
  const g = grid(p.points);
  const a = couplings(w, p);
  const phase = starkPhase(p);
  return Float64Array.from(adjointRows(a, p, g), (row, i) => dot(row, readIn(a[i], phase, g).re));
}

// ---- both

export function dot(x, y) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
  return sum;
}

/** Output f for every value of weight k, the others kept: closed form. */
export function continuumResponse(x, w, p, k, values) {
  return values.map((value) => dot(x, continuum(Array.from(w, (other, i) => (i === k ? value : other)), p)));
}

/** The same on the grid. Only one read-in and one read-out depend on the value. */
export function discretizedResponse(x, w, p, k, values) {
  const g = grid(p.points);
  const a = couplings(w, p);
  const phase = starkPhase(p);
  const rows = adjointRows(a, p, g);
  const before = store(x, a.subarray(0, k), p, g)[k].re;
  let later = 0;
  for (let i = k + 1; i < a.length; i++) later += x[i] * dot(rows[i], readIn(a[i], phase, g).re);
  return values.map((value) => {
    const [coupling] = couplings([value], { coupling_total: p.coupling_total / a.length });
    const stored = dot(rows[k], readOut(before, partialReadout(coupling, p, g), g.q));
    return later + stored + x[k] * dot(rows[k], readIn(coupling, phase, g).re);
  });
}
