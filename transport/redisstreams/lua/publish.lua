-- KEYS: version, queues. ARGV: the version that the caller routed by, the bound of a queue's length (0 = none), then
-- messages: msgpack arrays of key's number (0 = none), number of queues, their places in KEYS, field, value, ...
-- Returns -1 if the bindings have changed, else place (from 0) and code of each message that was not stored: 1 = a queue
-- is full, 2 = behind a failed one of its key.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return -1 end
local bound, failed, out = tonumber(ARGV[2]), {}, {}
for i = 3, #ARGV do
  local m = cmsgpack.unpack(ARGV[i])
  local key, queues, code = m[1], m[2], 0
  if key > 0 and failed[key] then
    code = 2
  elseif bound > 0 then
    for q = 3, 2 + queues do
      if redis.call('XLEN', KEYS[m[q]]) >= bound then code = 1 end
    end
  end
  if code == 0 then
    for q = 3, 2 + queues do
      redis.call('XADD', KEYS[m[q]], '*', unpack(m, 3 + queues))
    end
  else
    failed[key] = true
    out[#out + 1] = i - 3
    out[#out + 1] = code
  end
end
return out
