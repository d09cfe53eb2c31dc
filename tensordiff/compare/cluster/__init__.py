"""Measure pairs on a cluster's workers, next to the data; the small results are judged here, in order.

``engine`` defines what a cluster must offer, ``dask_engine`` implements it, and ``worker`` runs on the workers.
"""
