-- Entries that an index names, with the id of their thread. Lines of a thread that a TTL has taken are cleared.
local tenant, fields, met = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
if redis.call('HEXISTS', M, 'row') == 0 then
  for i = 1, #fields do
    forget_entry(tenant, fields[i])
    redis.call('ZREM', ENTRIES, met[i])
  end
  return { false }
end
return { redis.call('HGET', M, 'id'), (hmget(E, fields)) }
