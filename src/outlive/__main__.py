"""`python -m outlive` is the command line."""

from .cli import main

main()
