-- KEYS: queue, bindings. ARGV: members of the bindings. Returns what is missing: 0 = the queue, else places in ARGV.
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
local missing, found = {}, false
for _, g in ipairs(groups) do
  if info(g)['name'] == GROUP then found = true end
end
if not found then missing[1] = 0 end
for i = 1, #ARGV do
  if redis.call('SISMEMBER', KEYS[2], ARGV[i]) == 0 then missing[#missing + 1] = i end
end
return missing
