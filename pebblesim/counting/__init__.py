"""Count and compare schedules for one set of sizes, with heads and masks."""
