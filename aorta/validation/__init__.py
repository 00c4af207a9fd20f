"""The analysis put to the test: faults in real runs, and what it says of them beside what was put in."""
