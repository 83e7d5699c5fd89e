-- What the outbox and the inbox share. Places in braces are names; see Migrations in migrate.go.
CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE IF NOT EXISTS {meta} (
    name  text   NOT NULL PRIMARY KEY,
    value bigint NOT NULL,
    owner text   NOT NULL DEFAULT ''
);
COMMENT ON TABLE {meta} IS 'Waybill: schema versions, clock marks and leases';
COMMENT ON COLUMN {meta}.name IS 'table name, a dot, and what it is: version (of the schema), compatible (oldest version that a program must know, if not any), hlc (highest stamp published), epoch (raised after a restore), cleaner (lease)';
COMMENT ON COLUMN {meta}.value IS 'the value; of a lease its end, in microseconds since 1970';
COMMENT ON COLUMN {meta}.owner IS 'who holds the lease; empty for other rows';
