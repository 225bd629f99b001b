assert double(2) == 4
assert double(-1) == -2
