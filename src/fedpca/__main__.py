"""python -m fedpca: the command line."""

from fedpca.cli import main

if __name__ == "__main__":
    main()
