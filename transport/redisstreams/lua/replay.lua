-- KEYS: queue, parked. ARGV: id, the bound of the queue's length (0 = none), '' or all fields of a changed message
-- (msgpack). Returns 0 = replayed, 1 = not parked any more, 2 = the queue is full.
local bound = tonumber(ARGV[2])
if bound > 0 and redis.call('XLEN', KEYS[1]) >= bound then return 2 end
if ARGV[3] == '' then
  if not copy(KEYS[2], ARGV[1], KEYS[1], {}) then return 1 end
elseif #redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1]) == 0 then
  return 1
else
  redis.call('XADD', KEYS[1], '*', unpack(cmsgpack.unpack(ARGV[3])))
end
redis.call('XDEL', KEYS[2], ARGV[1])
return 0
