"""Training: traces in, new weights out. `import llm_arena` never loads this package; it needs torch.

sources     where an episode starts             credit   rewards -> one advantage per (trace, seat)
batch       sequences -> prefix trees           losses   pure functions of log-probabilities
learner     weights, optimizer, anchor          sync     learner -> engine, and the check that they agree
checkpoint  what a resumed run needs            loop     the run itself
"""
