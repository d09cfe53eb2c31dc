"""Running a candidate on the reference's inputs, for any engine: which tensors go where, in which pass, and the report.

An engine lists its entries (``plan_injection``), asks ``Injector`` for the values of each call, and writes its report.
"""
