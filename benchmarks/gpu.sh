#!/usr/bin/env bash
# Every GPU figure of the book on one card: the rungs that a GPU is for, training steps beside nn.Linear, an ensemble
# beside its networks, and ten epochs of MNIST, operator by operator and with every step recorded as a CUDA graph. Writes
# benchmarks/results/NAME.json, NAME-scaling.json, NAME-training.json and NAME-graph-training.json.
#
#     bash benchmarks/gpu.sh NAME          (DEVICE=cpu tries the script without a card)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
name=${1:?expected a name for the results, for instance that of the card}
device=${DEVICE:-cuda}

python -m spinwave bench --device "$device" --name "$name" --rungs toeplitz effective separable continuum linear
python -m spinwave bench --scaling --device "$device" --name "$name-scaling"

run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
python -m spinwave train --device "$device" --out "$run/plain"
cp "$run/plain/metrics.json" "benchmarks/results/$name-training.json"
if [ "$device" != cpu ]; then
  python -m spinwave train --device "$device" --graph --out "$run/graph"
  cp "$run/graph/metrics.json" "benchmarks/results/$name-graph-training.json"
fi
