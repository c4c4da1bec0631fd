"""Count, evaluate or play over ranges of sizes; rows are stored as they are computed."""
