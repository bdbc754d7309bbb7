"""`python -m rgat` is the command `rgat`."""

from rgat.cli import main

if __name__ == "__main__":
    main()
