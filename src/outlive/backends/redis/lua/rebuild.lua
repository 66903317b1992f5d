-- Make the indexes and the roster of a bucket say what one of its threads says, whatever they said before. Tell whether they missed it,
-- or it is itself missing.
local line, is_unknown = unpack(cmsgpack.unpack(ARGV[1]), 1, 2)
local raw = redis.call('HGET', M, 'row')
local row = raw and parse_row(raw)
if not row then
  if not line or redis.call('HEXISTS', ROSTER, WHO) == 1 then return { 1 } end
  -- Without a roster a line may be all that is left of a thread. With one, it is a line that was damaged itself.
  if raw or is_unknown then redis.call('HSET', ROSTER, WHO, '0l') else redis.call('ZREM', THREADS, line) end
  return { 1 }
end
local entries = redis.call('HGETALL', E)
local is_whole = #entries == 2 * row.entries
for i = 1, #entries, 2 do is_whole = is_whole and redis.call('ZSCORE', O, member('e', entries[i], entries[i + 1])) end
if is_whole then clear_lines() end -- else a line may be all that is left of an entry
local tenant, id = unpack(redis.call('HMGET', M, 'tenant', 'id'), 1, 2)
local is, missed = standing(row), 0
if tenant and id then
  if sub(is, 1, 1) == 'l' then missed = redis.call('ZADD', THREADS, 0, tenant .. '\0' .. id) end
  for i = 1, #entries, 2 do
    local can_read, one, two = pcall(lines, tenant, entries[i], entries[i + 1])
    if can_read then redis.call('ZADD', ENTRIES, 0, one, 0, two) end
  end
end
if is == '' and row.ends == 1 then
  redis.call('HDEL', ROSTER, WHO)
else
  redis.call('HSET', ROSTER, WHO, keep_alive(row, 0) .. is)
end
return { missed }
