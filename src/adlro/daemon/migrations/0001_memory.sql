-- What the daemon remembers: written so that SQLite and PostgreSQL both read it. `body` is the whole record as JSON,
-- `noted_s` the moment of writing by our own clock: a simulated cluster has another one.
CREATE TABLE seen (
    id TEXT PRIMARY KEY,
    submit_s DOUBLE PRECISION NOT NULL,
    owner TEXT NOT NULL,
    noted_s DOUBLE PRECISION NOT NULL
);

CREATE TABLE decisions (
    number BIGINT PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    noted_s DOUBLE PRECISION NOT NULL,
    job TEXT NOT NULL,
    done INTEGER,
    said TEXT,
    body TEXT NOT NULL
);

CREATE TABLE ended (
    number BIGINT PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    ended_s DOUBLE PRECISION NOT NULL,
    noted_s DOUBLE PRECISION NOT NULL,
    body TEXT NOT NULL
);

CREATE TABLE ticks (
    number BIGINT PRIMARY KEY,
    noted_s DOUBLE PRECISION NOT NULL,
    body TEXT NOT NULL
);

CREATE TABLE alarms (
    number BIGINT PRIMARY KEY,
    noted_s DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL
);

CREATE TABLE kept (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
