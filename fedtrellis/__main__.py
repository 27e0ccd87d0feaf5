"""``python -m fedtrellis``."""

import sys

from fedtrellis.command_line import main

# a worker of a search loads this module too
if __name__ == "__main__":
    sys.exit(main())
