"""`python -m pebblesim`, and the script `pebblesim`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as at any other time."""
    try:
        from pebblesim.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
