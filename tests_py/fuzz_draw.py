"""What the fuzz draws from: one random.Random per case, tensors, junk and corrupted JSON."""

import json
import random

import numpy as np
import torch
from strategies import KINDS, _layout, _values
from support import DTYPES

LAYOUTS = ("plain", "transposed", "sliced", "offset", "rows", "columns", "batch", "overlapping")
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16)
INTEGERS += (torch.uint32,)
OTHERS = (torch.bool, torch.complex64, torch.int32, torch.uint64, torch.float8_e5m2)
NUMBERS = (-1, 0, 1, 2, 3, 13, 255, 257, 4097, 2**31 - 1, 2**31, 2**32 + 5, 2**53, 2**62, 2**63 - 1)
NUMBERS += (-(2**31), -(2**63))
TYPES = (None, True, 1.5, float("nan"), "x", "8", b"x", [], [1], {}, {1}, object(), 2**63)
TYPES += (complex(1, 2), np.int64(8), np.float32(2), np.ones(3), torch.tensor(3), torch.ones(2))
TYPES += (range(3), print, "é" * 50, "\ud800", "a\0b", "x" * 500, -(10**30))
JUNK = (None, True, -1, 0, 1, 3, 255, 2**31, 2**63, 10**30, 0.5, 1e400, "", "x", [], [1], {})


class Draw(random.Random):
    """Random choices of one case; `shown` is printed where the case fails."""

    def __init__(self, seed):
        super().__init__(seed)
        self.shown = {}
        self.wrong_types = False

    def chance(self, probability):
        return self.random() < probability

    def numpy(self):
        return np.random.default_rng(self.getrandbits(32))

    def size(self, most):
        """0 to `most`; seldom 0."""
        return self.choice((0, 1, 2, 3, *[self.randint(1, max(1, most))] * 12))

    def count(self, most):
        return self.choice((None, 1, most, max(1, most - 1), self.randint(1, most)))

    def tensor(self, shape, dtype=None, bad=0.15, grad=0.0):
        """A float tensor of this shape: any values, now and then NaN or Inf, dtype and strides."""
        rng = self.numpy()
        values = np.asarray(_values(self.choice(KINDS), shape, rng)).reshape(shape)
        values = values.copy()
        if values.size and self.chance(bad):
            holes = rng.integers(0, values.size, size=rng.integers(1, 3))
            values.reshape(-1)[holes] = rng.choice([np.nan, np.inf, -np.inf], size=holes.size)
        x = torch.from_numpy(values).to(dtype or self.choice((torch.float32, *DTYPES)))
        layout = self.choice(LAYOUTS)
        if layout == "overlapping" and x.numel():
            strides = [self.choice((0, 1, 1, 2)) for _ in shape]
            reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            flat = torch.cat([x.flatten()] * (1 + reach // x.numel()))
            x = flat[:reach].as_strided(shape, strides)
        elif x.dim() in (2, 3):
            x = _layout(x, layout)
        return x.requires_grad_() if self.chance(grad) and x.is_leaf else x

    def junk(self, types=0.4):
        """A number that may be out of range, or a value of a wrong type."""
        if self.chance(types):
            self.wrong_types = True
            return self.choice(TYPES)
        return self.choice(NUMBERS)

    def spoiled(self, x):
        """A tensor with another rank, size, dtype or device, or no tensor."""
        if not isinstance(x, torch.Tensor):
            return self.junk()
        how = self.randrange(9)
        if how == 0:
            return x[0] if x.dim() and x.shape[0] else x[None]
        if how == 1:
            return x[None]
        if how == 2:
            return x[..., :-1] if x.dim() else x
        if how == 3:
            return torch.cat([x, x], -1) if x.dim() else x
        if how == 4:
            return x.detach().to(self.choice(OTHERS))
        if how == 5:
            return x.detach().to("meta")
        if how == 6:
            return x.new_empty([0] * x.dim())
        if how == 7:
            return x.flatten()
        self.wrong_types = True  # not None: to torch that is a tensor of shape (0,) without device
        return self.choice((3, "x", [1.0], np.ones(3), object()))

    def spoiled_json(self, value):
        """A JSON value broken in one place."""
        if isinstance(value, dict) and value and self.chance(0.85):
            key = self.choice(list(value))
            how = self.randrange(6)
            if how == 0:
                return {name: item for name, item in value.items() if name != key}
            if how == 1:
                return value | {key + "x": value[key]}
            return value | {key: self.spoiled_json(value[key])}
        if isinstance(value, (list, tuple)) and value and self.chance(0.85):
            at, value = self.randrange(len(value)), list(value)
            how = self.randrange(6)
            if how == 0:
                return value[:at] + value[at + 1 :]
            if how == 1:
                return [*value, value[at]]
            return [*value[:at], self.spoiled_json(value[at]), *value[at + 1 :]]
        return self.choice(JUNK)

    def spoiled_text(self, text):
        """JSON text broken in one place, as a value or as characters."""
        if self.chance(0.6):
            return json.dumps(self.spoiled_json(json.loads(text)))
        if self.chance(0.1):
            return self.choice(("", "null", "[" * 10**5, '{"a":' * 10**5, "\0", "sha256:", "nan"))
        at = self.randint(0, len(text))
        insert = self.choice((*'0123456789-."[]{},:é\0', "", "", "null", "1e999", "\\ud800"))
        return text[:at] + insert + text[at + self.choice((0, 1, 1, 3, 10**9)) :]
