"""Games of hidden words and sides: tables, readers, scripted play."""
