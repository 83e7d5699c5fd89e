DROP TABLE waybill_meta;
DROP TABLE waybill_inbox;
DROP TABLE waybill_outbox_audit;
DROP TABLE waybill_outbox_notices;
DROP TABLE waybill_outbox_routes;
DROP TABLE waybill_outbox_partitions;
DROP TABLE waybill_outbox_members;
DROP TABLE waybill_outbox;
