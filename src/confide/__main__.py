"""`python -m confide`."""

from confide.commands.main import main

main()
