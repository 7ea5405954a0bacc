"""`python -m icll` is the command `icll`."""

from .cli import main

main()
