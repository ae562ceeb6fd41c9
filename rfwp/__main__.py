"""`python -m rfwp` is the same as `rfwp`."""

from rfwp.cli import main

if __name__ == "__main__":
    main()
