-- KEYS: queue, active. ARGV: receiver, hold ms, idle ms, ids. Returns a code for each: 0 = renewed, 1 = lost.
local out = {}
for i = 4, #ARGV do
  if owner(KEYS[1], ARGV[i]) == ARGV[1] then
    redis.call('XCLAIM', KEYS[1], GROUP, ARGV[1], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
    out[#out + 1] = 0
  else
    out[#out + 1] = 1
  end
end
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) end
return out
