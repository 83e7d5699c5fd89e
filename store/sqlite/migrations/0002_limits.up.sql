-- One row a limit that the handlers of several processes share.
CREATE TABLE waybill_limits (
	name  TEXT NOT NULL PRIMARY KEY,                  -- of the queue, or as the subscriptions say
	state TEXT NOT NULL                               -- what the consumers made of it; a row that is deleted begins anew
) STRICT, WITHOUT ROWID;
