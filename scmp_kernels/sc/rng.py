"""Random number generators of stochastic bit streams, in numpy alone.

This module is a golden model: on purpose, a second implementation of the sequences that the C++
core generates. It imports neither torch nor this package, so a hardware team can take the file as
it is.

A generator of `length` bits emits integers in [0, 2**length - 1], one per clock cycle. It has
`step()` (returns the current value, then advances), `simulate(num_cycles)` (resets, then returns
the first `num_cycles` values) and `reset()`. Every bad argument is a ValueError of one line.

Sources: I. M. Sobol, "On the distribution of points in a cube and the approximate evaluation of
integrals" (1967), in the Gray-code order of Antonov and Saleev (1979); Fibonacci linear feedback
shift registers; CPython's Mersenne Twister (Matsumoto and Nishimura, 1998).
"""

import operator
import random

import numpy as np

MAX_LENGTH = 30
"""Largest number of bits of a generator."""


def one_line(value, most=100):
    """Return repr(value) as one line of at most `most` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def check_integer(owner, name, value, low, high=None):
    """Return `value` as an int in [low, high] (high None: no bound), or raise a ValueError."""
    allowed = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        raise ValueError(f"{owner}: {name} must be {allowed}, got {one_line(value)}")
    return number


def _sequence(owner, name, value, allowed):
    """Return `value` as a list, or raise a ValueError."""
    try:
        if not isinstance(value, (str, bytes, dict)):
            return list(value)
    except TypeError:  # no iterable, or an array without dimensions
        pass
    raise ValueError(f"{owner}: {name} must be {allowed}, got {one_line(value)}")


class _Generator:
    """What the generators share: `length` in bits, and `simulate` by `step`."""

    def __init__(self, length):
        self.length = check_integer(type(self).__name__, "length", length, 1, MAX_LENGTH)

    def step(self):
        """Return the current value (int) and advance by one cycle."""
        raise NotImplementedError

    def reset(self):
        """Go back to cycle 0."""
        raise NotImplementedError

    def simulate(self, num_cycles=None):
        """Reset, run `num_cycles` cycles (default 2**length), return their (num_cycles,) int64."""
        count = self._cycles(num_cycles)
        self.reset()
        return np.fromiter((self.step() for _ in range(count)), dtype=np.int64, count=count)

    def _cycles(self, num_cycles):
        if num_cycles is None:
            return 2**self.length
        return check_integer(type(self).__name__, "num_cycles", num_cycles, 0)


class LFSR(_Generator):
    """Fibonacci linear feedback shift register of `length` bits that shifts right.

    Each cycle emits the register; the feedback, the XOR of the bits listed in `taps`, enters as the
    highest bit. A maximal-length choice of taps visits every value but 0 before it repeats.

    Args:
        seed: initial register, an integer in [1, 2**length - 1].
        length: bits of the register.
        taps: distinct bit positions in [0, length - 1], at least one; 0 is the lowest bit.
    """

    def __init__(self, seed, length, taps):
        super().__init__(length)
        self.seed = check_integer("LFSR", "seed", seed, 1, 2**self.length - 1)
        taps = _sequence("LFSR", "taps", taps, "a list of bit positions")
        self.taps = [
            check_integer("LFSR", f"taps[{i}]", tap, 0, self.length - 1)
            for i, tap in enumerate(taps)
        ]
        if not self.taps or len(set(self.taps)) != len(self.taps):
            raise ValueError(
                f"LFSR: taps must be distinct and at least one, got {one_line(self.taps)}"
            )
        self._mask = sum(1 << tap for tap in self.taps)
        self.reset()

    def reset(self):
        """Go back to cycle 0."""
        self._register = self.seed

    def step(self):
        """Return the register (int) and shift it by one bit."""
        value = self._register
        feedback = bin(value & self._mask).count("1") & 1
        self._register = (value >> 1) | (feedback << (self.length - 1))
        return value


class TrueRandom(_Generator):
    """CPython's `random.Random(seed).randint(0, 2**length - 1)`, one draw per cycle.

    Args:
        seed: an integer in [0, 2**63 - 1].
        length: bits of a value.
    """

    def __init__(self, seed, length):
        super().__init__(length)
        self.seed = check_integer("TrueRandom", "seed", seed, 0, 2**63 - 1)
        self.reset()

    def reset(self):
        """Go back to cycle 0."""
        self._random = random.Random(self.seed)

    def step(self):
        """Return the next draw (int)."""
        return self._random.randint(0, 2**self.length - 1)


class Sobol(_Generator):
    """One-dimensional Sobol sequence over `length` bits in Gray-code order.

    The value starts at 0. After cycle t it is XORed with direction vector `V[j]`, where j is the
    lowest zero bit of t and `V[i] = seed[i] * 2**length / 2**(i + 1)`; not so when j >= length.
    The first 2**length values are a permutation of 0 .. 2**length - 1.

    Args:
        length: bits of a value.
        seed: direction numbers, `length` odd integers with 1 <= seed[i] < 2**(i + 1), or None for
            the default of `seed_type`.
        seed_type: "q" (default: all ones, the van der Corput sequence) or "k" (another sequence,
            for the other operand); it only matters where seed is None.
    """

    def __init__(self, length, seed=None, seed_type="q"):
        super().__init__(length)
        if not isinstance(seed_type, str) or seed_type not in ("q", "k"):
            raise ValueError(f"Sobol: seed_type must be 'q' or 'k', got {one_line(seed_type)}")
        self.seed_type = seed_type
        if seed is None:
            self.seed = self.default_seed(self.length, seed_type)
        else:
            self.seed = self._checked(seed)
        self._vectors = [s << (self.length - 1 - i) for i, s in enumerate(self.seed)]
        self.reset()

    @staticmethod
    def default_seed(length, seed_type="q"):
        """Return the default direction numbers, a list of `length` ints, of "q" or "k"."""
        seed = [1] * length
        if seed_type == "k":
            special = {4: 9, 6: 41, 7: 255} if length == 8 else {4: 9, 6: 41}
            for i, number in special.items():
                if i < length:
                    seed[i] = number
        return seed

    @staticmethod
    def random_seed(length):
        """Return valid direction numbers, a list of `length` ints, from Python's `random`."""
        length = check_integer("Sobol.random_seed", "length", length, 1, MAX_LENGTH)
        return [2 * random.randrange(2**i) + 1 for i in range(length)]

    def _checked(self, seed):
        seed = _sequence("Sobol", "seed", seed, f"None or a list of {self.length} integers")
        if len(seed) != self.length:
            raise ValueError(f"Sobol: seed must have {self.length} entries, got {len(seed)}")
        numbers = []
        for i, given in enumerate(seed):
            allowed = "1" if i == 0 else f"odd and in [1, {2 ** (i + 1) - 1}]"
            try:
                number = check_integer("Sobol", f"seed[{i}]", given, 1, 2 ** (i + 1) - 1)
            except ValueError:
                number = 0
            if number % 2 == 0:
                raise ValueError(f"Sobol: seed[{i}] must be {allowed}, got {one_line(given)}")
            numbers.append(number)
        return numbers

    def reset(self):
        """Go back to cycle 0."""
        self._cycle = 0
        self._value = 0

    def step(self):
        """Return the current value (int) and advance by one cycle."""
        value = self._value
        lowest_zero = (~self._cycle & (self._cycle + 1)).bit_length() - 1
        if lowest_zero < self.length:
            self._value ^= self._vectors[lowest_zero]
        self._cycle += 1
        return value

    def simulate(self, num_cycles=None):
        """Reset, run `num_cycles` cycles (default 2**length), return their (num_cycles,) int64."""
        count = self._cycles(num_cycles)
        # After t cycles vector j has been applied once for every set bit j of the Gray code of t.
        cycle = np.arange(count + 1, dtype=np.int64)
        gray = cycle ^ (cycle >> 1)
        values = np.zeros(count + 1, dtype=np.int64)
        for bit, vector in enumerate(self._vectors):
            values ^= ((gray >> bit) & 1) * vector
        self._cycle = count
        self._value = int(values[count])
        return values[:count]


