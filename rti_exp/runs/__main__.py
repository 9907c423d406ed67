"""`python -m rti_exp.runs`: which runs there are, one run, how two differ, and removing some."""

import sys

from rti_exp.runs.command import main

if __name__ == "__main__":
    sys.exit(main())
