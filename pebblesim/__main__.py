"""`python -m pebblesim`."""

from pebblesim.cli import main

if __name__ == "__main__":
    main()
