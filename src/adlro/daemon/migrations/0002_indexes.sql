-- What is asked for often: the decisions of one job, those without an answer, and the latest ends.
CREATE INDEX decisions_by_job ON decisions (job, number);
CREATE INDEX decisions_open ON decisions (number) WHERE done IS NULL;
CREATE INDEX ended_by_time ON ended (ended_s, number);
