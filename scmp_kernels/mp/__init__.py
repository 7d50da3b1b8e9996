"""Mixed precision: which rows get which stream length, and instruments that watch it.

Importing it needs torch and numpy alone; only the `plot` methods need matplotlib, and only progress
bars tqdm.
"""

from scmp_kernels.mp import config
from scmp_kernels.mp.calibrate import calibrate_thresholds
from scmp_kernels.mp.calibration import CalibratedRows, Calibration
from scmp_kernels.mp.classifiers import (
    adaptive_classify_rows,
    classify_groups_by_range,
    classify_rows_by_metric,
    compute_row_metric,
)
from scmp_kernels.mp.config import (
    AdaptiveMPConfig,
    MetricProfiler,
    MPConfig,
    MPDistributionLogger,
    RangeMPConfig,
    RowAssignment,
    get_current_block_idx,
    set_current_block_idx,
)
from scmp_kernels.mp.recorder import CalibrationRecorder

__all__ = [
    "adaptive_classify_rows",
    "calibrate_thresholds",
    "classify_groups_by_range",
    "classify_rows_by_metric",
    "compute_row_metric",
    "AdaptiveMPConfig",
    "CalibratedRows",
    "Calibration",
    "CalibrationRecorder",
    "MPConfig",
    "MPDistributionLogger",
    "MetricProfiler",
    "RangeMPConfig",
    "RowAssignment",
    "config",
    "get_current_block_idx",
    "set_current_block_idx",
]
