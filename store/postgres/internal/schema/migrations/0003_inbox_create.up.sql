-- Text is compared byte by byte: see the outbox.
CREATE TABLE {inbox} (
    consumer   text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    handled_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    content_hash      bytea,
    PRIMARY KEY (id, source, consumer) -- what tells most comes first: a search compares less
);
CREATE INDEX {inbox_handled} ON {inbox} (consumer, handled_at);
COMMENT ON TABLE {inbox} IS 'Waybill inbox: one mark for each message that had its effect, written in the handler''s own transaction';
COMMENT ON COLUMN {inbox}.consumer IS 'name of the consumer whose effect it was';
COMMENT ON COLUMN {inbox}.source IS 'CloudEvents source of the message';
COMMENT ON COLUMN {inbox}.id IS 'id of the message';
COMMENT ON COLUMN {inbox}.handled_at IS 'when the handler''s transaction marked it';
COMMENT ON COLUMN {inbox}.content_hash IS 'hash of the message''s content, if it is known: another message with its id has another';
COMMENT ON INDEX {inbox_pkey} IS 'a second mark for one message waits for the first and is then a no-op';
COMMENT ON INDEX {schema}.{inbox_handled} IS 'purging: the oldest marks of a consumer';
