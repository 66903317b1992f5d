-- Everything of a thread but the bytes of its chunks; and what of it the indexes of its bucket do not show as it is.
local raw, row = load_row()
local entries = redis.call('HGETALL', E)
local tenant, id = unpack(redis.call('HMGET', M, 'tenant', 'id'), 1, 2)
local unseen = {}
for i = 1, #entries, 2 do
  local is_whole, its = pcall(ending, entries[i + 1])
  if tenant and is_whole then
    local one, two = lines(tenant, entries[i], its)
    if not redis.call('ZSCORE', ENTRIES, one) or not redis.call('ZSCORE', ENTRIES, two) then unseen[#unseen + 1] = entries[i] end
  end
end
local is_unseen = row and is_listed(row) and tenant and id and not redis.call('ZSCORE', THREADS, tenant .. '\0' .. id)
return {
  raw or false, redis.call('HGETALL', R), redis.call('ZRANGE', O, 0, -1), redis.call('HGETALL', W), entries,
  redis.call('HKEYS', C), redis.call('HMGET', M, 'tenant', 'id', 'info', 'projection'), unseen, is_unseen and 1 or 0,
}
