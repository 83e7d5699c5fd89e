-- KEYS: queue, wake, active. ARGV: receiver. Ends a receiver; the entries that it held count as delivered. Returns how
-- many of these were gone.
release_held(KEYS[1], ARGV[1], 0)
if redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('SET', KEYS[3], '', 'PX', 1) end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], GROUP, ARGV[1]) -- it holds nothing now
wake(KEYS[2])
return gone
