"""`python -m pebblesim`, and the script `pebblesim`."""

import gc
import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C during the imports ends it in the same way as Ctrl-C later; so does a second one."""
    gc.set_threshold(20_000, 20, 20)  # most of what a command imports and makes is used until its end
    try:
        from pebblesim.cli.main import main as run

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends already
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except SystemExit as end:
        if end.code == 130:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise


if __name__ == "__main__":
    main()
