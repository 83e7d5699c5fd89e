DROP TABLE {limits};
