-- KEYS: queue, wake. ARGV: receiver, ids that it knows of. Releases the other entries that it holds: a reply was lost.
-- Returns how many of these were gone.
local known, from, released = {}, '-', 0
for i = 2, #ARGV do known[ARGV[i]] = true end
while true do
  local held = redis.call('XPENDING', KEYS[1], GROUP, from, '+', 500, ARGV[1])
  for _, p in ipairs(held) do
    if not known[p[1]] then
      release(KEYS[1], p[1], p[4] - 1)
      released = released + 1
    end
    from = '(' .. p[1]
  end
  if #held < 500 then break end
end
if released > 0 then wake(KEYS[2]) end
return gone
