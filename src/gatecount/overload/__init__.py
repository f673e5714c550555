"""The overload experiment: what several server processes really run under one limit, in each mode.

Read it in this order: `settings` (what can be varied), `witness` (how the truth is counted),
`server` (one server process), `fleet` (all of them), `load` (the clients), `measure` (one run
against one fleet), `experiment` (all modes); then `report`, `plot` and `progress` for what is
shown.
"""
