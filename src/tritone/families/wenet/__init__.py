"""WeNet U2 and U2++: transformer and conformer encoders with a CTC head and attention decoders.

Upstream: wenet-e2e/wenet. Parameter names are upstream's, so a `final.pt` loads without translation.
"""
