DROP TABLE {control}, {units}, {routes}, {members}, {outbox};
DROP SEQUENCE {sequence}, {wake};
