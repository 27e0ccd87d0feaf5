"""Measured comparisons: ``python -m benchmarks``.

Whatever is compared is measured in one run, in turns, on one BLAS thread each, so that
a machine that is busy for a while is busy for both.
"""
