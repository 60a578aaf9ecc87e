"""Engines serve policies, token ids in and token ids out. Each engine is one module, imported when it is asked for.

Importing this package sets `OMP_WAIT_POLICY=PASSIVE`, unless it is set already or torch was loaded before. By default
the threads of torch's OpenMP spin while they wait for each other; with one more busy process on two cores that made
decoding 10 to 20 times slower (SmolLM2-135M, 32 rows: 13 to 126 tokens/s against 270 to 300), while sleeping costs
nothing that could be measured.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # OpenMP reads it when torch loads it
