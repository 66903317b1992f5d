-- Entries that an index names, with the id of their thread. Lines of what a TTL has taken are cleared: of a thread that is gone,
-- and of one that was begun again. An entry that changed since its line was read must still be what was asked for.
local tenant, fields, met, statuses, lapsed = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
if redis.call('HEXISTS', M, 'row') == 0 then
  for i = 1, #fields do
    forget_entry(tenant, fields[i])
    redis.call('ZREM', ENTRIES, met[i])
  end
  return { false }
end
local values, at = hmget(E, fields), hex(now())
for i = 1, #fields do
  local is_whole, its = pcall(ending, values[i]) -- a damaged one is for the client to find
  local one, two
  if is_whole then one, two = lines(tenant, fields[i], its) end
  if not values[i] or is_whole and met[i] ~= one and met[i] ~= two then
    redis.call('ZREM', ENTRIES, met[i])
    if values[i] and not is_asked(values[i], statuses, lapsed, at) then values[i] = false end
  end
end
return { redis.call('HGET', M, 'id'), values }
