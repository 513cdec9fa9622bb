"""Search in torch operators, for outputs that are on a GPU: what leaves it is small.

The functions take and return tensors of any device, never wait for it, and have shapes that depend on those of their
inputs alone, so they can be recorded. Only a graph that runs on a GPU needs them; nothing else imports torch for them.
"""
