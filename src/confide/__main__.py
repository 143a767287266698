"""`python -m confide`."""

from confide.commands.start import main

main()
