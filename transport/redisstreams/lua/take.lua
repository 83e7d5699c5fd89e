-- KEYS: queue, wake, delayed, due, active. ARGV: receiver, limit, 1 = in order, hold ms, 1 = look for dead receivers,
-- bytes that come together; 0 = any number.
-- Returns the deliveries (id, count, fields), and for the wait if there are none: the last id of the queue ('' = only
-- wake-ups matter), the last wake-up, the ms until something is due (-1 = nothing is), and how many entries were gone.
local queue, me, limit, hold = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local t, taken = now(), {}

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', t, 'LIMIT', 0, 100)) do
  if not copy(KEYS[3], id, queue) then gone = gone + 1 end
  redis.call('XDEL', KEYS[3], id)
  redis.call('ZREM', KEYS[4], id)
end

local function last_wake()
  local w = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  return w and w[1] or '0-0'
end

local orphans = ARGV[5] == '1'
local idle = hold
if ARGV[3] == '1' then
  local active = redis.call('GET', KEYS[5])
  if active and active ~= '' and active ~= me then
    return {taken, '', last_wake(), math.max(redis.call('PTTL', KEYS[5]), 1), gone}
  end
  redis.call('SET', KEYS[5], me, 'PX', hold)
  if active ~= me then orphans, idle = true, 0 end -- whatever others hold, their time is over
end

if orphans then
  local released = 0
  for _, reply in ipairs(redis.call('XINFO', 'CONSUMERS', queue, GROUP)) do
    local c = info(reply)
    if c['name'] ~= RELEASED then
      if c['pending'] > 0 then
        released = released + release_held(queue, c['name'], c['name'] == me and hold or idle)
      elseif c['name'] ~= me and c['idle'] > 86400000 then
        redis.call('XGROUP', 'DELCONSUMER', queue, GROUP, c['name'])
      end
    end
  end
  if released > 0 then wake(KEYS[2]) end
end

local bytes, most = 0, tonumber(ARGV[6])
local function take(id, count, fields)
  taken[#taken + 1] = {id, count, fields}
  for _, f in ipairs(fields) do bytes = bytes + #f end
end
local function full() return #taken >= limit or most > 0 and bytes >= most end

for _, p in ipairs(redis.call('XPENDING', queue, GROUP, '-', '+', limit, RELEASED)) do
  if full() then break end
  local entry = redis.call('XCLAIM', queue, GROUP, me, 0, p[1], 'RETRYCOUNT', p[4] + 1)[1]
  if entry then
    take(entry[1], p[4] + 1, entry[2])
  else
    gone = gone + 1
  end
end
while not full() do -- a few at a time: nobody knows how large they are
  local few = math.min(limit - #taken, most > 0 and 16 or limit)
  local read = redis.call('XREADGROUP', 'GROUP', GROUP, me, 'COUNT', few, 'STREAMS', queue, '>')
  if not read then break end
  for _, entry in ipairs(read[1][2]) do take(entry[1], 1, entry[2]) end
  if #read[1][2] < few then break end
end
if #taken > 0 then return {taken, '', '', -1, gone} end

local last = '0-0'
for _, g in ipairs(redis.call('XINFO', 'GROUPS', queue)) do
  g = info(g)
  if g['name'] == GROUP then last = g['last-delivered-id'] end
end
local due = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
return {taken, last, last_wake(), due[2] and math.max(tonumber(due[2]) - t, 0) or -1, gone}
