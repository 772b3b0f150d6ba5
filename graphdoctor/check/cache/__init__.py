"""Reports of unchanged targets, kept between checks: what a run read is followed, and compared before it is spared."""
