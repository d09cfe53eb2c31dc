"""Entry point of ``python -m tensordiff``."""

from tensordiff.cli.main import run

if __name__ == "__main__":
    run()
