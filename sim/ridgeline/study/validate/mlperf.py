"""Whole runs of MLPerf Training: the time from the first training data to the target.

Kernels are launched in no time: submissions replay whole steps (CUDA graphs) or compile them.
"""

from functools import partial

from ridgeline.study.validate import runs

COLUMNS, SHIPPED = runs.COLUMNS, "mlperf.csv"
predict = partial(runs.predict_runs, suite="mlperf", trivial=runs.at_a_third)
