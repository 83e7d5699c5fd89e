DROP TABLE {audit}, {control}, {units}, {routes}, {members}, {outbox};
DROP FUNCTION {slot_function};
DROP SEQUENCE {sequence}, {wake};
