"""Convolutions on one device: the rows ``conv`` of a table of kernel times."""

from functools import partial

from ridgeline.study.validate import kernels

SHIPPED, FOREIGN = kernels.SHIPPED, kernels.FOREIGN
COLUMNS = (*kernels.COLUMNS, *kernels.IMAGES)
predict = partial(kernels.predict_kernels, ops={"conv"})
