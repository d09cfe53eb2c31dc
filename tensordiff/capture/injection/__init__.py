"""Running a candidate on the reference's inputs, engine-neutral: which tensors go where, in which pass, and the report.

An engine lists what it has (``plan_injection``), asks ``Injector`` for the values of each call, and writes its report.
"""
