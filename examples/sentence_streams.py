"""Configs for the sentence encoder on bit streams, and what they are calibrated with."""

from contextlib import contextmanager
from dataclasses import replace

from tqdm import tqdm

from scmp_kernels import SCConfig, calibrate_smoothquant, convert, mp, revert
from scmp_kernels.nn import record_products

CHUNKS = SCConfig(chunk_d=32)  # divides 384 and 1536; attention has 32 columns anyway
SENSITIVITY_LENGTH = 64


@contextmanager
def on_streams(encoder, config, scales=None, operator=None):
    """Run an encoder on bit streams for a while.

    Args:
        encoder: Encoder, not converted.
        config: SCConfig; attention has it without chunks.
        scales: SmoothQuant scales by layer, or None.
        operator: name of the one module to convert; None: all.
    """
    chosen = None if operator is None else lambda name, module: name == operator
    convert(encoder.model, config, chosen, attention=replace(config, chunk_d=0))
    try:
        for name, values in (scales or {}).items():
            if operator in (None, name):
                encoder.model.get_submodule(name).set_smooth_scales(values)
        yield
    finally:
        revert(encoder.model)


def drifts(embeddings, reference):
    """Return (N,) 1 - cosine of (N, D) unit vectors; exactly 0 for equal ones."""
    return (embeddings.double() - reference.double()).square().sum(1).cpu() / 2


class Calibration:
    """What is found out on calibration sentences.

    Attributes:
        scales: SmoothQuant scales by layer.
        sensitivities: {layer, or module with attention: mean drift while it alone runs on streams
            of 64 cycles}; empty until `adaptive` is called.
        weights: {product: what its error counts}, likewise.
    """

    def __init__(self, encoder, batches):
        self.encoder, self.batches = encoder, batches
        self.sensitivities, self.weights = {}, {}
        with on_streams(encoder, CHUNKS):
            data = [ids for _, ids in batches]
            self.scales = calibrate_smoothquant(encoder.model, data, progress=False)

    def _measure_sensitivities(self):
        operators = list(self.scales)
        operators += [n for n, _ in self.encoder.model.named_modules() if n.endswith(".self")]
        reference, config = self.encoder(self.batches), replace(CHUNKS, stoc_len=SENSITIVITY_LENGTH)
        options = {"desc": "calibrating", "unit": "operator", "leave": False, "disable": None}
        for operator in tqdm(operators, **options):
            with on_streams(self.encoder, config, self.scales, operator):
                drift = drifts(self.encoder(self.batches), reference).mean()
            self.sensitivities[operator] = float(drift)

    def _weights(self, recorder):
        """Operator weights with which the errors of products add up to drift."""
        level, errors = recorder.stoc_len_levels.index(SENSITIVITY_LENGTH), {}
        for call in recorder.calls:
            errors.setdefault(call.operator, []).append(call.errors[:, level].sum())
        errors = {operator: sum(found) / len(found) for operator, found in errors.items()}
        weights = {}
        for operator, drift in self.sensitivities.items():
            parts = [operator] if operator in errors else [f"{operator}.qk", f"{operator}.av"]
            weights |= dict.fromkeys(parts, drift / sum(errors[part] for part in parts))
        largest = max(weights.values())
        return {operator: max(weight / largest, 1e-6) for operator, weight in weights.items()}

    def _record(self, levels):
        recorder = mp.CalibrationRecorder(levels, sample_rows=64, progress=False)
        with (
            on_streams(self.encoder, CHUNKS, self.scales),
            record_products(self.encoder.model, recorder),
        ):
            self.encoder(self.batches)
        return recorder

    def adaptive(self, length):
        """Return an AdaptiveMPConfig of a mean length on the calibration sentences."""
        if not self.sensitivities:
            self._measure_sensitivities()
            wide = self._record([SENSITIVITY_LENGTH, SENSITIVITY_LENGTH // 2])
            self.weights = self._weights(wide)
        levels = [2 * length, 3 * length // 2, length, 3 * length // 4, length // 2]
        recorder = self._record(levels)
        found = mp.calibrate_thresholds(
            recorder, length, operator_weights=self.weights, progress=False
        )
        return found.config()


def by_rank(length):
    """Return the MPConfig that gives a third of the rows 3/2, the others 3/4 of a length."""
    return mp.MPConfig([3 * length // 2, 3 * length // 4], [1 / 3, 2 / 3])
