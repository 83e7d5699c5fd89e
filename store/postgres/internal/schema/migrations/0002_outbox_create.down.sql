DROP TABLE {audit}, {notices}, {partitions}, {routes}, {members}, {outbox};
DROP FUNCTION {slot_function}, {told_function};
DROP SEQUENCE {sequence}, {wake};
