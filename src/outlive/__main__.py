"""`python -m outlive` is the command line."""

from outlive.cli import main

main()
