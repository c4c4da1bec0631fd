"""`python -m pebblesim`, and the script `pebblesim`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C during the imports ends it in the same way as Ctrl-C later."""
    try:
        from pebblesim.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
