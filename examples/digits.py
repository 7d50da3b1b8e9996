"""Stochastic computing on a real task: handwritten digits through small networks.

Trains a two-block transformer and a small CNN in plain float32 torch on the digits that ship with
scikit-learn (1797 images of 8x8 pixels), then evaluates them on the held-out fifth with every
product on bit streams. Prints three tables and draws them:

1. the transformer with every matrix product (linear layers, Q K^T, attention times V, classifier)
   replaced by `scmp_kernels.sc_matmul`, at stream lengths from 256 down to 8;
2. mixed precision: lengths that differ by row against uniform ones at an equal mean length, i.e. an
   equal number of cycles per multiply-accumulate (`digits_mixed.py` says how they are chosen). All
   scales are per row there, as lengths by row need it, those of the uniform ones too;
3. a CNN (dense 3x3, depthwise 3x3, pointwise 1x1) through `scmp_kernels.sc_conv2d`.

    python examples/digits.py             about a minute on two idle cores
    python examples/digits.py --quick     some seconds, networks trained too little

Columns: stream length in cycles; accuracy; relative error of the logits against float32 (Frobenius
norm); stochastic-computing multiply-accumulates per second of the whole forward pass; time of that
pass over the time of float32's.
"""

import argparse

import torch
from digits_cnn import DigitsCNN
from digits_evaluate import evaluate, print_mixed, print_table
from digits_mixed import CALIBRATION_LENGTHS, calibrate, mixed_matmuls
from digits_model import (
    SC_PREC,
    DigitsTransformer,
    FloatMatmul,
    StochasticMatmul,
    load_data,
    one_thread,
    train,
)
from digits_picture import draw

LENGTHS = (256, 128, 64, 32, 16, 8)
MIXED_LENGTHS = LENGTHS[1:]  # at the longest there is nothing longer to mix in
STYLES = {
    "uniform": ("uniform, scales per row", {"marker": "s", "color": "tab:green"}),
    "rows": ("mixed by rows", {"marker": "^", "color": "tab:red", "linestyle": "--"}),
    "calibrated": ("mixed, calibrated", {"marker": "v", "color": "tab:orange"}),
}


def curve(label, style, results):
    """Return what `draw` takes for a list of results."""
    points = [(r.length, r.accuracy, r.logit_error) for r in results]
    return label, style, points


def main():
    parser = argparse.ArgumentParser(
        description="Train small networks on digits, evaluate them with stochastic computing."
    )
    parser.add_argument("--output", default="digits_accuracy.png", help="picture to write")
    parser.add_argument("--epochs", type=int, default=60, help="training epochs (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of split, weights and training")
    parser.add_argument("--quick", action="store_true", help="8 epochs, timed once: for CI")
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where to evaluate (default: the GPU when there is one); training is on the CPU",
    )
    args = parser.parse_args()
    epochs, rounds = (8, 1) if args.quick else (args.epochs, 7)
    torch.manual_seed(args.seed)
    train_x, train_y, *test = load_data(args.seed)
    test = [x.to(args.device) for x in test]
    where = args.device if args.device != "cpu" else f"{torch.get_num_threads()} threads"

    model = DigitsTransformer()
    train(model, train_x, train_y, epochs, description="training transformer")
    model.to(args.device)
    matmuls = [FloatMatmul(), *(StochasticMatmul(length) for length in LENGTHS)]
    results = evaluate(model, *test, matmuls, rounds)
    print(f"{len(test[0])} test images, sc_prec={SC_PREC}, {where}")
    print_table(results)

    count, lengths = (64, CALIBRATION_LENGTHS[::2]) if args.quick else (300, CALIBRATION_LENGTHS)
    uniform = [StochasticMatmul(length, attention="per_row") for length in MIXED_LENGTHS]
    with one_thread():
        calibration = calibrate(model, train_x[:count].to(args.device), lengths)
        kinds = [FloatMatmul(), *uniform, *mixed_matmuls(calibration, MIXED_LENGTHS)]
        float32, *mixed = evaluate(model, *test, kinds, 1, "mixed precision")
    n = len(MIXED_LENGTHS)
    groups = {"uniform": mixed[:n], "rows": mixed[n : 2 * n], "calibrated": mixed[2 * n :]}
    print("mixed precision at equal mean length, a scale per row everywhere")
    print_mixed(MIXED_LENGTHS, groups)

    torch.manual_seed(args.seed)
    cnn = DigitsCNN()
    train(cnn, train_x, train_y, epochs, description="training CNN")
    with one_thread():
        cnn_results = evaluate(cnn.to(args.device), *test, matmuls, min(rounds, 3))
    where = args.device if args.device != "cpu" else "1 thread"
    print(f"CNN: dense 3x3, depthwise 3x3, pointwise 1x1 through sc_conv2d, {where}")
    print_table(cnn_results)

    draw(
        [
            curve("transformer, uniform", {"marker": "o", "color": "tab:blue"}, results[1:]),
            *(
                curve(f"transformer, {label}", style, groups[kind])
                for kind, (label, style) in STYLES.items()
            ),
            curve("CNN, uniform", {"marker": "D", "color": "tab:purple"}, cnn_results[1:]),
        ],
        [
            ("transformer, float32", {"color": "black", "linestyle": "--"}, float32.accuracy),
            ("CNN, float32", {"color": "tab:purple", "linestyle": ":"}, cnn_results[0].accuracy),
        ],
        LENGTHS,
        args.output,
    )
    print(f"picture: {args.output}")


if __name__ == "__main__":
    main()
