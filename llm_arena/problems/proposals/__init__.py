"""proposer-solver-v0: what a proposer may write, evaluated by code of our own."""
