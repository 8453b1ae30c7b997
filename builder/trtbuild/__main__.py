"""`python -m trtbuild` is the same as the console script `trtbuild`."""

from trtbuild.cli.edge import main

if __name__ == "__main__":
    main()
