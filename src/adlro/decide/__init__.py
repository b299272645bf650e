"""All policies: which job starts where now."""
