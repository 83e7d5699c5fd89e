-- What the outbox and the inbox share. Places in braces are names; see Migrations in migrate.go.
CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE IF NOT EXISTS {meta} (
    name  text   NOT NULL PRIMARY KEY,
    value bigint NOT NULL
);
COMMENT ON TABLE {meta} IS 'Waybill: schema versions and clock marks';
COMMENT ON COLUMN {meta}.name IS 'table name, a dot, and what it is: version (of the schema) or hlc (highest stamp published)';
COMMENT ON COLUMN {meta}.value IS 'the value';
