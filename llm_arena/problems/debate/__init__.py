"""debate-v0: motions, points for both sides, and how a debate is judged."""
