DROP TABLE waybill_meta;
DROP TABLE waybill_inbox;
DROP TABLE waybill_outbox;
