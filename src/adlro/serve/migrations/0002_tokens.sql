-- Who may ask the API. The token itself is nowhere.
CREATE TABLE tokens (
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    hash TEXT NOT NULL,
    made_s DOUBLE PRECISION NOT NULL
);
