"""Recurrent layers on one device: the rows of their cells in a table of kernel times.

DeepBench runs cuDNN with skipped input products, so that a layer is its recurrence alone.
"""

from functools import partial

from ridgeline.kernels.single_rnn_layer import CELLS
from ridgeline.study.validate import kernels

SHIPPED, FOREIGN = kernels.SHIPPED, kernels.FOREIGN
COLUMNS = (*kernels.COLUMNS, *kernels.LAYER)
predict = partial(kernels.predict_kernels, ops={*CELLS})
