"""`python -m pebblesim`, and the script `pebblesim`."""

import gc
import sys


def main() -> None:
    """Run the command line. Ctrl-C during the imports ends it in the same way as Ctrl-C later."""
    gc.set_threshold(20_000, 20, 20)  # most of what a command imports and makes is used until its end
    try:
        from pebblesim.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
