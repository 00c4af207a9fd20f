"""`python -m aorta`: the `aorta` command by the interpreter that is running."""

from aorta.cli import main

if __name__ == "__main__":
    main()
