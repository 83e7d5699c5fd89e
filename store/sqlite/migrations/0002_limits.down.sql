DROP TABLE waybill_limits;
