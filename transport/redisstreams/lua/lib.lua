-- Every script begins with this file. Times are milliseconds of the server's clock.

local GROUP = 'waybill'
-- RELEASED holds entries that nobody works on, for anyone to take, oldest first. No receiver has this name.
local RELEASED = '-released'

-- MARKS are the fields that Waybill puts in front of copies.
local MARKS = {
  ['waybill-attempt'] = true, ['waybill-redeliveries'] = true, ['waybill-error'] = true, ['waybill-due'] = true,
  ['waybill-reason'] = true, ['waybill-queue'] = true, ['waybill-parked-at'] = true,
}

local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- owner returns who holds an entry and how often it was delivered without a release; nil if nobody does.
local function owner(queue, id)
  local p = redis.call('XPENDING', queue, GROUP, id, id, 1)[1]
  if p then return p[2], p[4] end
end

local function forget(queue, id)
  redis.call('XACK', queue, GROUP, id)
  redis.call('XDEL', queue, id)
end

-- gone counts entries that were trimmed or deleted before they were done.
local gone = 0

-- release gives an entry to anyone. count is how often it was delivered. It returns whether there is such an entry.
local function release(queue, id, count)
  if #redis.call('XCLAIM', queue, GROUP, RELEASED, 0, id, 'RETRYCOUNT', math.max(count, 0), 'JUSTID') > 0 then return true end
  gone = gone + 1
  return false
end

-- wake ends the wait of the receivers of a queue. What is added to the queue itself ends it anyway.
local function wake(key)
  redis.call('XADD', key, 'MAXLEN', 1, '*', 'released', 1)
end

-- copy adds the entry id of stream from to stream to, with the fields of set in front instead of MARKS. If set is nil,
-- the fields stay. It returns the new id, or nil if there is no such entry.
local function copy(from, id, to, set)
  local entry = redis.call('XRANGE', from, id, id)[1]
  if not entry then return nil end
  local fields, left = set or {}, entry[2]
  for i = 1, #left, 2 do
    if not (set and MARKS[left[i]]) and #fields < 7800 then -- Lua passes on no more than 8,000 values
      fields[#fields + 1] = left[i]
      fields[#fields + 1] = left[i + 1]
    end
  end
  if #fields == 0 then fields = {'data', ''} end
  return redis.call('XADD', to, '*', unpack(fields))
end

-- info returns a reply of names and values as a table.
local function info(reply)
  local t = {}
  for i = 1, #reply, 2 do t[reply[i]] = reply[i + 1] end
  return t
end

-- release_held releases what consumer has held for at least idle ms. Each one counts as delivered.
local function release_held(queue, consumer, idle)
  local from, n = '-', 0
  while true do
    local held = redis.call('XPENDING', queue, GROUP, 'IDLE', idle, from, '+', 500, consumer)
    for _, p in ipairs(held) do
      release(queue, p[1], p[4])
      from = '(' .. p[1]
    end
    n = n + #held
    if #held < 500 then return n end
  end
end
