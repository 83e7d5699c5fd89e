-- One row for each limit that consumers share. It changes all the time and is tiny: pages with room, and early vacuum.
CREATE TABLE {limits} (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    version    bigint           NOT NULL,
    changed_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    state      text             NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE {limits} IS 'Waybill: limits that the handlers of several processes share';
COMMENT ON COLUMN {limits}.name IS 'name of the limit: of the queue, or as the subscriptions say';
COMMENT ON COLUMN {limits}.version IS 'raised with each change, which compares it';
COMMENT ON COLUMN {limits}.changed_at IS 'when it changed';
COMMENT ON COLUMN {limits}.state IS 'what the consumers made of it; a row that is deleted begins anew';
COMMENT ON INDEX {limits_pkey} IS 'the limit to read and to change';
