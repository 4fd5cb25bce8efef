"""Systolic arrays: closed-form cycles, SCALE-Sim's figures and files."""

from ridgeline.kernels.systolic.gemm import SystolicGemm, gemm_cycles, systolic_gemm
from ridgeline.kernels.systolic.scalesim import ScaleSimGemm, scalesim_gemm, scalesim_product

__all__ = [
    "ScaleSimGemm",
    "SystolicGemm",
    "gemm_cycles",
    "scalesim_gemm",
    "scalesim_product",
    "systolic_gemm",
]
