"""`python -m loaderdoctor`."""

from loaderdoctor.cli import main

if __name__ == "__main__":
    main()
