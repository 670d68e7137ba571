"""``python -m qll``: where the script's folder is not on the PATH, as often on Windows."""

from qll.cli.main import run

if __name__ == "__main__":
    run()
