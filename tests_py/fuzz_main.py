"""python fuzz_main.py SEED SECONDS: random cases from this seed on, for that long, at least one.

Prints the seed of each case before it runs, so that the last one is to blame for a crash; a case
that takes a minute is a hang. A failure prints what was called.
"""

import faulthandler
import importlib
import random
import resource
import sys
import time
import traceback
import warnings

import torch
from fuzz_draw import Draw

MOST_MEMORY = 16 << 30
FAMILIES = {
    "fuzz_matmul": ("call_matmul", "call_matmul", "call_matmul", "call_prepared"),
    "fuzz_quant": ("call_quantizer", "call_smoothquant", "call_classifier"),
    "fuzz_conv": ("call_conv2d", "call_conv2d"),
    "fuzz_files": ("load_state", "load_mp_config", "load_stream_config"),
}


def shown(value):
    """A value in one short line."""
    if isinstance(value, torch.Tensor) and (value.numel() > 8 or value.device.type != "cpu"):
        return f"{value.dtype} {tuple(value.shape)} strides {value.stride()} on {value.device}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return " ".join(repr(value).split())[:400]


def main(seed, seconds, only=""):
    families = [(m, f) for m, functions in FAMILIES.items() for f in functions if only in f]
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    torch.set_num_threads(1)  # small calls: on a busy machine threads only wait
    warnings.simplefilter("ignore")
    end = time.monotonic() + seconds
    while True:
        module, name = random.Random(seed).choice(families)
        print(seed, name, flush=True)
        faulthandler.dump_traceback_later(60, exit=True)
        draw = Draw(seed)
        try:
            getattr(importlib.import_module(module), name)(draw)
        except BaseException:
            traceback.print_exc(limit=-6)
            for key, value in draw.shown.items():
                print(f"  {key} = {shown(value)}", file=sys.stderr)
            sys.exit(1)
        faulthandler.cancel_dump_traceback_later()
        seed += 1
        if time.monotonic() >= end:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
