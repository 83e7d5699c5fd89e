-- The schema stays: it may hold other things.
DROP TABLE {meta};
