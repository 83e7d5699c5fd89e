DROP SEQUENCE {wake};
DROP TABLE {outbox};
