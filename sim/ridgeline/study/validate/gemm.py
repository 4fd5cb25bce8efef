"""Matrix products on one device: the rows ``gemm`` of a table of kernel times."""

from functools import partial

from ridgeline.study.validate import kernels

SHIPPED, FOREIGN, COLUMNS = kernels.SHIPPED, kernels.FOREIGN, (*kernels.COLUMNS, "M", "N", "K")
predict = partial(kernels.predict_kernels, ops={"gemm"})
