"""One job on every engine that can do it: ``python -m benchmarks --only engines``.

Nothing is imported here: :mod:`.worker` also runs in environments that have another
engine and neither Flower nor fedtrellis.
"""
