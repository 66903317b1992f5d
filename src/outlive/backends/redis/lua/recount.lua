-- Remove what is no digest from the roster, and lines of the index of entries that belong to no
-- thread; count the rest, and add up the threads. Keys: both indexes, the roster, and in a Cluster
-- the index by time.
local THREADS, ENTRIES, ROSTER, RECENT = unpack(KEYS, 1, 4)
local names = redis.call('HKEYS', ROSTER)
for i = 1, #names do
  local is_known = names[i] == 'threads' or names[i] == 'entries' or names[i] == 'lost'
  if not is_known and not (#names[i] == 32 and string.find(names[i], '^%x+$')) then redis.call('HDEL', ROSTER, names[i]) end
end
local all = redis.call('ZRANGE', ENTRIES, 0, -1)
for i = 1, #all do
  local tail = string.match(all[i], '%z([^%z]*)$') or ''
  if redis.call('HEXISTS', ROSTER, string.sub(tail, 1, 32)) == 0 then redis.call('ZREM', ENTRIES, all[i]) end
end
redis.call('HSET', ROSTER, 'threads', redis.call('ZCARD', THREADS), 'entries', redis.call('ZCARD', ENTRIES))
if RECENT then redis.call('HSET', ROSTER, 'listed', redis.call('ZCARD', RECENT)) end
local totals, may_expire = add_up(ROSTER)
for tenant, total in pairs(totals) do
  for i, name in ipairs({ 't', 'c', 'b' }) do redis.call('HSET', ROSTER, name .. '\0' .. tenant, string.format('%.0f', total[i])) end
end
if not may_expire then redis.call('HSET', ROSTER, 'totals', 1) end
if ARGV[1] == '1' then redis.call('HSET', ROSTER, 'lost', '1') end
return { redis.call('ZCARD', THREADS) }
