-- KEYS: queue, wake, delayed, due, parked. ARGV: receiver, then settlements: msgpack arrays of id, verdict, delay ms,
-- and the fields in front of a copy. Returns a code for each: 0 = settled, 1 = another's, 2 = free, 3 = gone: the entry
-- was trimmed or deleted, so that nothing is left to keep.
local queue, me, t, out, released = KEYS[1], ARGV[1], now(), {}, false
for i = 2, #ARGV do
  local a = cmsgpack.unpack(ARGV[i])
  local id, verdict, delay, set = a[1], a[2], a[3], a[4]
  local holder, count = owner(queue, id)
  local code = 0
  if not holder then
    code = 2
  elseif holder ~= me then
    code = 1
  elseif verdict == 'release' then
    if not release(queue, id, count - 1) then code = 3 end
    released = true
  else
    local new = true
    if verdict == 'retry' and delay > 0 then
      new = copy(queue, id, KEYS[3], set)
      if new then redis.call('ZADD', KEYS[4], t + delay, new) end
    elseif verdict == 'retry' then
      new = copy(queue, id, queue, set)
    elseif verdict == 'reject' then
      new = copy(queue, id, KEYS[5], set)
    end
    if not new then code = 3 end
    forget(queue, id)
  end
  out[#out + 1] = code
end
if released then wake(KEYS[2]) end
return out
