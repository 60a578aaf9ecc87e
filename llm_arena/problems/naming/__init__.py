"""naming-v0: topics, judges and how a contest is scored."""
