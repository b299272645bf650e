-- The measured history, and what jobs of the past used: asked for by user, by partition and by node.
-- `weight` is the number of points that were averaged into one, `span_s` the stretch of time that it stands for.
CREATE TABLE points (
    number BIGINT PRIMARY KEY,
    noted_s DOUBLE PRECISION NOT NULL,
    time_s DOUBLE PRECISION NOT NULL,
    span_s DOUBLE PRECISION NOT NULL,
    weight BIGINT NOT NULL,
    utilisation DOUBLE PRECISION NOT NULL,
    jct_s DOUBLE PRECISION,
    fallback_jct_s DOUBLE PRECISION,
    waiting DOUBLE PRECISION,
    running DOUBLE PRECISION
);
CREATE INDEX points_by_time ON points (time_s);
CREATE INDEX points_by_span ON points (span_s, time_s);

-- Empty in rows that an older version wrote; they are filled in when the store is opened.
ALTER TABLE ended ADD COLUMN owner TEXT;
ALTER TABLE ended ADD COLUMN queue TEXT;
ALTER TABLE ended ADD COLUMN state TEXT;
ALTER TABLE ended ADD COLUMN gpu_s DOUBLE PRECISION;
ALTER TABLE ended ADD COLUMN waited_s DOUBLE PRECISION;
ALTER TABLE ended ADD COLUMN ran_s DOUBLE PRECISION;
CREATE INDEX ended_by_owner ON ended (owner, ended_s);
CREATE INDEX ended_by_queue ON ended (queue, ended_s);

-- A row for each node that a job ran on. `number` is that of the row in `ended`.
CREATE TABLE ran_on (
    number BIGINT NOT NULL,
    node TEXT NOT NULL,
    ended_s DOUBLE PRECISION NOT NULL,
    gpu_s DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (number, node)
);
CREATE INDEX ran_on_by_node ON ran_on (node, ended_s);
