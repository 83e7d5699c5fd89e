DROP TABLE {inbox};
