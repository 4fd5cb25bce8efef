"""Kernels of frameworks' libraries: a mechanism for each kind, its constants in tables.

A kernel of a library is written once for a generation of devices. What it does to a device that
nobody measured follows from that device's data sheet; what is left are constants of the kernel
(`constants`): the share of the peak that its inner loop reaches, cycles at the ends of a thread
block, fixed time of a call. They are fitted across devices by `benchmarks/fit_kernels.py`.
"""
