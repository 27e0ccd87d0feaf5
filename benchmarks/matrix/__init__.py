"""All methods on all problems they are for: ``python -m benchmarks matrix``.

What is compared and how is said in ``docs/matrix.md``, which is made of ``results/``.
"""
