"""`python -m confide`."""

from confide.cli import main

main()
