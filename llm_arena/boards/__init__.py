"""Leaderboards: who meets whom, the file of matches, and the table that follows from it."""
