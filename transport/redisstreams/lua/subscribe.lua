-- KEYS: queue, bindings, version. ARGV: a new version, members of the bindings. Makes what is missing.
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], GROUP, '0', 'MKSTREAM')
if type(made) == 'table' and made['err'] and string.sub(made['err'], 1, 9) ~= 'BUSYGROUP' then return made end
local added = 0
for i = 2, #ARGV do
  added = added + redis.call('SADD', KEYS[2], ARGV[i])
end
if added > 0 then redis.call('SET', KEYS[3], ARGV[1]) end
return added
