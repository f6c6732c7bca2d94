"""Run the command line as ``python -m specplan``."""

from specplan.cli.app import main

main()
