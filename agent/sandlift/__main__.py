"""Run the command with `python -m sandlift`."""

from sandlift.cli import main

if __name__ == "__main__":
    main()
