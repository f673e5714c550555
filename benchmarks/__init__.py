"""What a gate costs, one file per question; `make bench` prints one table of ratios."""