_GENERATORS = {
    "sobol": (Sobol, ("seed", "seed_type"), ()),
    "lfsr": (LFSR, ("seed", "taps"), ("seed", "taps")),
    "true_random": (TrueRandom, ("seed",), ("seed",)),
}


def create_rng(rng_type, length, **kw):
    """Build a generator by the name that configs use.

    Args:
        rng_type: "sobol", "lfsr" or "true_random".
        length: bits of a value.
        **kw: the arguments of the class: sobol takes seed and seed_type (both optional), lfsr
            seed and taps, true_random seed.

    Returns:
        A Sobol, LFSR or TrueRandom.

    Raises:
        ValueError: an unknown type, an unknown or missing argument, or a bad value.
    """
    if not isinstance(rng_type, str) or rng_type not in _GENERATORS:
        raise ValueError(
            f"create_rng: rng_type must be one of {', '.join(_GENERATORS)}, "
            f"got {one_line(rng_type)}"
        )
    cls, allowed, required = _GENERATORS[rng_type]
    for name in kw:
        if name not in allowed:
            raise ValueError(f"create_rng: {rng_type} takes {', '.join(allowed)}, got {name}")
    for name in required:
        if name not in kw:
            raise ValueError(f"create_rng: {rng_type} needs {name}")
    return cls(length=length, **kw)
