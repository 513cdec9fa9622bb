"""What attention of every family shares."""

# Added to scores that do not count: e^-30000 is 0, and float16 holds the sum. It is finite, since a query that sees no
# key, which only padding can be, must not be NaN.
HIDDEN = -3e4
