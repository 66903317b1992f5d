-- Entries that an index names, with the id of their thread. A line of a thread that a TTL has taken is cleared.
local fields, lines = unpack(cmsgpack.unpack(ARGV[1]), 1, 2)
local id = redis.call('HGET', M, 'id')
local raw = redis.call('HGET', M, 'row')
if not raw then
  for i = 1, #lines do redis.call('ZREM', ENTRIES, lines[i]) end
  return { false }
end
return { id, (hmget(E, fields)) }
