"""`python -m adlro.learn.train`: a complete training on a machine that has PyTorch and Numba (see run.py)."""

import sys

from adlro.learn.train.run import main

sys.exit(main())
