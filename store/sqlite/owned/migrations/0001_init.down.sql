DROP TABLE waybill_info;
DROP TABLE waybill_handled;
DROP TABLE waybill_control;
DROP TABLE waybill_routes;
DROP TABLE waybill_units;
DROP TABLE waybill_members;
DROP TABLE waybill_records;
