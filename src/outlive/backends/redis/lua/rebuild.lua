-- Make the indexes and the roster of a bucket agree with one of its threads. Return 1 if they
-- missed the thread, or if its row is missing. `times` are its lines in the index by time.
local line, has_no_count, times = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
local function drop_times() count_times(-in_pages('ZREM', RECENT, times)) end
local raw = redis.call('HGET', M, 'row')
local row = raw and parse_row(raw)
if not row then
  if redis.call('HEXISTS', ROSTER, DIGEST) == 1 then return { 1 } end
  -- Without a roster, a line may be all that is left of a thread. With a roster, the line itself is
  -- damaged.
  if line and (raw or has_no_count) then
    redis.call('HSET', ROSTER, DIGEST, '0l')
  else
    drop_times()
    if line then redis.call('ZREM', THREADS, line) end
  end
  return { 1 }
end
local entries = redis.call('HGETALL', E)
local is_whole = #entries == 2 * row.entries
for i = 1, #entries, 2 do is_whole = is_whole and redis.call('ZSCORE', O, member('e', entries[i], entries[i + 1])) end
if is_whole then clear_lines() end -- otherwise a line may be all that is left of an entry
local tenant, id = unpack(redis.call('HMGET', M, 'tenant', 'id'), 1, 2)
local state, missed = state_of(row), 0
drop_times()
if tenant and id then
  if sub(state, 1, 1) == 'l' then
    missed = redis.call('ZADD', THREADS, 0, tenant .. '\0' .. id)
    count_times(redis.call('ZADD', RECENT, 0, time_line(tenant, id, row.updated)))
  end
  for i = 1, #entries, 2 do
    local can_read, by_key, by_status = pcall(lines, tenant, entries[i], entries[i + 1])
    if can_read then redis.call('ZADD', ENTRIES, 0, by_key, 0, by_status) end
  end
end
if state == '' and row.ends == 1 then
  redis.call('HDEL', ROSTER, DIGEST)
else
  enroll(row, state, keep_alive(row, 0))
end
return { missed }
