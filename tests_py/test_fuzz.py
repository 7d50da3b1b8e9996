"""Random calls for a minute: a ValueError or the reference's result, never a crash.

SCMP_FUZZ_SECONDS runs them longer or shorter; SCMP_FUZZ_SEED is the seed of the first case. The
cases run in a process of their own (fuzz_main.py), so that a crash leaves the seed of its case.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("SCMP_FUZZ_SECONDS", 60))
IN_CI = "CI" in os.environ  # there the same cases every time, as of hypothesis
SEED = int(os.environ.get("SCMP_FUZZ_SEED", 0 if IN_CI else time.time_ns() % 10**9))


def test_random_calls():
    main = Path(__file__).with_name("fuzz_main.py")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, main, str(SEED), str(SECONDS)],
        env=variables,
        capture_output=True,
        text=True,
    )
    last = done.stdout.rpartition("\n")[0].rpartition("\n")[2] or f"{SEED} (none was started)"
    if done.returncode:
        pytest.fail(
            f"case {last} ended with code {done.returncode}; to run it alone: SCMP_FUZZ_SECONDS=0 "
            f"SCMP_FUZZ_SEED={last.split()[0]} pytest tests_py/test_fuzz.py\n{done.stderr}",
            pytrace=False,
        )
