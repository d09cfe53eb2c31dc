"""Pairs measured by a cluster's workers, next to the data; the small results are judged here, in order.

``engine`` is what any cluster has to offer, ``dask_engine`` one that does, ``worker`` what runs on the other side.
"""
