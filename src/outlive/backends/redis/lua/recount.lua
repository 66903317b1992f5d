-- Remove what is no digest from the roster, and lines of the index of entries that belong to no
-- thread; count the rest. Keys: both indexes and the roster.
local names = redis.call('HKEYS', KEYS[3])
for i = 1, #names do
  local is_known = names[i] == 'threads' or names[i] == 'entries' or names[i] == 'lost'
  if not is_known and not (#names[i] == 32 and string.find(names[i], '^%x+$')) then redis.call('HDEL', KEYS[3], names[i]) end
end
local all = redis.call('ZRANGE', KEYS[2], 0, -1)
for i = 1, #all do
  local tail = string.match(all[i], '%z([^%z]*)$') or ''
  if redis.call('HEXISTS', KEYS[3], string.sub(tail, 1, 32)) == 0 then redis.call('ZREM', KEYS[2], all[i]) end
end
redis.call('HSET', KEYS[3], 'threads', redis.call('ZCARD', KEYS[1]), 'entries', redis.call('ZCARD', KEYS[2]))
if ARGV[1] == '1' then redis.call('HSET', KEYS[3], 'lost', '1') end
return { redis.call('ZCARD', KEYS[1]) }
