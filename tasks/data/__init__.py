"""Data for the tasks: readers of files, named data sets, and how they are dealt.

A reader makes arrays of one format's files. ``libsvm`` and ``idx`` serve both the data
sets that a setting names and nodes' own files; ``csv_file``, ``npz_file`` and
``ratings`` check a node's file against a :class:`~.settings.Schema`.
"""
