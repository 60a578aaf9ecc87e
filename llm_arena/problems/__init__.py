"""What games are played about: topics and tasks, and the pure functions that grade answers to them."""
