"""A host, small but real: several API server processes in front of one engine, behind one gate.

What `gatecount serve` runs, and an example of how to wire the counters into a server. Needs the extra
gatecount[serve] where it speaks HTTP; the rest uses the standard library alone.
"""
